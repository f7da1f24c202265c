"""What an investigation looks for: the record that triggered an attempt, and what the attempt left behind.

The message decides, not the record's key: whoever fills the events topic may key it as they like. The bytes of a key
or an intent id are in the message's bytes as they are, so nearly all records are passed over without decoding.
"""

from __future__ import annotations

from typing import Any, Final

from app.kafka.query import Query
from app.kafka.records import Record
from app.kafka.topics import RecordKind, decoder

__all__ = ["by_clock", "by_intent", "by_request", "of_key", "starts_of"]

_KEYED: Final = frozenset(
    {RecordKind.ENVELOPE, RecordKind.TRACE, RecordKind.SNAPSHOT, RecordKind.INTENT, RecordKind.TOOL_RESULT}
)
_WITH_SEQ: Final = frozenset({RecordKind.TRACE, RecordKind.INTENT, RecordKind.TOOL_RESULT})
_WITH_INTENT: Final = frozenset({RecordKind.ENVELOPE, RecordKind.TOOL_RESULT, RecordKind.APPROVAL, RecordKind.INTENT})


def by_intent(intent_id: str, kind: RecordKind, *, around_ms: int | None = None) -> Query[Any]:
    """Records that carry an intent id: an intent itself, or the tool result or approval that answers it."""
    if kind not in _WITH_INTENT or not intent_id:
        raise ValueError(f"a record of kind {kind} is not found by intent id {intent_id!r}")

    def match(_: Record, message: Any) -> bool:
        if kind is RecordKind.ENVELOPE:
            payload = message.WhichOneof("payload")
            return bool(payload in {"tool_result", "approval"} and getattr(message, payload).intent_id == intent_id)
        return bool(message.intent_id == intent_id)

    return Query(contains=(intent_id.encode(),), decode=decoder(kind), match=match, around_ms=around_ms)


def by_clock(key: bytes, clock_ms: int) -> Query[Any]:
    """Envelopes of a key that carry exactly this event time; export requests do not count."""

    def match(_: Record, message: Any) -> bool:
        fits = message.entity_key == key and message.event_time_ms == clock_ms
        return bool(fits and message.WhichOneof("payload") != "export_request")

    return _of(key, RecordKind.ENVELOPE, match, clock_ms)


def starts_of(key: bytes, clock_ms: int, count: int) -> Query[Any]:
    """Envelopes that start an activation of a key, no later than a clock: at least `count` of those near to it.

    For a batch: its members are the last `count` in arrival order up to the one that filled it.
    """

    def match(_: Record, message: Any) -> bool:
        starts = message.WhichOneof("payload") in {None, "external_event"}
        return starts and message.entity_key == key and message.event_time_ms <= clock_ms

    return _of(key, RecordKind.ENVELOPE, match, clock_ms, enough=count)


def of_key(
    key: bytes, kind: RecordKind, *, seq: int | None = None, around_ms: int | None = None, enough: int | None = None
) -> Query[Any]:
    """Records of a key, of one seq where the kind tells it; every one there is unless `enough` are."""
    if kind not in _KEYED or (seq is not None and kind not in _WITH_SEQ):
        raise ValueError(f"records of kind {kind} are not found by key" + (" and seq" if seq is not None else ""))

    def match(_: Record, message: Any) -> bool:
        return bool(message.entity_key == key and (seq is None or message.seq == seq))

    return _of(key, kind, match, around_ms, enough=enough)


def by_request(key: bytes, request_id: str, *, around_ms: int | None = None) -> Query[Any]:
    """Snapshots that answer an export request; every one there is, since a request may be answered twice."""

    def match(_: Record, message: Any) -> bool:
        return bool(message.request_id == request_id and message.entity_key == key)

    wanted = (request_id.encode(),)
    return Query(contains=wanted, decode=decoder(RecordKind.SNAPSHOT), match=match, around_ms=around_ms, enough=None)


def _of(key: bytes, kind: RecordKind, match: Any, around_ms: int | None, *, enough: int | None = 1) -> Query[Any]:
    # The empty key is left out of a message's bytes, so there is nothing to look for.
    needles = (key,) if key else ()
    return Query(contains=needles, decode=decoder(kind), match=match, around_ms=around_ms, enough=enough, near_key=key)
