"""Find records by key, time or content in a topic, and say for each partition what was read and what was not.

It looks around the likely time first and widens until enough is found or everything was read. Every partition is read
unless enough turns up in the key's own, which is looked at first where the configuration names the partitioner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import Message

from app.kafka.client import TIMEOUT_S, Reader, Records
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError, Cancelled
from app.kafka.partition import partition_of
from app.kafka.query import Match, PartitionReport, Progress, Query, ScanResult, Undecodable
from app.kafka.records import record_of
from app.kafka.spans import Span, Spans
from app.kafka.sweep import Halt, Lane, Stop, Sweep
from app.kafka.topics import Stream
from app.kafka.windows import PROBING, Log

__all__ = ["Match", "PartitionReport", "Progress", "Query", "ScanResult", "Stop", "Undecodable", "scan"]

T = TypeVar("T")
Found = TypeVar("Found", Match[Any], Undecodable)

# What ends the scan as a whole, and not only the partition in which it happened.
_ENDING: Final = frozenset({Stop.FOUND, Stop.LIMIT, Stop.CANCELLED, Stop.STALLED})
_GROWTH: Final = 8
_WINDOWS: Final = 4
_PROGRESS_S: Final = 0.25
_KEPT_UNDECODABLE: Final = 1000
_KEPT_BYTES: Final = 64 * 1024 * 1024
# Finite reads: the last fetch of each partition should not dawdle.
_SCANNING: Final = {"fetch.wait.max.ms": 20}


def scan(
    pipeline: Pipeline,
    topic: str,
    query: Query[T],
    *,
    cancelled: threading.Event | None = None,
    progress: Callable[[Progress], object] | None = None,
    timeout_s: float = TIMEOUT_S,
    stall_s: float = 10.0,
) -> ScanResult[T]:
    """Look for records. Blocks until found, read through, cancelled, or the broker is silent for `stall_s` seconds.

    Raises `BrokerError` when the topic cannot be looked up at all; whatever fails later is told per partition. What is
    written while it reads is not looked at.
    """
    event = cancelled or threading.Event()
    with (
        Reader(pipeline, timeout_s=timeout_s, uncommitted=True, extra=PROBING) as prober,
        Reader(pipeline, timeout_s=timeout_s, extra=_SCANNING) as reader,
    ):
        log = Log(prober, topic, event)
        return _Scan(pipeline, log, query, reader, event, progress, stall_s).run()


@dataclass
class _Tally:
    """What has been read of one partition so far."""

    spans: Spans = field(default_factory=Spans)
    scanned: int = 0
    matched: int = 0
    undecodable: int = 0
    tombstones: int = 0
    removed: int = 0
    stop: Stop = Stop.UNREAD
    detail: str = ""


class _Scan(Generic[T]):
    """One scan from its first window to its report."""

    def __init__(
        self,
        pipeline: Pipeline,
        log: Log,
        query: Query[T],
        reader: Reader,
        cancelled: threading.Event,
        progress: Callable[[Progress], object] | None,
        stall_s: float,
    ) -> None:
        self._pipeline, self._log, self._query = pipeline, log, query
        self._cancelled, self._progress = cancelled, progress
        self._sweep = Sweep(reader, log.topic, self._take, cancelled=cancelled, stall_s=stall_s)
        asked = log.partitions if query.partitions is None else query.partitions
        self._tallies = {one: _Tally() for one in asked if one in log.low}
        self._matches: list[Match[T]] = []
        self._bad: list[Undecodable] = []
        self._kept = self._bad_kept = 0
        self._told = 0.0

    def run(self) -> ScanResult[T]:
        begun = time.monotonic()
        groups, order = self._order()
        try:
            for ranges in self._passes(groups):
                if (end := self._read(ranges)) is not None:
                    self._close(*end)
                    break
        except Cancelled:
            self._close(Stop.CANCELLED)
        except BrokerError as error:
            self._close(Stop.STALLED, error.problem)
        self._tell(last=True)
        matches, bad = _in_order(self._matches), _in_order(self._bad)
        reports = tuple(self._report(partition) for partition in sorted(self._tallies))
        return ScanResult(self._log.topic, matches, bad, reports, order, time.monotonic() - begun)

    def _order(self) -> tuple[list[tuple[int, ...]], str]:
        """Which partitions to read first, and how to say so."""
        everything = tuple(self._tallies)
        key = self._query.near_key if self._query.near_key is not None else self._query.key
        partitioner = self._pipeline.partitioner
        if self._query.partitions is not None:
            return [everything], f"only the partitions asked for: {', '.join(map(str, everything))}"
        if key is None or self._pipeline.topics.stream_of(self._log.topic) is not Stream.EVENTS:
            return [everything], "all partitions"
        if partitioner is None:
            return [everything], "all partitions: no `partitioner` is configured"
        own = partition_of(key, len(self._log.partitions), partitioner)
        if own is None:
            return [everything], f"all partitions: {partitioner} draws one by chance for the empty key"
        others = tuple(one for one in everything if one != own)
        return [(own,), others], f"partition {own} first, the key's own by {partitioner.told}; then all others"

    def _passes(self, groups: list[tuple[int, ...]]) -> Iterator[dict[int, Span]]:
        """Yield what to look at, nearest first; what was read already is left out when the turn comes."""
        around = self._query.around_ms
        if around is not None:
            for group in groups:
                slack = self._query.slack_ms
                for _ in range(_WINDOWS):
                    yield self._window(group, around, slack)
                    slack *= _GROWTH
        for group in groups:
            yield {one: (self._log.low[one], self._log.high[one]) for one in group}

    def _window(self, group: tuple[int, ...], around: int, slack: int) -> dict[int, Span]:
        """Find the offsets near a time; twice the slack behind it, since the first later record may not be the last."""
        starts = self._log.begin(dict.fromkeys(group, around - slack))
        ends = self._log.end(dict.fromkeys(group, around + 2 * slack))
        return {one: (starts[one], max(starts[one], ends[one])) for one in group}

    def _read(self, ranges: dict[int, Span]) -> tuple[Stop, str] | None:
        """Read what is new of the ranges; why and in which words to end the scan, or None to go on."""
        left = {
            one: self._tallies[one].spans.missing(*span)
            for one, span in ranges.items()
            if self._tallies[one].stop is not Stop.FAILED
        }
        while any(left.values()):
            # Forward in time before backward: a record is stamped after the event that it tells of.
            lanes = self._sweep.read({one: gaps.pop() for one, gaps in left.items() if gaps}, self._tell)
            for lane in lanes:
                self._book(lane)
                if lane.stop is Stop.FAILED:
                    left.pop(lane.partition)
            for lane in lanes:
                if lane.stop is not None and lane.stop in _ENDING:
                    return lane.stop, lane.detail
        return (Stop.FOUND, "") if self._enough() else None

    def _book(self, lane: Lane) -> None:
        tally = self._tallies[lane.partition]
        tally.spans.add(lane.start, lane.next)
        tally.scanned += lane.scanned
        tally.removed += lane.removed
        if lane.stop in (Stop.OPEN, Stop.FAILED):
            tally.stop, tally.detail = lane.stop, lane.detail

    def _close(self, stop: Stop, detail: str = "") -> None:
        """Give what was not read to its end the reason why the scan ended."""
        for tally in self._tallies.values():
            if tally.stop is Stop.UNREAD:
                tally.stop, tally.detail = stop, detail

    def _enough(self) -> bool:
        return self._query.enough is not None and len(self._matches) >= self._query.enough

    def _take(self, partition: int, run: Records) -> Halt | None:
        tally = self._tallies[partition]
        for message in self._sift(run):
            if (stop := self._look_at(tally, message)) is not None:
                return Halt(stop, message.offset() or 0)
        return None

    def _sift(self, run: Records) -> Records:
        """Drop what cannot match without making anything of it: nearly all records end here."""
        wanted = self._query.key
        if wanted is not None:
            if wanted not in map(Message.key, run):
                return []
            run = [message for message in run if message.key() == wanted]
        for needle in self._query.contains:
            run = _having(needle, run)
        return run

    def _look_at(self, tally: _Tally, message: Message[Any, Any]) -> Stop | None:
        query, value = self._query, message.value()
        decoded: T | None = None
        tally.tombstones += value is None
        if query.decode is not None and value is not None:
            try:
                decoded = query.decode(value)
            except Exception as error:  # noqa: BLE001  whatever a decoder does with poison, the scan goes on
                self._keep_undecodable(tally, message, error)
                return None
        if query.match is not None and (decoded is None or not query.match(record_of(message), decoded)):
            return None
        record = record_of(message)
        tally.matched += 1
        self._kept += record.size
        self._matches.append(Match(record, decoded))
        if len(self._matches) >= query.most or self._kept >= query.most_bytes:
            return Stop.LIMIT
        return Stop.FOUND if query.at_once and self._enough() else None

    def _keep_undecodable(self, tally: _Tally, message: Message[Any, Any], error: Exception) -> None:
        tally.undecodable += 1
        record = record_of(message)
        if len(self._bad) < _KEPT_UNDECODABLE and self._bad_kept + record.size <= _KEPT_BYTES:
            self._bad_kept += record.size
            self._bad.append(Undecodable(record, f"{type(error).__name__}: {error}"))

    def _tell(self, *, last: bool = False) -> None:
        if self._progress is None or (not last and time.monotonic() - self._told < _PROGRESS_S):
            return
        self._told = time.monotonic()
        tallies = self._tallies.values()
        self._progress(
            Progress(
                self._log.topic,
                sum(one.scanned for one in tallies) + self._sweep.scanned,
                len(self._matches),
                sum(one.undecodable for one in tallies),
                sum(len(one.spans) for one in tallies) + self._sweep.passed,
                sum(self._log.high[one] - self._log.low[one] for one in self._tallies),
            )
        )

    def _report(self, partition: int) -> PartitionReport:
        tally = self._tallies[partition]
        low, high = self._log.low[partition], self._log.high[partition]
        whole = not tally.spans.missing(low, high)
        return PartitionReport(
            partition,
            low,
            high,
            tuple(tally.spans),
            tally.scanned,
            tally.matched,
            tally.undecodable,
            tally.tombstones,
            len(tally.spans) - tally.scanned - tally.removed,
            tally.removed,
            Stop.READ if whole else tally.stop,
            "" if whole else tally.detail,
        )


def _having(needle: bytes, run: Records) -> Records:
    """Keep the messages whose value has the needle in it; one search through all of them tells that mostly none has."""
    # Only the client's own methods and a join touch all of them: this is the hot path.
    values: list[Any] = list(map(Message.value, run))
    try:
        whole = b"".join(values)
    except TypeError:  # tombstones are among them
        values = [value or b"" for value in values]
        whole = b"".join(values)
    if needle not in whole:
        return []
    return [message for message, value in zip(run, values, strict=True) if needle in value]


def _in_order(found: list[Found]) -> tuple[Found, ...]:
    """By partition and offset; only an order that depends on nothing else can be compared."""
    return tuple(sorted(found, key=lambda one: (one.record.partition, one.record.offset)))
