"""What to look for in a topic, and what was found: plain values, with nothing of the broker in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.kafka.records import Record
from app.kafka.spans import Span
from app.kafka.sweep import Stop

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Query(Generic[T]):
    """Which records are looked for. Conditions that are not given hold for every record.

    `key` is the record's exact key. `contains` are bytes that the value must have somewhere: a string field of a
    message is in its bytes as it is, so this spares decoding what cannot match. `decode` makes the message (raising
    for what it cannot read), `match` looks at it. `around_ms` is where to look first, `slack_ms` how far to either
    side; that widens until `enough` records have matched or everything was read. None of `enough` reads everything;
    `at_once` stops in the middle of a window. `near_key` names the key whose partition is read first; by default `key`.
    """

    key: bytes | None = None
    contains: tuple[bytes, ...] = ()
    decode: Callable[[bytes], T] | None = None
    match: Callable[[Record, T], bool] | None = None
    around_ms: int | None = None
    slack_ms: int = 60_000
    enough: int | None = 1
    at_once: bool = False
    near_key: bytes | None = None
    partitions: tuple[int, ...] | None = None
    most: int = 10_000
    most_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.match is not None and self.decode is None:
            raise ValueError("a query that matches on the message needs to know how to decode it")
        if self.slack_ms < 1:
            raise ValueError("the slack of a query must be at least a millisecond")


@dataclass(frozen=True)
class Match(Generic[T]):
    """A record that was looked for; `message` is None where the query decodes nothing, and for a tombstone."""

    record: Record
    message: T | None


@dataclass(frozen=True)
class Undecodable:
    """A record that could not be read as what it should be, kept as it is."""

    record: Record
    error: str


@dataclass(frozen=True)
class PartitionReport:
    """What was read of one partition, and why not more.

    The log held offsets `low` up to `high`. `spans` were read: `scanned` records, of which `matched` did and
    `undecodable` could not be read. `absent` offsets hold no record (compacted away, aborted, or a transaction's
    marker); `removed` ones were deleted by retention before the reader came to them.
    """

    partition: int
    low: int
    high: int
    spans: tuple[Span, ...]
    scanned: int
    matched: int
    undecodable: int
    tombstones: int
    absent: int
    removed: int
    stop: Stop
    detail: str = ""

    @property
    def complete(self) -> bool:
        """Whether every offset that the partition held was read."""
        return self.low >= self.high or self.spans == ((self.low, self.high),)

    @property
    def start(self) -> int:
        """The first offset that was read; the log's start where none was."""
        return self.spans[0][0] if self.spans else self.low

    @property
    def end(self) -> int:
        """The offset after the last one that was read."""
        return self.spans[-1][1] if self.spans else self.low

    def __str__(self) -> str:
        read = " and ".join(f"{start} to {end - 1}" for start, end in self.spans) or "none"
        counts = f"{self.scanned} records, {self.matched} matched"
        counts += "".join(
            f", {number} {word}"
            for number, word in (
                (self.undecodable, "undecodable"),
                (self.tombstones, "tombstones"),
                (self.absent, "offsets absent"),
                (self.removed, "offsets removed by retention"),
            )
            if number
        )
        why = self.stop.value + (f": {self.detail}" if self.detail else "")
        return f"partition {self.partition}: offsets {read} of {self.low} to {self.high - 1} read, {counts}; {why}"


@dataclass(frozen=True)
class Progress:
    """How far a scan has come: records seen and matched, and how many of the topic's offsets are read."""

    topic: str
    scanned: int
    matched: int
    undecodable: int
    read: int
    total: int


@dataclass(frozen=True)
class ScanResult(Generic[T]):
    """What a scan found, in order of partition and offset, and what it read to find it.

    `order` says in words which partitions came first and why. `undecodable` keeps the first of those records; the
    reports count them all.
    """

    topic: str
    matches: tuple[Match[T], ...]
    undecodable: tuple[Undecodable, ...]
    partitions: tuple[PartitionReport, ...]
    order: str
    seconds: float

    @property
    def outcome(self) -> str:
        """`found`; `not_found`, only when every offset in range was read; `incomplete` otherwise."""
        if self.matches:
            return "found"
        return "not_found" if all(report.complete for report in self.partitions) else "incomplete"

    @property
    def scanned(self) -> int:
        """Records that were looked at."""
        return sum(report.scanned for report in self.partitions)

    @property
    def stops(self) -> Mapping[int, Stop]:
        """Why reading ended, by partition."""
        return {report.partition: report.stop for report in self.partitions}
