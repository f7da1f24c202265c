"""From a time to offsets, with the broker's time index or, where it has none, by bisecting.

Timestamps are whatever producers wrote: they need not rise. What is found here is where to begin to look, never a
proof that nothing lies beyond.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from app.kafka.client import Offsets, Reader
from app.kafka.errors import BrokerError, Cancelled

# Bisecting stops here; reading so many records costs less than another round.
_CLOSE: Final = 128
_PEEK: Final = 64

PROBING: Final[Mapping[str, Any]] = {
    # Little at a time: of each place only a look is wanted.
    "fetch.message.max.bytes": 64 * 1024,
    "fetch.max.bytes": 4 * 1024 * 1024,
    "queued.min.messages": 1,
    "fetch.wait.max.ms": 20,
}


class Log:
    """Where one topic's partitions begin and end, and where a time is in them.

    `reader` has to read uncommitted, made with `extra=PROBING`: `high` is the true end of the log, whatever
    transactions hold back. Raises `BrokerError`.
    """

    def __init__(self, reader: Reader, topic: str, cancelled: threading.Event | None = None) -> None:
        self._reader = reader
        self._cancelled = cancelled or threading.Event()
        self._has_index: bool | None = None
        self.topic = topic
        self.partitions = reader.partitions(topic)
        self.low = reader.earliest(topic, self.partitions)
        self.high = reader.latest(topic, self.partitions)

    def begin(self, times: Mapping[int, int]) -> Offsets:
        """By partition, an offset before which no record is stamped at or after a time, were timestamps to rise."""
        return self._looked_up(times) if self._indexed() else self._bisect(times)[0]

    def end(self, times: Mapping[int, int]) -> Offsets:
        """By partition, an offset from which on all records are stamped at or after a time, were timestamps to rise."""
        return self._looked_up(times) if self._indexed() else self._bisect(times)[1]

    def _looked_up(self, times: Mapping[int, int]) -> Offsets:
        found = self._reader.indexed(self.topic, times)
        return {one: self.high[one] if offset < 0 else min(offset, self.high[one]) for one, offset in found.items()}

    def _indexed(self) -> bool:
        """Whether the broker looks times up: then every record is at or after the beginning of time."""
        if self._has_index is None:
            filled = [one for one in self.partitions if self.low[one] < self.high[one]]
            answers = self._reader.indexed(self.topic, dict.fromkeys(filled, 0)) if filled else {}
            self._has_index = bool(filled) and all(offset >= 0 for offset in answers.values())
        return self._has_index

    def _bisect(self, times: Mapping[int, int]) -> tuple[Offsets, Offsets]:
        """Close in from both sides, all partitions in step: their fetches wait for each other only once a round."""
        low = {partition: self.low[partition] for partition in times}
        high = {partition: self.high[partition] for partition in times}
        undated: set[int] = set()
        while wide := {
            one: (low[one] + high[one]) // 2 for one in times if high[one] - low[one] > _CLOSE and one not in undated
        }:
            for partition, seen in self._peek(wide).items():
                middle = wide[partition]
                stamps = sorted(stamp for offset, stamp in seen if offset < high[partition] and stamp is not None)
                if stamps:
                    last, wanted = seen[-1][0], times[partition]
                    low[partition], high[partition] = _narrow(
                        low[partition], high[partition], middle, last, stamps, wanted
                    )
                elif seen and seen[0][0] < high[partition]:
                    # Records without a time say nothing about where to look: everything may be meant.
                    low[partition], high[partition] = self.low[partition], self.high[partition]
                    undated.add(partition)
                else:
                    high[partition] = middle
        return low, high

    def _peek(self, places: Offsets) -> dict[int, list[tuple[int, int | None]]]:
        """Look at a few records from each place on: (offset, time); none where the log holds nothing behind it."""
        self._reader.assign({(self.topic, partition): offset for partition, offset in places.items()})
        seen: dict[int, list[tuple[int, int | None]]] = {}
        deadline = time.monotonic() + self._reader.timeout_s
        while len(seen) < len(places):
            if self._cancelled.is_set():
                raise Cancelled
            if time.monotonic() > deadline:
                why = self._reader.trouble or "the broker did not answer in time"
                raise BrokerError(self._reader.pipeline.name, f"cannot look into {self.topic!r}: {why}", retriable=True)
            fresh: dict[int, list[tuple[int, int | None]]] = {}
            for message in self._reader.batch(1000, 0.1):
                partition, offset = message.partition() or 0, message.offset() or 0
                if partition not in places or partition in seen:
                    continue
                run = fresh.setdefault(partition, [])
                if message.error() is None and offset >= places[partition] and len(run) < _PEEK:
                    kind, stamp = message.timestamp()
                    run.append((offset, None if kind == TIMESTAMP_NOT_AVAILABLE else stamp))
            seen |= fresh
        return seen


def _narrow(low: int, high: int, middle: int, last: int, stamps: list[int], wanted: int) -> tuple[int, int]:
    """Close in on a time, given the ascending stamps of the records from `middle` to `last`.

    One clock that is wrong must not lead astray, so where the records disagree the bulk of them decides.
    """
    behind = min(last + 1, high)
    if stamps[-1] < wanted:
        return behind, high
    if stamps[0] >= wanted:
        return low, middle
    if stamps[len(stamps) * 3 // 4] < wanted:
        return middle, high
    if stamps[len(stamps) // 4] >= wanted:
        return low, behind if behind < high else middle
    return middle, behind
