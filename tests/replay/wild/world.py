"""Pipelines that live at random, and their evidence delivered at random: what a replay must never get wrong."""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Final

from app.pipeline.keyed import EMPTY, KeySettings, KeyState, Stream, Timer, encode
from app.pipeline.keyspace import EVENT_TIME, PROCESSING_TIME, Keyspace, Turned
from app.replay.evidence import EvidenceFile, Role
from app.replay.rerun_pb2 import AgentCode
from app.runtime import standin
from app.runtime.config import AgentConfig
from app.wire.framing import write_frames
from app.wire.records import (
    ActivationErrorRecord,
    AgentEnvelope,
    Continuation,
    EventType,
    ToolIntent,
    TraceEvent,
    parse,
    serialize,
)

FOLDER: Final = Path(__file__).parent
KEY, NOISE = b"card-1", b"card-2"
NOW: Final = 1_700_000_000_000
TTL: Final = 5_000
MODULE: Final = "agent"
EARLIER: Final = timedelta(days=3, minutes=7)

Script = list[Any]


def code(*, batch: bool) -> AgentCode:
    """The agent as a replay is given it."""
    hooks = {"registry": f"{MODULE}:TOOLS", "decode": f"{MODULE}:decode"}
    return AgentCode(agent=f"{MODULE}:AGENT", config=f"{MODULE}:{_config(batch)}", paths=[str(FOLDER)], **hooks)


def _config(batch: bool) -> str:
    return "BATCH" if batch else "CONFIG"


class Earlier(datetime):
    """The clock of the pipeline: what it recorded, it recorded some days before the replay."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) - EARLIER

    @staticmethod
    def time() -> float:
        return time.time() - EARLIER.total_seconds()

    @staticmethod
    def time_ns() -> int:
        return int(Earlier.time() * 10**9)


def load_agent() -> Any:
    """The agent's module as the pipeline runs it, apart from any that a replay loads."""
    standin.install()
    sys.path.insert(0, str(FOLDER))
    try:
        sys.modules.pop(MODULE, None)
        module = importlib.import_module(MODULE)
        module.datetime, module.time = Earlier, Earlier
        return module
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop(MODULE, None)


@dataclass
class Attempt:
    """One attempt as it really was. `envelopes` are what it consumed, `before` the state that it ran from."""

    envelopes: list[AgentEnvelope]
    before: KeyState
    after: KeyState
    life: int
    traces: list[TraceEvent]
    intents: list[ToolIntent]
    outputs: list[bytes]
    details: list[str]

    @property
    def committed(self) -> bool:
        return any(event.event_type == EventType.ACTIVATION_END for event in self.traces)


@dataclass
class World:
    """A key's whole history and what it left on the topics, in the order in which it was written."""

    batch: bool = False
    events: list[AgentEnvelope] = field(default_factory=list)
    streams: dict[Stream, list[bytes]] = field(default_factory=lambda: {stream: [] for stream in Stream})
    attempts: list[Attempt] = field(default_factory=list)


class Life:
    """Lives a world: takes elements and lets timers fire."""

    def __init__(self, *, batch: bool = False, ttl_ms: int = TTL) -> None:
        self.world = World(batch)
        self.module = load_agent()
        config = AgentConfig(
            self.module.make_provider,
            decode=self.module.decode,
            tool_registry=self.module.TOOLS,
            ttl_ms=ttl_ms,
            **getattr(self.module, _config(batch)),
        )
        self.keys = Keyspace(KeySettings.open(self.module.AGENT, config), wall=lambda: NOW)
        self.lives = 0

    def close(self) -> World:
        self.keys.close()
        return self.world

    @property
    def state(self) -> KeyState:
        return self.keys.states.get(KEY, EMPTY)

    def start(self, script: Script, at: int) -> None:
        self._take(AgentEnvelope(entity_key=KEY, event_time_ms=NOW + at, external_event=json.dumps(script).encode()))

    def answer(self, at: int, pick: int = 0, *, approve: bool = True, result: bool = False) -> None:
        """Answer one of the intents that wait, or one that never was."""
        ids = [] if self.state.continuation is None else parse(Continuation, self.state.continuation).pending_intent_ids
        intent = ids[pick % len(ids)] if ids else "0" * 36
        envelope = AgentEnvelope(entity_key=KEY, event_time_ms=NOW + at)
        if result:
            envelope.tool_result.intent_id, envelope.tool_result.status = intent, 1
            envelope.tool_result.payload = b"yes" if approve else b"no"
        else:
            envelope.approval.intent_id, envelope.approval.approved = intent, approve
        self._take(envelope)

    def export(self, at: int) -> None:
        envelope = AgentEnvelope(entity_key=KEY, event_time_ms=NOW + at)
        envelope.export_request.request_id = f"inc-{len(self.world.events)}"
        self._take(envelope)

    def fire(self, timer: Timer) -> None:
        """Let one timer fire, if it is set."""
        timers = EVENT_TIME if timer is Timer.TTL else PROCESSING_TIME
        at_ms = getattr(self.state.marks, timer)
        before = self.state
        if at_ms is not None:
            for turned in self.keys.fire_due(timers, at_ms):
                self._note(turned, before, None)
                before = turned.step.state

    def _take(self, envelope: AgentEnvelope) -> None:
        before = self.state
        self.world.events.append(envelope)
        self._note(self.keys.process(KEY, envelope), before, envelope)

    def _note(self, turned: Turned, before: KeyState, envelope: AgentEnvelope | None) -> None:
        found: dict[Stream, list[bytes]] = {stream: [] for stream in Stream}
        for emission in turned.step.emissions:
            found[emission.stream].append(encode(emission))
        for stream, values in found.items():
            self.world.streams[stream] += values
        after = turned.step.state
        if before.memory is not None and after.memory is None:
            self.lives += 1
        traces = [parse(TraceEvent, value) for value in found[Stream.TRACES]]
        if not any(_of_an_attempt(event) for event in traces):
            return
        envelopes = [envelope] if envelope is not None else []
        if self.world.batch and (envelope is None or envelope.WhichOneof("payload") == "external_event"):
            envelopes = [*(parse(AgentEnvelope, member) for member in before.batch), *envelopes]
        self.world.attempts.append(
            Attempt(
                envelopes=envelopes,
                before=before,
                after=after,
                life=self.lives,
                traces=traces,
                intents=[parse(ToolIntent, value) for value in found[Stream.INTENTS]],
                outputs=found[Stream.OUTPUTS],
                details=[
                    parse(ActivationErrorRecord, parse(AgentEnvelope, value).external_event).detail
                    for value in found[Stream.ERRORS]
                ],
            )
        )


def _of_an_attempt(event: TraceEvent) -> bool:
    if event.event_type == EventType.ACTIVATION_END:
        return True
    failed = ("activation_error", "budget_exceeded", "activation_timeout")
    return event.event_type == EventType.ERROR and event.attributes["beam_agents.reason"] in failed


# Delivery


@dataclass(frozen=True)
class Delivery:
    """What of a world's evidence arrives, and how; every part of it is chosen by `chance`."""

    chance: random.Random
    lossy: bool = True

    def files(self, world: World, target: Attempt) -> list[EvidenceFile]:
        """The evidence for one attempt."""
        trigger = target.envelopes[self.chance.randrange(len(target.envelopes))]
        files = [EvidenceFile(Role.EVENT, "event.pb", serialize(trigger))]
        files.append(self._framed(Role.TRACES, self._shuffled(self._traces(world, target))))
        snapshots = self._some(world.streams[Stream.SNAPSHOTS])
        files += [EvidenceFile(Role.SNAPSHOT, f"{at}.pb", data) for at, data in enumerate(snapshots)]
        streams = {Role.INTENTS: Stream.INTENTS, Role.OUTPUTS: Stream.OUTPUTS, Role.ERRORS: Stream.ERRORS}
        for role, stream in streams.items():
            if self.chance.random() < 0.5:
                files.append(self._framed(role, world.streams[stream]))
        events = [serialize(event) for event in world.events]
        if self.chance.random() < 0.6:
            files.append(self._framed(Role.EVENTS, self._events(events)))
        return files

    def whole(self, world: World, target: Attempt) -> list[EvidenceFile]:
        """All there is, as it was written."""
        files = [EvidenceFile(Role.EVENT, "event.pb", serialize(target.envelopes[0]))]
        snapshots = world.streams[Stream.SNAPSHOTS]
        files += [EvidenceFile(Role.SNAPSHOT, f"{at}.pb", data) for at, data in enumerate(snapshots)]
        roles = (Role.TRACES, Role.INTENTS, Role.OUTPUTS, Role.ERRORS)
        files += [self._framed(role, world.streams[Stream(str(role))]) for role in roles]
        return [*files, self._framed(Role.EVENTS, [serialize(event) for event in world.events])]

    def _framed(self, role: Role, payloads: Sequence[bytes]) -> EvidenceFile:
        return EvidenceFile(role, f"{role}.bin", write_frames(payloads))

    def _some(self, values: Sequence[bytes]) -> list[bytes]:
        keep = self.chance.choice((0.0, 0.3, 0.7, 1.0))
        return [value for value in values if self.chance.random() < keep]

    def _traces(self, world: World, target: Attempt) -> list[bytes]:
        own = [serialize(event) for event in target.traces]
        others = [value for value in world.streams[Stream.TRACES] if value not in own]
        how = self.chance.choice(("all", "all", "some", "whole attempts")) if self.lossy else "all"
        if how == "some":
            others = self._some(others)
        elif how == "whole attempts":
            dropped = [a for a in world.attempts if a is not target and self.chance.random() < 0.4]
            gone = {serialize(event) for attempt in dropped for event in attempt.traces}
            others = [value for value in others if value not in gone]
        return own + others

    def _shuffled(self, values: list[bytes]) -> list[bytes]:
        delivered = values + self.chance.choices(values, k=self.chance.randrange(3))
        if self.chance.random() < 0.7:
            self.chance.shuffle(delivered)
        return delivered

    def _events(self, events: list[bytes]) -> list[bytes]:
        match self.chance.choice(("all", "all", "tail", "some", "twice", "swapped")) if self.lossy else "all":
            case "tail":
                return events[self.chance.randrange(len(events)) :]
            case "some":
                return self._some(events)
            case "twice":
                return [event for event in events for _ in range(1 + (self.chance.random() < 0.3))]
            case "swapped":
                swapped = list(events)
                at = self.chance.randrange(len(swapped))
                swapped.insert(self.chance.randrange(len(swapped)), swapped.pop(at))
                return swapped
        return events


# Random lives

_KEYS: Final = ("a", "b", "r")
_TEXTS: Final = ("x", "yy", "zzz", "w")


class Maker:
    """Makes scripts and lives at random; `kinds` names the operations that scripts may use.

    With "pause" among them, most of the scripts that suspend do so as frameworks do.
    """

    def __init__(self, chance: random.Random, kinds: Sequence[str]) -> None:
        self.chance = chance
        self.kinds = tuple(kinds)

    def script(self, depth: int = 2) -> Script:
        body = [self._operation() for _ in range(self.chance.randrange(4))]
        ending = self.chance.random()
        if ending < 0.35 and depth:
            body += [[self.chance.choice(("approve", "approve", "act")), *self._named()], self._suspend(depth)]
        elif ending < 0.6:
            body.append([self.chance.choice(("out", "end"))])
        elif ending < 0.7:
            body.append(["fail"])
        return [self._fitted(operation) for operation in body]

    def _named(self) -> list[Any]:
        return []

    def _fitted(self, operation: list[Any]) -> list[Any]:
        return [operation[0], "pay"] if operation == ["act"] else operation

    def _suspend(self, depth: int) -> list[Any]:
        if "pause" in self.kinds and self.chance.random() < 0.6:
            return ["pause", self.script(depth - 1)]
        return [self.chance.choice(("suspend", "wait")), self.script(depth - 1)]

    def _operation(self) -> list[Any]:
        pick = self.chance.choice
        name = pick([kind for kind in self.kinds if kind != "pause"])
        key, text = pick(_KEYS), pick(_TEXTS)
        match name:
            case "get" | "ring" | "delete" | "keep":
                return [name, key]
            case "set" | "append":
                return [name, pick(_KEYS[:2]) if self.chance.random() < 0.8 else "r", text]
            case "stamp":
                return [name, pick(_KEYS[:2])]
            case "clock":
                return [name, pick(("seconds", "milliseconds", "microseconds", "epoch"))]
            case "ask" | "tell" | "checkpoint":
                return [name, text]
            case "race" | "gather":
                return [name, *self.chance.sample(_TEXTS, k=self.chance.randrange(2, 4))]
            case "facade":
                return [name, pick((text, f"shaky {text}")), self.chance.randrange(2)]
            case "double" | "noisy":
                return [name, self.chance.randrange(3)]
            case "nest":
                return [name, self.chance.randrange(1, 3), pick(("", "t", "k"))]
            case "act" | "do":
                return [name, pick(("pay", "hold"))]
            case "if":
                return [name, [self._operation()], [self._operation()]]
        return [name]

    def live(self, *, batch: bool = False, length: int = 14, skew: int = 300, exports: float = 0.0) -> World:
        """A life of random elements and firings; event times stray by up to `skew` ms.

        `exports` is how often the state is exported before an element, beside the exports that come at random.
        """
        life, at = Life(batch=batch), 0
        for _ in range(length):
            at += self.chance.randrange(0, 400)
            stray = self.chance.random()
            if stray < 0.3:
                stamp = max(0, at - self.chance.randrange(skew))
            elif stray > 0.9 and life.world.events:
                stamp = life.world.events[-1].event_time_ms - NOW  # two events at one time
            else:
                stamp = at
            roll = self.chance.random()
            if exports and self.chance.random() < exports:
                life.export(at)
            if roll < 0.38:
                life.start(self.script(), stamp)
            elif roll < 0.62:
                how = {"approve": self.chance.random() < 0.7, "result": self.chance.random() < 0.5}
                life.answer(stamp, self.chance.randrange(3), **how)
            elif roll < 0.86:
                life.export(stamp)
            elif roll < 0.9:
                life.fire(Timer.TTL)
                at += TTL
            elif roll < 0.95:
                life.fire(Timer.HITL)
                at += 900
            else:
                life.fire(Timer.FLUSH)
        life.export(at)
        return life.close()
