"""Records the refund example's night: runs its first build on our runtime, and keeps what a pipeline would emit.

The recordings are in the repository, and a test compares them with what this makes, byte for byte. To renew them:
`python -m app.demo.record examples/refunds/evidence`. It runs agent code, so nothing that serves or holds secrets
imports it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.runtime import standin
from app.runtime.activation import ActivationInput, ActivationResult, ActivationSettings, AgentHooks, run_activation
from app.wire.framing import write_frames
from app.wire.records import AgentEnvelope, LlmCacheBlob, MemoryBlob, StateSnapshot, ToolIntent, TraceEvent, serialize

KEY: Final = b"customer-42"
EVENING: Final = 1_773_432_000_000  # 2026-03-13T20:00:00Z
MINUTE: Final = 60_000

FIRST: Final = b'{"ticket": "T-101", "order": "7702", "text": "My cartridge arrived broken, please refund 12.50 EUR."}'
ODD: Final = (
    b'{"ticket": "T-118", "order": "7731",'
    b' "text": "You charged me twice for the grinder!! I want my 48,00 back, today."}'
)


@dataclass
class Pipeline:
    """One key of a pipeline, as far as the recording needs it: a state, a counter, and what came out."""

    hooks: AgentHooks
    counter: int = 0
    memory: MemoryBlob | None = None
    cache: LlmCacheBlob | None = None
    pending: tuple[ToolIntent, ...] = ()
    traces: list[TraceEvent] = field(default_factory=list)
    intents: list[ToolIntent] = field(default_factory=list)
    outputs: list[bytes] = field(default_factory=list)

    def handle(self, envelope: AgentEnvelope) -> ActivationResult:
        """Run one activation and commit it."""
        result = run_activation(
            ActivationInput(
                entity_key=envelope.entity_key,
                seq=self.counter,
                now_ms=envelope.event_time_ms,
                events=(envelope.external_event,),
                memory=self.memory,
                cache=self.cache,
            ),
            self.hooks,
        )
        if result.status != "completed":
            raise RuntimeError(f"the example's activation {result.status}: {result.error!r}")
        self.counter += 1
        self.memory, self.cache, self.pending = result.memory, result.cache, result.intents
        self.traces += result.events
        self.intents += result.intents
        self.outputs += [result.output] if result.output else []
        return result

    def export(self, request_id: str, at_ms: int) -> StateSnapshot:
        """Answer an export request: the state as it stands."""
        snapshot = StateSnapshot(
            state_schema_version=1,
            entity_key=KEY,
            seq=self.counter,
            snapshot_at_ms=at_ms,
            pending=self.pending,
            request_id=request_id,
        )
        if self.memory is not None:
            snapshot.memory.CopyFrom(self.memory)
        if self.cache is not None:
            snapshot.llm_cache.CopyFrom(self.cache)
        return snapshot


def record(agent_path: Path) -> Mapping[str, bytes]:
    """Run the night with the build in that folder; returns the evidence files by name."""
    pipeline = Pipeline(_hooks(agent_path))
    pipeline.handle(AgentEnvelope(entity_key=KEY, event_time_ms=EVENING, external_event=FIRST))
    before = pipeline.export("nightly-0313", EVENING + 30 * MINUTE)
    odd = AgentEnvelope(entity_key=KEY, event_time_ms=EVENING + 47 * MINUTE, external_event=ODD)
    pipeline.handle(odd)
    after = pipeline.export("inc-refund-4800", EVENING + 58 * MINUTE)
    return {
        "snapshot-before.pb": serialize(before),
        "snapshot-after.pb": serialize(after),
        "traces.bin": write_frames(map(serialize, pipeline.traces)),
        "event.pb": serialize(odd),
        "intents.bin": write_frames(map(serialize, pipeline.intents)),
        "outputs.bin": write_frames(pipeline.outputs),
    }


def _hooks(agent_path: Path) -> AgentHooks:
    standin.install()
    sys.path.insert(0, str(agent_path))
    module: Any = importlib.import_module("refunds.agent")
    return AgentHooks(
        agent=module.AGENT,
        provider=module.make_provider(),
        registry=module.TOOLS,
        decode=module.decode,
        config=ActivationSettings(**module.CONFIG),
    )


def main(folder: Path) -> None:
    """Write the recordings into a folder."""
    for name, data in record(folder.parent / "v1").items():
        (folder / name).write_bytes(data)
        print(f"{folder / name}: {len(data)} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
