"""What a scan of a pipeline's topics found of a key, where intake has nothing of it: which attempt is meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.incidents.deliveries import ERRORS, INTENTS, SNAPSHOTS, TRACES, check
from app.incidents.segments import Raw
from app.incidents.triggers import Trigger
from app.replay.attempts import Category
from app.replay.evidence import TraceRecord
from app.replay.grouping import attempts_of
from app.wire.records import ActivationErrorRecord, AgentEnvelope, StateSnapshot, ToolIntent, TraceEvent, parse

KEYED: Final = {TRACES: "trace", INTENTS: "intent", ERRORS: "envelope", SNAPSHOTS: "snapshot"}
"""What the records of each stream are that names a key in its records."""

_MESSAGES: Final[dict[str, Any]] = {
    TRACES: TraceEvent, INTENTS: ToolIntent, ERRORS: AgentEnvelope, SNAPSHOTS: StateSnapshot,
}  # fmt: skip
_RAN: Final = (Category.ACTIVATION, Category.FAILURE, Category.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class Choice:
    """The attempt that is meant, and what triggered it; `sent_ms` is when its trace was sent."""

    seq: int
    status: str
    trigger: Trigger
    sent_ms: int | None


def key_reader(stream: str) -> Callable[[bytes], bytes]:
    """What reads the entity key out of a stream's record; it raises for what is no such record."""
    kind = _MESSAGES[stream]

    def read(value: bytes) -> bytes:
        message: Any = parse(kind, value)
        check(message, b"")
        if stream == ERRORS:
            return parse(ActivationErrorRecord, message.external_event).entity_key or message.entity_key
        return bytes(message.entity_key)

    return read


def choose_scanned(
    entity_key: bytes, found: Sequence[tuple[int, Raw]], seq: int | None, clock_ms: int | None
) -> Choice | None:
    """Choose among the attempts that some trace events show: the latest that ran, in a seq or at a time where told."""
    times: dict[bytes, int | None] = {}
    records: dict[bytes, TraceRecord] = {}
    for _, raw in found:
        content = raw.value or b""
        records.setdefault(content, TraceRecord(parse(TraceEvent, content), content))
        times[content] = raw.timestamp_ms
    attempts = [one for one in attempts_of(entity_key, records.values()) if one.category in _RAN]
    fitting = [
        one for one in attempts if seq in (None, one.seq) and clock_ms in (None, one.clock_ms)
    ]  # fmt: skip
    if not fitting:
        return None
    chosen = max(fitting, key=lambda one: one.clock_ms)
    peers = [one for one in attempts if one.seq == chosen.seq and one is not chosen]
    sent = [time for record in chosen.records if (time := times.get(record.content)) is not None]
    intents = frozenset(intent for peer in peers for intent in peer.intent_ids())
    sent_ms = max(sent, default=None)
    trigger = Trigger(entity_key, chosen.kind, chosen.clock_ms, intents, chosen.batch_size, sent_ms)
    return Choice(chosen.seq, chosen.status, trigger, sent_ms)
