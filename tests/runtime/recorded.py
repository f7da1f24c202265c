"""The recordings' own command lines and what the peer's runtime made of them."""

import ast
import importlib.util
import json
import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from app.runtime.activation import ActivationInput, ActivationSettings, AgentHooks
from app.runtime.model.client import LlmRequest, LlmResponse
from app.wire.records import AgentEnvelope, StateSnapshot, parse
from tests.golden import corpus


class NothingToServe(Exception):
    """The answer is not in the cache; an ordinary exception, which agent code may swallow."""


class NoProvider:
    """The peer's replay offline: reaching the provider is a cache miss."""

    async def complete(self, request: LlmRequest) -> LlmResponse:
        raise NothingToServe(f"no recorded answer for {request!r}")


class BadCommand(Exception):
    """A command line that names no attempt to run."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadCommand(message)


@dataclass(frozen=True)
class Recording:
    """One scenario: its folder, the command line to replay it with, the peer's ending and its re-run if it made one."""

    folder: Path
    argv: list[str]
    peer: dict[str, Any]
    replayed: dict[str, Any] | None

    @property
    def name(self) -> str:
        return self.folder.name


@cache
def recordings() -> tuple[Recording, ...]:
    """Every scenario of the corpus, by name."""
    found = []
    for file in sorted((corpus() / "corpus").glob("*/expected.json")):
        expected = json.loads(file.read_text())
        found.append(Recording(file.parent, expected["argv"], expected["peer"], expected.get("replayed")))
    return tuple(found)


def load_agent(folder: Path) -> ModuleType:
    """Import a scenario's agent.py afresh as the module `agent`."""
    spec = importlib.util.spec_from_file_location("agent", folder / "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["agent"] = module
    spec.loader.exec_module(module)
    return module


def _command(recording: Recording) -> Any:
    parser = _Parser(add_help=False)
    for option in ("--snapshot", "--traces", "--event", "--agent"):
        parser.add_argument(option, required=True)
    for option in ("--registry", "--decode", "--log-level"):
        parser.add_argument(option)
    parser.add_argument("--seq", type=int)
    command = parser.parse_args(recording.argv)
    for file in (command.snapshot, command.traces, command.event):
        if not (recording.folder / file).is_file():
            raise BadCommand(f"{file} is not there")
    return command


def why_not(recording: Recording) -> str | None:
    """Why there is no re-run of the peer to compare with; None when there is one."""
    if recording.replayed is not None:
        try:
            command = _command(recording)
            _check_reference(recording, command.agent)
        except BadCommand as problem:
            return f"no valid command line: {problem}"
        return None
    if recording.peer["traceback"]:
        return "the peer died on a traceback"
    return {2: "the peer refused the input", 3: "the peer found it irreproducible"}.get(
        recording.peer["exit"], "the peer ended without a verdict"
    )


def _check_reference(recording: Recording, reference: str) -> None:
    name, colon, attribute = reference.partition(":")
    tree = ast.parse((recording.folder / "agent.py").read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    defined |= {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if not colon or name != "agent" or attribute not in defined:
        raise BadCommand(f"{reference} names nothing in agent.py")


def _resolve(module: ModuleType, reference: str | None) -> Any:
    return None if reference is None else getattr(module, reference.partition(":")[2])


def prepare(recording: Recording, settings: ActivationSettings) -> tuple[ActivationInput, AgentHooks]:
    """The attempt as the peer's replay ran it, from the post-image."""
    command = _command(recording)
    module = load_agent(recording.folder)
    hooks = AgentHooks(
        agent=_resolve(module, command.agent),
        provider=NoProvider(),
        registry=_resolve(module, command.registry),
        decode=_resolve(module, command.decode),
        config=settings,
    )
    snapshot = parse(StateSnapshot, (recording.folder / command.snapshot).read_bytes())
    envelope = parse(AgentEnvelope, (recording.folder / command.event).read_bytes())
    replayed = recording.replayed
    assert replayed is not None
    resume = replayed["is_resume"]
    inp = ActivationInput(
        entity_key=bytes.fromhex(replayed["entity_key"]),
        seq=replayed["seq"],
        now_ms=replayed["now_ms"],
        events=() if resume else (envelope.external_event,),
        resume_result=envelope.tool_result if envelope.HasField("tool_result") else None,
        resume_approval=envelope.approval if envelope.HasField("approval") else None,
        continuation=snapshot.continuation if resume else None,
        memory=snapshot.memory,
        cache=snapshot.llm_cache,
    )
    return inp, hooks
