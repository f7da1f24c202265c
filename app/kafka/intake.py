"""Follow what a pipeline sends out, from given offsets on, in batches that are ready to be stored.

Exactly once is the caller's: it stores a batch and its `next_offset` in one transaction, and hands the stored offsets
in when it begins again. Nothing is committed at the broker. Back-pressure is not pulling: what is fetched ahead is
bounded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from confluent_kafka import Message

from app.kafka.client import TIMEOUT_S, Reader, Records
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError, Cancelled
from app.kafka.records import Record, record_of
from app.kafka.topics import FOLLOWED, Stream
from app.kafka.troubles import END_OF_PARTITION, OUT_OF_RANGE, plain
from app.kafka.windows import PROBING, Log

__all__ = ["Batch", "Follower", "Gap", "GapReason", "Place", "Start"]

Place = tuple[str, int]
"""A topic and a partition of it."""

_CHUNK: Final = 1000
_RETRY_S: Final = 0.5
_REFRESH_S: Final = 30.0
_RECHECK_S: Final = 2.0
# A client that was refused goes on with the password it read; a new one reads it again.
_RENEW_S: Final = 60.0
_FOLLOWING: Final[Mapping[str, Any]] = {
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 32 * 1024,
    "fetch.max.bytes": 16 * 1024 * 1024,
}


class Start(StrEnum):
    """Where to begin in a partition for which no offset was stored."""

    BEGINNING = "beginning"
    END = "end"


class GapReason(StrEnum):
    """Why offsets between two batches were never delivered."""

    REMOVED = "retention removed them before they were read"
    ANEW = "the log ends before the stored offset: the topic was made anew or lost its end"


@dataclass(frozen=True)
class Batch:
    """Records of one partition in the order of their offsets, raw; `next_offset` is where to go on once it is stored.

    `expected` is the offset that the batch before announced; offsets in between and inside that have no record
    (compacted away, aborted, transaction markers) are `absent`.
    """

    stream: Stream
    topic: str
    partition: int
    records: tuple[Record, ...]
    expected: int

    @property
    def first_offset(self) -> int:
        return self.records[0].offset

    @property
    def last_offset(self) -> int:
        return self.records[-1].offset

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def absent(self) -> int:
        return self.next_offset - self.expected - len(self.records)


@dataclass(frozen=True)
class Gap:
    """Records that are lost to us: `expected` up to `next_offset`, which is where reading goes on."""

    stream: Stream
    topic: str
    partition: int
    expected: int
    next_offset: int
    reason: GapReason


class Follower:
    """Follows the output streams of one pipeline. One thread at a time; `close` it, or use it in a `with`.

    `positions` are the offsets to go on from, by (topic, partition). Where none is given, `start` says where to begin:
    a `Start`, or a time in epoch milliseconds. Partitions that appear later are read from their beginning.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        positions: Mapping[Place, int],
        *,
        start: Start | int = Start.BEGINNING,
        streams: Iterable[Stream] = FOLLOWED,
        most_records: int = 5_000,
        most_bytes: int = 8 * 1024 * 1024,
        refresh_s: float = _REFRESH_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        followed = pipeline.topics.followed()
        self.pipeline = pipeline
        self.missing: dict[str, str] = {}
        self._streams = {followed[stream]: stream for stream in streams if stream in followed}
        self._given = dict(positions)
        self._start = start
        self._most_records, self._most_bytes = most_records, most_bytes
        self._refresh_s, self._timeout_s = refresh_s, timeout_s
        self._next: dict[Place, int] = {}
        self._ended: set[Place] = set()
        self._known: set[str] = set()
        self._reader: Reader | None = None
        self._looked = self._well = time.monotonic()
        self._trouble: str | None = None
        # The client's position is no longer ours: what it had handed over was not handed on.
        self._stale = False

    def pull(self, wait_s: float = 1.0) -> list[Batch | Gap]:
        """Take what has arrived, waiting at most about `wait_s` seconds for something; empty when nothing came.

        Never raises for a broker that is away: `trouble` says so, and the next call tries again.
        """
        try:
            reader = self._ready()
            found = self._sort(reader, self._take(reader, wait_s))
        except BrokerError as error:
            self._trouble = str(error)
            self._stale = True
            time.sleep(min(wait_s, _RETRY_S))
            return self._renew()
        self._trouble = None
        if reader.trouble is None:
            self._well = time.monotonic()
        elif time.monotonic() - self._well > _RENEW_S:
            return found + self._renew()
        return found

    @property
    def trouble(self) -> str | None:
        """What keeps us from the broker at the moment, in plain words; None when nothing does."""
        return self._trouble or (self._reader.trouble if self._reader is not None else None)

    @property
    def caught_up(self) -> bool:
        """Whether every partition that is followed has been read to its end."""
        return bool(self._next) and self._ended >= self._next.keys()

    @property
    def positions(self) -> Mapping[Place, int]:
        """The next offset of each partition that is followed, by what was handed out."""
        return dict(self._next)

    def lags(self) -> dict[Place, int]:
        """How many offsets of each partition are still to come, as far as the last fetches tell."""
        ends = {place: self._reader.known_end(*place) if self._reader else None for place in self._next}
        return {place: max(0, end - self._next[place]) for place, end in ends.items() if end is not None}

    def rewind(self, positions: Mapping[Place, int]) -> None:
        """Go on from these offsets instead, because what was handed out could not be stored."""
        self._given.update(positions)
        self._next.update({place: offset for place, offset in positions.items() if place in self._next})
        self._ended.clear()
        self._stale = True

    def close(self) -> None:
        """Let go of the connections; harmless when repeated."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _renew(self) -> list[Batch | Gap]:
        """Make the client anew at the next call when the old one has been in trouble for long."""
        if time.monotonic() - self._well > _RENEW_S:
            self.close()
            self._well = time.monotonic()
        return []

    def _ready(self) -> Reader:
        """Have a reader that is assigned to every partition there is."""
        if self._reader is None:
            reader = Reader(self.pipeline, timeout_s=self._timeout_s, extra=_FOLLOWING)
            try:
                self._discover(reader)
                reader.assign(self._next)
            except BaseException:
                reader.close()
                raise
            self._reader = reader
            self._ended.clear()
        elif self._due(self._reader):
            self._stale = self._discover(self._reader) or self._stale
        if self._stale:
            self._reader.assign(self._next)
            self._stale = False
        return self._reader

    def _due(self, reader: Reader) -> bool:
        """Whether to look for new partitions; soon where a topic is missing, or to see if a trouble has passed."""
        pending = self._known < self._streams.keys() or reader.trouble is not None
        return time.monotonic() - self._looked > (min(self._refresh_s, _RECHECK_S) if pending else self._refresh_s)

    def _discover(self, reader: Reader) -> bool:
        """Look for topics and partitions that are not followed yet; whether there were any."""
        self._looked = time.monotonic()
        before = len(self._next)
        for topic in self._streams:
            try:
                partitions = reader.partitions(topic)
            except BrokerError as error:
                if error.retriable:
                    raise
                self.missing[topic] = str(error)
                continue
            fresh = [one for one in partitions if (topic, one) not in self._next]
            given = {(topic, one): self._given[topic, one] for one in fresh if (topic, one) in self._given}
            self._next.update(given)
            if rest := [one for one in fresh if (topic, one) not in given]:
                self._next.update({(topic, one): at for one, at in self._begin(reader, topic, rest).items()})
            self.missing.pop(topic, None)
            self._known.add(topic)
        return len(self._next) > before

    def _begin(self, reader: Reader, topic: str, partitions: list[int]) -> dict[int, int]:
        late = topic in self._known or topic in self.missing or any(place[0] == topic for place in self._given)
        if late or self._start is Start.BEGINNING:
            return reader.earliest(topic, partitions)
        if self._start is Start.END:
            return reader.latest(topic, partitions)
        with Reader(self.pipeline, timeout_s=self._timeout_s, uncommitted=True, extra=PROBING) as prober:
            try:
                log = Log(prober, topic, threading.Event())
                return log.begin(dict.fromkeys(partitions, int(self._start)))
            except Cancelled:  # pragma: no cover  nobody sets that event
                return reader.earliest(topic, partitions)

    def _take(self, reader: Reader, wait_s: float) -> Records:
        """Collect what is there, up to the limits; a single message may be larger than them."""
        taken = reader.batch(_CHUNK, wait_s)
        size = sum(map(len, taken))
        while taken and len(taken) < self._most_records and size < self._most_bytes:
            more = reader.batch(min(_CHUNK, self._most_records - len(taken)), 0.0)
            if not more:
                break
            taken += more
            size += sum(map(len, more))
        return taken

    def _sort(self, reader: Reader, messages: Records) -> list[Batch | Gap]:
        """Put messages together by partition; gaps stand before what came after them."""
        found: list[Batch | Gap] = []
        runs: dict[Place, list[Record]] = {}
        for message in messages:
            place = (message.topic() or "", message.partition() or 0)
            if place not in self._next:
                continue
            if message.error() is not None:
                if place in runs and not _at_end(message):
                    self._stale = True  # hand on what came before it; asked again, the broker will say it again
                else:
                    found += self._event(reader, place, message)
                continue
            run = runs.setdefault(place, [])
            # What was under way when reading began elsewhere, and compressed batches, bring offsets of before.
            if (message.offset() or 0) >= (run[-1].offset + 1 if run else self._next[place]):
                run.append(record_of(message))
                self._ended.discard(place)
        for place, run in runs.items():
            if run:
                batch = Batch(self._streams[place[0]], *place, tuple(run), self._next[place])
                found.append(batch)
                self._next[place] = batch.next_offset
        return found

    def _event(self, reader: Reader, place: Place, message: Message[Any, Any]) -> list[Batch | Gap]:
        if _at_end(message):
            self._ended.add(place)
            return []
        error = message.error()
        assert error is not None
        if error.code() == OUT_OF_RANGE:
            return self._out_of_range(reader, place)
        raise BrokerError(self.pipeline.name, f"cannot read {place[0]}/{place[1]}: {plain(error)}", retriable=True)

    def _out_of_range(self, reader: Reader, place: Place) -> list[Batch | Gap]:
        topic, partition = place
        low = reader.earliest(topic, [partition])[partition]
        high = reader.latest(topic, [partition])[partition]
        expected = self._next[place]
        gaps: list[Batch | Gap] = []
        if not low <= expected <= high:
            reason = GapReason.REMOVED if expected < low else GapReason.ANEW
            gaps.append(Gap(self._streams[topic], topic, partition, expected, low, reason))
            self._next[place] = low
        self._stale = True
        return gaps


def _at_end(message: Message[Any, Any]) -> bool:
    error = message.error()
    return error is not None and error.code() == END_OF_PARTITION
