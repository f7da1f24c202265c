"""Recordings as a host is given them: the agent that ran, its configuration, the elements, and what came out."""

import dataclasses
import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from app.pipeline.keyed import Stream
from app.runtime.batching import BatchPolicy
from app.runtime.config import AgentConfig
from app.wire.framing import read_frames
from app.wire.records import AgentEnvelope, parse
from tests.golden import corpus

# The one key of `resolved` that the test sets itself: a policy is an object of the agent file.
_PLAIN = ("ttl_ms", "activation_timeout_s", "cancel_grace_s", "longterm_memory", "max_tokens_per_activation")


def names() -> list[str]:
    """Every recording of a pipeline, by name."""
    return sorted(path.stem for path in (corpus() / "pipeline").glob("*.json"))


def telling() -> list[str]:
    """The recordings that a slow host is tried on: every one with timers, batches or a store, and some of the rest.

    HINDCAST_ALL_RECORDINGS=1 chooses them all.
    """
    every = names()
    if os.environ.get("HINDCAST_ALL_RECORDINGS") == "1":
        return every
    return [name for number, name in enumerate(every) if number % 20 == 0 or PipelineRecording(name).is_telling]


@dataclass(frozen=True)
class Step:
    """One step: an element, or one of the two clocks moved. `watermark_ms` is None for infinity."""

    kind: str
    envelope: AgentEnvelope | None = None
    at_ms: int | None = None


@dataclass(frozen=True)
class PipelineRecording:
    """One `pipeline/<scenario>.json` with the streams beside it."""

    name: str

    @cached_property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((corpus() / "pipeline" / f"{self.name}.json").read_text())
        return found

    @property
    def folder(self) -> Path:
        return corpus() / str(self.said["corpus"]) / self.name

    @property
    def exempt(self) -> str | None:
        """Why real time or the wall clock decides what comes out, None where it does not."""
        reason: str | None = self.said["exempt"]
        return reason

    @property
    def reads_wall_clock(self) -> bool:
        """Whether the agent put the wall clock into a prompt, so that its cache key is new in every run."""
        return "wall clock" in (self.exempt or "")

    @property
    def is_telling(self) -> bool:
        """Whether more happened than elements, one after the other."""
        resolved = self.said["resolved"]
        moves = [step for step in self.said["steps"] if not {"element", "envelope_hex"} & set(step)]
        special = resolved["batch_policy"] != "NONE" or resolved["longterm_memory"] or resolved["summarizer"]
        return bool(special or self.exempt or len(moves) > 2)

    def load_agent(self) -> ModuleType:
        """Import the agent file that ran, afresh: a class of one recording counts in itself."""
        spec = importlib.util.spec_from_file_location("agent", self.folder / self.said["agent_file"])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["agent"] = module
        spec.loader.exec_module(module)
        return module

    def agent(self, module: ModuleType) -> Any:
        return _resolve(module, self.said["agent"])

    def config(self, module: ModuleType) -> AgentConfig:
        """The configuration that ran: what the harness passed, and what the agent file's own dict holds."""
        given = {name: value for name, value in self.said["config"].items() if name in _fields()}
        given.update(_resolve(module, self.said["config"].get("module_config")) or {})
        if isinstance(given.get("batch_policy"), str):
            given["batch_policy"] = BatchPolicy[given["batch_policy"]]
        config = AgentConfig(
            _resolve(module, self.said["provider"]) or _no_provider,
            decode=_resolve(module, self.said["decode"]),
            tool_registry=_resolve(module, self.said["registry"]),
            **given,
        )
        for name in _PLAIN:
            assert getattr(config, name) == self.said["resolved"][name], name
        return config

    def steps(self) -> list[Step]:
        """What happened to the pipeline, in order."""
        frames = read_frames((self.folder / "raw" / "events.bin").read_bytes()).payloads
        return [_step(step, frames) for step in self.said["steps"]]

    def digest(self, stream: Stream) -> str | None:
        """The sha256 of a framed stream as it was sent, where it was written down."""
        said = self.said.get("upstream_emits", {}).get(stream)
        return None if said is None else str(said["sha256"])


def _fields() -> set[str]:
    return {field.name for field in dataclasses.fields(AgentConfig)}


def _no_provider() -> None:
    return None


def _resolve(module: ModuleType, reference: str | None) -> Any:
    return None if reference is None else getattr(module, reference.partition(":")[2])


def _step(step: dict[str, Any], frames: list[bytes]) -> Step:
    (kind, value), *rest = step.items()
    assert not rest
    if kind == "element":
        return Step("element", parse(AgentEnvelope, frames[value]))
    if kind == "envelope_hex":
        return Step("element", parse(AgentEnvelope, bytes.fromhex(value)))
    return Step(kind, at_ms=None if value == "infinity" else value)
