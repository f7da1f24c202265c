"""What time it is on a partition: the latest event time among its last records.

An export request is stamped with no later one. A stamp from the wall clock would, on a pipeline that lags, push the
watermark past timers that are not due, and wipe the very state it asks for.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from app.kafka.client import Reader, Records
from app.kafka.errors import BrokerError, Cancelled
from app.kafka.sweep import Stop, Sweep
from app.wire.records import AgentEnvelope, RecordError, parse

_FIRST: Final = 256
_GROWTH: Final = 16
_MOST: Final = _FIRST * _GROWTH**2


@dataclass
class Tail:
    """The end of one partition: its latest event time and record timestamp, None where nothing told one.

    `envelopes` of the records could be read, `undecodable` could not; offsets `start` up to `end` were looked at.
    """

    start: int
    end: int
    latest_event_ms: int | None = None
    latest_record_ms: int | None = None
    envelopes: int = 0
    undecodable: int = 0

    def take(self, _partition: int, run: Records) -> None:
        """Look at the next records."""
        for message in run:
            kind, stamp = message.timestamp()
            if kind != TIMESTAMP_NOT_AVAILABLE:
                self.latest_record_ms = max(stamp, self.latest_record_ms or stamp)
            value = message.value()
            if value is None:
                continue
            try:
                told = parse(AgentEnvelope, value)
            except RecordError:
                self.undecodable += 1
                continue
            self.envelopes += 1
            if told.event_time_ms:
                self.latest_event_ms = max(told.event_time_ms, self.latest_event_ms or told.event_time_ms)


def read_tail(
    reader: Reader, topic: str, partition: int, *, cancelled: threading.Event | None = None, stall_s: float = 5.0
) -> Tail:
    """Look at the end of a partition of envelopes, further back until an event time turns up, 65,536 offsets at most.

    Raises `BrokerError` when the broker does not let us, `Cancelled` when told to stop.
    """
    low = reader.earliest(topic, [partition])[partition]
    high = reader.latest(topic, [partition])[partition]
    tail = Tail(high, high)
    reach = _FIRST
    sweep = Sweep(reader, topic, tail.take, cancelled=cancelled or threading.Event(), stall_s=stall_s)
    while tail.latest_event_ms is None and tail.start > low and reach <= _MOST:
        start = max(low, high - reach)
        (lane,) = sweep.read({partition: (start, tail.start)})
        if lane.stop is Stop.CANCELLED:
            raise Cancelled
        if lane.stop not in (Stop.READ, Stop.OPEN):
            why = f"cannot read the end of {topic}/{partition}: {lane.detail}"
            raise BrokerError(reader.pipeline.name, why, retriable=True)
        tail.start = start
        reach *= _GROWTH
    return tail
