"""A look at the newest records of a topic: are they what they should be, where they should be?"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from app.kafka.client import Reader, Records
from app.kafka.errors import BrokerError
from app.kafka.sweep import Halt, Stop, Sweep
from app.kafka.topics import RecordKind, Stream
from app.wire.records import (
    ActivationErrorRecord,
    AgentEnvelope,
    RecordError,
    StateSnapshot,
    ToolIntent,
    ToolResult,
    TraceEvent,
    parse,
)

_PARTITIONS: Final = 8
_EACH: Final = 50
_BYTES: Final = 32 * 1024 * 1024


@dataclass
class Sample:
    """What a look at the ends of a topic's partitions told.

    `held` offsets lie in the topic, `looked_at` records were read, `wrong` of them are not what they should be (the
    first one's `error` told). `placed` are keys and the partitions they are in, `other_keys` the records whose key is
    not their entity key, `newest_ms` the latest record timestamp.
    """

    partitions: int
    held: int
    kind: RecordKind | None
    stream: Stream | None
    looked_at: int = 0
    wrong: int = 0
    error: str = ""
    other_keys: int = 0
    newest_ms: int | None = None
    placed: set[tuple[bytes, int]] = field(default_factory=set)
    _size: int = 0

    def take(self, partition: int, run: Records) -> Halt | None:
        """Look at the next records; enough is enough when they are large."""
        for message in run:
            self.looked_at += 1
            kind, stamp = message.timestamp()
            if kind != TIMESTAMP_NOT_AVAILABLE:
                self.newest_ms = max(stamp, self.newest_ms or stamp)
            key, value = message.key(), message.value()
            if key is not None:
                self.placed.add((key, partition))
            self._judge(key, value)
            self._size += len(message)
            if self._size > _BYTES:
                return Halt(Stop.LIMIT, message.offset() or 0)
        return None

    def _judge(self, key: bytes | None, value: bytes | None) -> None:
        if value is None or self.kind is None:
            return
        try:
            entity_key = entity_of(self.kind, value, error=self.stream is Stream.ERRORS)
        except RecordError as error:
            self.wrong += 1
            self.error = self.error or str(error)
            return
        self.other_keys += entity_key is not None and entity_key != key


def take_sample(
    reader: Reader, topic: str, kind: RecordKind | None, stream: Stream | None, stall_s: float = 5.0
) -> Sample:
    """Read the ends of a topic's partitions, eight at most. Raises `BrokerError`."""
    partitions = reader.partitions(topic)
    low, high = reader.earliest(topic, partitions), reader.latest(topic, partitions)
    sample = Sample(len(partitions), sum(high[one] - low[one] for one in partitions), kind, stream)
    fullest = sorted(partitions, key=lambda one: low[one] - high[one])[:_PARTITIONS]
    ranges = {one: (max(low[one], high[one] - _EACH), high[one]) for one in fullest}
    lanes = Sweep(reader, topic, sample.take, cancelled=threading.Event(), stall_s=stall_s).read(ranges)
    for lane in lanes:
        if lane.stop in (Stop.FAILED, Stop.STALLED):
            raise BrokerError(reader.pipeline.name, f"cannot read {topic!r}: {lane.detail}", retriable=True)
    return sample


def entity_of(kind: RecordKind, value: bytes, *, error: bool = False) -> bytes | None:
    """The entity key that a record names; None for kinds that name none.

    Raises `RecordError` for bytes that are not that kind of record. Nearly any bytes parse as some protobuf message,
    so it insists on what every real record of the kind has. `error` is for dead letters: envelopes around an error.
    """
    match kind:
        case RecordKind.ENVELOPE:
            envelope = parse(AgentEnvelope, value)
            if error:
                inner = parse(ActivationErrorRecord, envelope.external_event)
                _insist(inner.reason, "AgentEnvelope", "it carries no ActivationErrorRecord with a reason")
            else:
                told = envelope.event_time_ms or envelope.WhichOneof("payload")
                _insist(told, "AgentEnvelope", "it has neither an event time nor a payload")
            return bytes(envelope.entity_key)
        case RecordKind.TRACE:
            trace = parse(TraceEvent, value)
            _insist(len(trace.trace_id) == 16, "TraceEvent", "its trace id does not have 16 bytes")
            return bytes(trace.entity_key)
        case RecordKind.SNAPSHOT:
            snapshot = parse(StateSnapshot, value)
            _insist(snapshot.state_schema_version, "StateSnapshot", "it has no schema version")
            return bytes(snapshot.entity_key)
        case RecordKind.INTENT:
            intent = parse(ToolIntent, value)
            _insist(intent.intent_id, "ToolIntent", "it has no intent id")
            return bytes(intent.entity_key)
        case RecordKind.TOOL_RESULT:
            result = parse(ToolResult, value)
            _insist(result.intent_id, "ToolResult", "it has no intent id")
            return bytes(result.entity_key)
        case RecordKind.APPROVAL:
            approval = parse(AgentEnvelope.Approval, value)
            _insist(approval.intent_id, "Approval", "it has no intent id")
    return None


def _insist(told: object, record: str, problem: str) -> None:
    if not told:
        raise RecordError(record, problem)
