"""Which record triggered an attempt: by the intent it answers first, else by key and event time.

Pure: records come in as bytes. Where a topic holds bare tool results or approvals, the envelope that the pipeline's
author wrapped around them is on no topic; it is rebuilt, and always marked as rebuilt.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.incidents.activations import Activation
from app.incidents.deliveries import check
from app.incidents.intake import EvidenceFile, Role
from app.incidents.live_evidence import Found, Log, record_file, source_of, stream_files
from app.incidents.segments import Raw
from app.replay.select import RESUME, START, intent_of, kind_of
from app.wire.framing import varint
from app.wire.records import AgentEnvelope, ToolResult, parse, serialize

ENVELOPE: Final = "envelope"
TOOL_RESULT: Final = "tool_result"
APPROVAL: Final = "approval"
HOOK: Final = "hook"
"""A record that a hook of the agent's author has decoded."""

# The tag of `event_time_ms` in an envelope.
_TIME_TAG: Final = b"\x10"
_KEPT_ORIGINAL: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record that fits, with the envelope that it is or that was rebuilt from it."""

    topic: str
    records: str
    partition: int
    raw: Raw
    envelope: AgentEnvelope

    @property
    def rebuilt(self) -> bool:
        return self.records != ENVELOPE


@dataclass(frozen=True, slots=True)
class Trigger:
    """What is known of the record that triggered an attempt.

    `kind` is `start`, `resume`, or empty where the trace does not tell (failures). `intents` are those that a resume
    may have answered; with none known, key and time have to do. `sent_ms` is about when the attempt's trace was sent.
    """

    entity_key: bytes
    kind: str
    clock_ms: int
    intents: frozenset[str] = frozenset()
    batch_size: int | None = None
    sent_ms: int | None = None

    @classmethod
    def of(cls, about: Activation, peers: Iterable[Activation], sent_ms: int | None) -> Trigger:
        """Tell what triggered `about`; `peers` are all attempts of its seq."""
        intents = {
            intent.intent_id for one in peers for intent in one.intents if one.id != about.id and one.seq == about.seq
        }
        return cls(about.entity_key, about.kind, about.clock_ms, frozenset(intents), about.shape.batch_size, sent_ms)

    @property
    def is_batch(self) -> bool:
        """Whether the attempt took several envelopes."""
        return (self.batch_size or 1) > 1

    def kinds(self) -> tuple[str, ...]:
        """Which records may hold it, the likeliest first."""
        if self.kind == START:
            return (ENVELOPE,)
        return ENVELOPE, TOOL_RESULT, APPROVAL

    def needles(self, records: str) -> tuple[bytes, ...]:
        """Bytes that its record must have somewhere: that spares decoding nearly all others."""
        if records == ENVELOPE:
            time = (_TIME_TAG + varint(self.clock_ms),) if self.clock_ms > 0 else ()
            return ((self.entity_key,) if self.entity_key else ()) + time
        return (next(iter(self.intents)).encode(),) if len(self.intents) == 1 else ()

    def describe(self) -> str:
        """Say what is looked for."""
        what = {START: "the event", RESUME: "the answer"}.get(self.kind, "the event or answer")
        answers = f" to intent {', '.join(sorted(self.intents))}" if self.intents and self.kind != START else ""
        batch = f", one of a batch of {self.batch_size}" if self.is_batch else ""
        return f"{what}{answers} of event time {self.clock_ms}{batch}"

    def fits(self, envelope: AgentEnvelope) -> bool:
        """Whether an envelope is the one, or for a batch the one whose time is the batch's."""
        if envelope.entity_key != self.entity_key or envelope.event_time_ms != self.clock_ms:
            return False
        kind = kind_of(envelope)
        if not kind or self.kind not in ("", kind):
            return False
        return kind != RESUME or not self.intents or intent_of(envelope) in self.intents

    def in_batch(self, envelope: AgentEnvelope) -> bool:
        """Whether an envelope may be a member of the batch."""
        return envelope.entity_key == self.entity_key and kind_of(envelope) == START

    def answers(self, bare: Any) -> bool:
        """Whether a bare tool result or approval answers one of the intents."""
        if isinstance(bare, ToolResult) and bare.entity_key not in (b"", self.entity_key):
            return False
        return bool(self.intents) and bare.intent_id in self.intents

    def rebuild(self, bare: Any) -> AgentEnvelope:
        """Wrap a bare answer as the pipeline's author must have: with this key, at the attempt's own time."""
        envelope = AgentEnvelope(entity_key=self.entity_key, event_time_ms=self.clock_ms)
        (envelope.tool_result if isinstance(bare, ToolResult) else envelope.approval).CopyFrom(bare)
        return envelope


def decoder(records: str) -> Callable[[bytes], Any]:
    """What reads a record of some kind; it raises for anything else."""
    kind = {ENVELOPE: AgentEnvelope, TOOL_RESULT: ToolResult, APPROVAL: AgentEnvelope.Approval}[records]

    def read(value: bytes) -> Any:
        message: Any = parse(kind, value)
        check(message, b"")
        return message

    return read


def choose(candidates: Sequence[Candidate], trigger: Trigger) -> tuple[Candidate | None, str | None]:
    """Take the likeliest of several candidates, and say so where another might be meant.

    A whole envelope comes before a rebuilt one; of bare answers the one that was given at the attempt's time, else the
    last that was there when the attempt ran.
    """
    whole = [one for one in candidates if not one.rebuilt]
    bare = [one for one in candidates if one.rebuilt]
    if whole:
        distinct = {one.raw.value for one in whole}
        first = min(whole, key=_arrival)
        note = None
        if len(distinct) > 1:
            note = f"{len(distinct)} different envelopes have this key and event time; the first to arrive was taken"
        return first, note
    if not bare:
        return None, None
    at_time = [one for one in bare if one.records == HOOK or _given_at(one.envelope) == trigger.clock_ms]
    limit = trigger.sent_ms
    before = [one for one in bare if limit is None or (one.raw.timestamp_ms or 0) <= limit]
    chosen = min(at_time, key=_arrival) if at_time else max(before or bare, key=_arrival)
    note = "the envelope was rebuilt: its topic holds bare answers, and the one that wrapped it is on none"
    if chosen.records == HOOK:
        note = "the envelope was rebuilt: a hook decoded it from a record of another form"
    if len({one.raw.value for one in bare}) > 1:
        note += f"; {len(bare)} answers fit, and the likeliest was taken"
    return chosen, note


def windows(members: Sequence[Candidate], anchor: Candidate, trigger: Trigger) -> int:
    """In how many ways consecutive members can be the batch: it is known when there is one."""
    size = trigger.batch_size or 1
    runs = (members[at : at + size] for at in range(len(members) - size + 1))
    return sum(
        any(one.raw.offset == anchor.raw.offset for one in run)
        and max(one.envelope.event_time_ms for one in run) == trigger.clock_ms
        for run in runs
    )


def envelope_file(candidate: Candidate) -> Found:
    """Make evidence of the triggering record: its own bytes, or the rebuilt envelope with the original beside it."""
    log = Log(candidate.topic)
    name = f"{candidate.topic}-{candidate.partition}-{candidate.raw.offset}.pb"
    if not candidate.rebuilt:
        return record_file(log, Role.EVENT, name, candidate.partition, candidate.raw)
    value = candidate.raw.value or b""
    source = source_of(log, candidate.partition, [candidate.raw]) | {
        "rebuilt_from": candidate.records,
        "original_sha256": hashlib.sha256(value).hexdigest(),
    }
    if len(value) <= _KEPT_ORIGINAL:
        source["original"] = base64.b64encode(value).decode()
    return Found(EvidenceFile(Role.EVENT, f"rebuilt-{name}", serialize(candidate.envelope)), source)


def member_files(members: Sequence[Candidate]) -> list[Found]:
    """Make evidence of the envelopes around a batch, in the order of their arrival."""
    if not members:
        return []
    ordered = sorted(members, key=lambda one: one.raw.offset)
    # Of a rebuilt envelope the record's own bytes are something else.
    records = [one.raw._replace(value=serialize(one.envelope)) if one.rebuilt else one.raw for one in ordered]
    files = stream_files(Log(members[0].topic), Role.EVENTS, members[0].partition, records)
    if not members[0].rebuilt:
        return files
    return [Found(file.file, {**file.source, "rebuilt_from": members[0].records}) for file in files]


def _arrival(one: Candidate) -> tuple[int, str, int, int]:
    return one.raw.timestamp_ms or 0, one.topic, one.partition, one.raw.offset


def _given_at(envelope: AgentEnvelope) -> int:
    if envelope.WhichOneof("payload") == "tool_result":
        return envelope.tool_result.completed_at_ms
    return envelope.approval.decided_at_ms


__all__ = [
    "APPROVAL", "ENVELOPE", "TOOL_RESULT", "Candidate", "Trigger", "choose", "decoder", "envelope_file",
    "member_files", "windows",
]  # fmt: skip
