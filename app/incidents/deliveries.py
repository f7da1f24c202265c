"""Looks at records as they are delivered: is each what its topic should hold, whose is it, and what is worth noting?

Nothing is refused. What cannot be read is kept raw like everything else, and told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from app.incidents.projection import MAX_KEY, Place, Traced
from app.incidents.segments import Delivered
from app.wire.records import (
    ActivationErrorRecord,
    AgentEnvelope,
    RecordError,
    StateSnapshot,
    ToolIntent,
    TraceEvent,
    parse,
)

TRACES: Final = "traces"
SNAPSHOTS: Final = "snapshots"
INTENTS: Final = "intents"
OUTPUTS: Final = "outputs"
ERRORS: Final = "errors"

_TRACE_ID: Final = 16
_SPAN_ID: Final = 8


class Batch(Protocol):
    """Records of one partition in the order of their offsets, as intake is handed them.

    `expected` is the offset at which the batch before ended, `absent` counts offsets since then without a record.
    """

    @property
    def stream(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def records(self) -> Sequence[Delivered]: ...
    @property
    def expected(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def absent(self) -> int: ...


class Keyed(NamedTuple):
    """Where a record of a key lies."""

    place: Place
    at_ms: int | None
    entity_key: bytes


class Seen(NamedTuple):
    """A snapshot that was sent, whoever asked for it."""

    place: Place
    at_ms: int | None
    entity_key: bytes
    seq: int
    snapshot_at_ms: int
    request_id: str
    suspended: bool
    size: int
    sha256: str


class Undecodable(NamedTuple):
    """A record that is not what its topic should hold, and why not."""

    place: Place
    size: int
    error: str


@dataclass
class Noted:
    """What is worth noting of some records."""

    traced: list[Traced] = field(default_factory=list)
    keyed: list[Keyed] = field(default_factory=list)
    snapshots: list[Seen] = field(default_factory=list)
    undecodable: list[Undecodable] = field(default_factory=list)
    tombstones: int = 0
    latest_ms: int | None = None
    latest_clock_ms: int | None = None


class Unusable(ValueError):
    """A record that is not what it should be."""


def note(stream: str, stream_id: int, partition: int, records: Sequence[Delivered]) -> Noted:
    """Look at records of one partition of a stream."""
    noted = Noted()
    look = _LOOKS[stream]
    for record in records:
        place = Place(stream_id, partition, record.offset)
        if record.value is None:
            noted.tombstones += 1
            continue
        try:
            look(noted, place, record, record.value)
        except (Unusable, RecordError, DecodeError) as error:
            noted.undecodable.append(Undecodable(place, len(record.value), str(error)))
    times = [time for record in records if (time := record.timestamp_ms) is not None]
    noted.latest_ms = max(times, default=None)
    noted.latest_clock_ms = max((traced.event.start_ms for traced in noted.traced), default=None)
    return noted


def mark_of(record: Delivered) -> bytes:
    """A digest of one record, by which a log that was made anew under the same name is recognised."""
    digest = hashlib.blake2b(repr((record.offset, record.timestamp_ms, record.key)).encode(), digest_size=8)
    digest.update(record.value or b"")
    return digest.digest()


def check(message: Any, key: bytes) -> None:
    """Refuse bytes that parse as this message and were another one, and keys that no index can hold."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        known = type(message).DESCRIPTOR.fields_by_number
        for item in unknown:
            if item.field_number in known:
                name = known[item.field_number].name
                raise Unusable(f"not a {type(message).DESCRIPTOR.name}: `{name}` does not have its type")
    _check_key(key)


def _check_key(key: bytes) -> None:
    if len(key) > MAX_KEY:
        raise Unusable(f"its key has {len(key)} bytes; one of at most {MAX_KEY} can be looked up")


def _trace(noted: Noted, place: Place, record: Delivered, value: bytes) -> None:
    event = TraceEvent()
    try:
        event.ParseFromString(value)
    except (DecodeError, ValueError) as error:
        raise Unusable(f"not a TraceEvent: {len(value)} bytes do not parse as one") from error
    key, trace_id, record_key = event.entity_key, event.trace_id, record.key or b""
    # Whole identities cannot come out of another message by chance; everything else is looked at closely.
    if len(trace_id) != _TRACE_ID or len(event.span_id) != _SPAN_ID:
        check(event, b"")
    if len(key) > MAX_KEY or len(record_key) > MAX_KEY:
        _check_key(max(key, record_key, key=len))
    noted.traced.append(Traced(event, value, place, record_key, (key, event.seq), trace_id))


def _intent(noted: Noted, place: Place, record: Delivered, value: bytes) -> None:
    intent = parse(ToolIntent, value)
    check(intent, intent.entity_key)
    noted.keyed.append(Keyed(place, record.timestamp_ms, intent.entity_key))


def _output(noted: Noted, place: Place, record: Delivered, value: bytes) -> None:
    key = record.key or b""  # outputs carry no key themselves
    _check_key(key)
    noted.keyed.append(Keyed(place, record.timestamp_ms, key))


def _error(noted: Noted, place: Place, record: Delivered, value: bytes) -> None:
    letter = parse(AgentEnvelope, value)
    check(letter, letter.entity_key)
    told = parse(ActivationErrorRecord, letter.external_event)
    check(told, told.entity_key)
    noted.keyed.append(Keyed(place, record.timestamp_ms, told.entity_key or letter.entity_key))


def _snapshot(noted: Noted, place: Place, record: Delivered, value: bytes) -> None:
    snapshot = parse(StateSnapshot, value)
    check(snapshot, snapshot.entity_key)
    if not snapshot.state_schema_version:
        raise Unusable("not a StateSnapshot: it has no state_schema_version")
    noted.snapshots.append(
        Seen(
            place,
            record.timestamp_ms,
            snapshot.entity_key,
            snapshot.seq,
            snapshot.snapshot_at_ms,
            snapshot.request_id,
            snapshot.HasField("continuation"),
            len(value),
            hashlib.sha256(value).hexdigest(),
        )
    )


_LOOKS: Final[dict[str, Callable[[Noted, Place, Delivered, bytes], None]]] = {
    TRACES: _trace,
    INTENTS: _intent,
    OUTPUTS: _output,
    ERRORS: _error,
    SNAPSHOTS: _snapshot,
}

__all__ = ["Batch", "Keyed", "Noted", "Seen", "Undecodable", "Unusable", "check", "mark_of", "note"]
