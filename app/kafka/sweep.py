"""Read ranges of offsets once, and know for each partition why reading ended.

The end of a range is a position, never "the last record seen": the last offsets may be transaction markers, which no
client is handed, or may have been compacted away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

from confluent_kafka import Message

from app.kafka.client import Reader, Records
from app.kafka.errors import BrokerError
from app.kafka.spans import Span
from app.kafka.troubles import END_OF_PARTITION, OUT_OF_RANGE, plain

BATCH: Final = 1000
"""Messages taken from the client at once: one by one costs several times as much."""

_WAIT_S: Final = 0.1


class Stop(StrEnum):
    """Why reading a partition ended."""

    READ = "everything in range was read"
    FOUND = "enough was found"
    LIMIT = "the limit on matches was reached"
    CANCELLED = "cancelled"
    OPEN = "an unfinished transaction holds back the rest"
    STALLED = "the broker stopped answering"
    FAILED = "the broker refused"
    UNREAD = "not read"


@dataclass
class Lane:
    """One partition's range while it is read: `next` is the first offset not read yet."""

    partition: int
    start: int
    end: int
    next: int = 0
    scanned: int = 0
    removed: int = 0
    stop: Stop | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        self.next = self.start


@dataclass(frozen=True)
class Halt:
    """Everything is to stop, and the offset of the last record that was looked at."""

    stop: Stop
    offset: int


Take = Callable[[int, Records], Halt | None]
"""Is handed a partition and its next messages in order; returns a `Halt`, or None to go on."""


class Sweep:
    """Reads one range per partition, all at once, through one reader."""

    def __init__(
        self, reader: Reader, topic: str, take: Take, *, cancelled: threading.Event, stall_s: float = 10.0
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._take = take
        self._cancelled = cancelled
        self._stall_s = stall_s
        self._lanes: list[Lane] = []
        self._open: dict[int, Lane] = {}

    def read(self, ranges: Mapping[int, Span], on_batch: Callable[[], object] = lambda: None) -> list[Lane]:
        """Read until every range is done, `take` says stop, or the broker gives out; never raises for the latter."""
        self._lanes = lanes = [Lane(partition, *span) for partition, span in sorted(ranges.items())]
        self._open = {lane.partition: lane for lane in lanes if lane.start < lane.end}
        for lane in lanes:
            if lane.partition not in self._open:
                lane.stop = Stop.READ
        try:
            self._assign()
            self._loop(on_batch)
        except BrokerError as error:
            self._end_all(Stop.FAILED, str(error))
        self._lanes = []
        return lanes

    @property
    def scanned(self) -> int:
        """Records seen in the partitions that are being read."""
        return sum(lane.scanned for lane in self._lanes)

    @property
    def passed(self) -> int:
        """Offsets passed in the partitions that are being read."""
        return sum(lane.next - lane.start for lane in self._lanes)

    def _loop(self, on_batch: Callable[[], object]) -> None:
        alive = time.monotonic()
        while self._open:
            if self._cancelled.is_set():
                return self._end_all(Stop.CANCELLED)
            batch = self._reader.batch(BATCH, _WAIT_S)
            if batch:
                for partition, run in _runs(batch, self._reader.events):
                    self._feed(partition, run)
                alive = time.monotonic()
            elif time.monotonic() - alive > self._stall_s:
                why = self._reader.trouble or f"nothing came for {self._stall_s:.0f} s"
                return self._end_all(Stop.STALLED, why)
            on_batch()
        return None

    def _feed(self, partition: int, run: Records) -> None:
        lane = self._open.get(partition)
        if lane is None:
            return None  # what was on its way when the partition was finished
        if run[0].error() is not None:
            return self._event(lane, run[0])
        last = run[-1].offset() or 0
        if (run[0].offset() or 0) < lane.next or last >= lane.end:
            # A compressed batch is delivered whole: records below the asked offset are not ours, nor those above.
            run = [message for message in run if lane.next <= (message.offset() or 0) < lane.end]
        if run:
            halt = self._take(partition, run)
            seen = run if halt is None else [one for one in run if (one.offset() or 0) <= halt.offset]
            lane.scanned += len(seen)
            lane.next = (seen[-1].offset() or 0) + 1
            if halt is not None:
                return self._end_all(halt.stop)
        if last + 1 >= lane.end:
            self._finish(lane, Stop.READ)
        return None

    def _event(self, lane: Lane, message: Message[Any, Any]) -> None:
        error = message.error()
        assert error is not None
        if error.code() == END_OF_PARTITION:
            reached = message.offset() or 0
            if reached >= lane.end:
                self._finish(lane, Stop.READ)
            else:
                lane.next = max(lane.next, reached)
                self._finish(lane, Stop.OPEN, f"offsets {lane.next} to {lane.end - 1} are not committed yet")
        elif error.code() == OUT_OF_RANGE:
            self._skip_removed(lane)
        else:
            self._finish(lane, Stop.FAILED, plain(error))

    def _skip_removed(self, lane: Lane) -> None:
        """Go on where the log now begins: retention has overtaken the reader."""
        begins = min(self._reader.earliest(self._topic, [lane.partition])[lane.partition], lane.end)
        if begins <= lane.next:
            return self._finish(lane, Stop.FAILED, f"offset {lane.next} is not in the log any more; was it made anew?")
        lane.removed += begins - lane.next
        lane.next = begins
        if begins >= lane.end:
            return self._finish(lane, Stop.READ)
        return self._assign()

    def _assign(self) -> None:
        self._reader.assign({(self._topic, lane.partition): lane.next for lane in self._open.values()})

    def _finish(self, lane: Lane, stop: Stop, detail: str = "") -> None:
        lane.stop, lane.detail = stop, detail
        if stop is Stop.READ:
            lane.next = lane.end
        del self._open[lane.partition]
        if self._open:
            self._reader.pause(self._topic, lane.partition)

    def _end_all(self, stop: Stop, detail: str = "") -> None:
        for lane in self._open.values():
            lane.stop, lane.detail = stop, detail
        self._open.clear()


def _runs(batch: Records, events: bool) -> Iterator[tuple[int, Records]]:
    """Cut a batch where the partition changes; an event (a message with an error) is a run of its own."""
    # `map` and `groupby` over the client's own methods stay out of the interpreter: this is the hot path.
    if not events:
        if len(set(map(Message.partition, batch))) == 1:
            yield batch[0].partition() or 0, batch
            return
        for partition, run in groupby(batch, Message.partition):
            yield partition or 0, list(run)
        return
    for (partition, plain_run), run in groupby(batch, lambda one: (one.partition(), one.error() is None)):
        messages = list(run)
        for part in [messages] if plain_run else ([one] for one in messages):
            yield partition or 0, part
