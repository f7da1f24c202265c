"""Stores what the collector read: raw frames, a row for each attempt and the offsets reached, in one transaction.

A crash at any point leaves the database at some batch's end, and reading goes on from the offsets that it holds: so
everything is stored once. Two collectors of one pipeline cannot both get on: each moves a position only from where it
believes it to be.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from app.incidents import collecting_sql as sql
from app.incidents.attempt_store import AttemptStore, Sorted, sort
from app.incidents.collecting_sql import DailyIds, copy
from app.incidents.columns import dumps, plain
from app.incidents.deliveries import TRACES, Batch, Noted, mark_of, note
from app.incidents.errors import IncidentError
from app.incidents.freeze import Gate, Rule
from app.incidents.segments import Delivered, pack
from app.incidents.store import driver_url

_LOG: Final = logging.getLogger(__name__)

# Small enough that one attempt is read back quickly, large enough to compress well.
_SEGMENT_RECORDS: Final = 2000
_SEGMENT_BYTES: Final = 1024 * 1024

Topic = tuple[str, int]
"""A topic's name and a partition of it."""


class Fenced(IncidentError):
    """Another collector has moved on from where this one believed to be; begin anew from the stored positions."""


class Gap(Protocol):
    """Offsets of a partition that are lost to us; reading goes on at `next_offset`."""

    @property
    def stream(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def expected(self) -> int: ...
    @property
    def next_offset(self) -> int: ...


class _Anew(NamedTuple):
    """A gap of our own: between a log and the one that took its place."""

    stream: str
    topic: str
    partition: int
    expected: int
    next_offset: int


class Stored(NamedTuple):
    """Where a partition is stored up to; `mark` is a digest (`mark_of`) of the record before `next_offset`."""

    stream_id: int
    next_offset: int
    mark: bytes | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call of `store` came to."""

    records: int = 0
    attempts: int = 0
    undecodable: int = 0
    snapshots: int = 0
    frozen: int = 0
    keys: frozenset[bytes] = frozenset()


@dataclass
class _Run:
    """New records of one partition, on their way into the database."""

    stream: str
    topic: str
    partition: int
    stream_id: int
    expected: int
    next_offset: int
    records: list[Delivered] = field(default_factory=list)
    absent: int = 0
    removed: int = 0
    known: bool = True
    noted: Noted = field(default_factory=Noted)

    def pieces(self) -> Iterator[tuple[int, int, int, int, bytes]]:
        """Compress what is kept raw. That lets other threads run, so it is left to the one that waits most."""
        for piece in _pieces(self.records):
            data, size = pack(piece)
            yield piece[0].offset, piece[-1].offset + 1, len(piece), size, data


@dataclass(frozen=True)
class Prepared:
    """Records that are ready to be written: decoded and grouped."""

    runs: list[_Run]
    attempts: Sorted


class Intake:
    """The writing side of one pipeline: `prepare` may run in one thread while `write` runs in another; `close` it.

    Nothing here tries again: on an error of the database the caller begins anew from `positions`.
    """

    def __init__(self, url: str | URL, pipeline: str, rules: Sequence[Rule] = ()) -> None:
        self.pipeline = pipeline
        self._engine: Engine = create_engine(
            driver_url(url),
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            json_serializer=dumps,
            connect_args={
                "connect_timeout": 10,
                "application_name": f"hindcast collect {pipeline}",
                # Today's tables grow from nothing while we work: a plan made for small ones must not stay.
                "options": "-c enable_seqscan=off",
                "prepare_threshold": None,
            },
        )
        self._gate = Gate(pipeline, rules)
        self._ids = DailyIds()
        self._attempts = AttemptStore(pipeline, self._ids)
        # Where each partition will be stored up to once all that was prepared is written.
        self._planned: dict[Topic, Stored] = {}

    def close(self) -> None:
        """Give the connection back."""
        self._engine.dispose()

    def positions(self) -> Mapping[Topic, Stored]:
        """Read where each partition is stored up to, by its latest incarnation, and go on from there."""
        with self._engine.begin() as connection:
            rows = connection.execute(sql.POSITIONS, {"pipeline": self.pipeline}).all()
        self._attempts.forget()
        self._ids.forget()
        # Ascending by incarnation, so that the latest stays.
        self._planned = {(row.topic, row.partition): Stored(row.stream_id, row.next_offset, row.mark) for row in rows}
        return dict(self._planned)

    def store(self, batches: Iterable[Batch], gaps: Iterable[tuple[Gap, bool]] = ()) -> Outcome:
        """Store batches and the offsets that they reach; each gap comes with whether its topic was made anew.

        Gaps of a partition stand before its batches. Raises `Fenced`, and `sqlalchemy` errors; nothing is stored then.
        """
        return self.write(self.prepare(batches, gaps))

    def prepare(self, batches: Iterable[Batch], gaps: Iterable[tuple[Gap, bool]] = ()) -> Prepared:
        """Do everything that needs no database, in the order in which it will be written."""
        runs = self._runs(batches, gaps)
        for run in runs:
            run.noted = note(run.stream, run.stream_id, run.partition, run.records)
            mark = mark_of(run.records[-1]) if run.records else None
            self._planned[run.topic, run.partition] = Stored(run.stream_id, run.next_offset, mark)
        traced = [traced for run in runs if run.stream == TRACES for traced in run.noted.traced]
        return Prepared(runs, sort(traced))

    def write(self, prepared: Prepared) -> Outcome:
        """Write in one transaction what was prepared; what was prepared after it is void when this raises."""
        pieces = [(run.stream_id, run.partition, *piece) for run in prepared.runs for piece in run.pieces()]
        try:
            with self._engine.begin() as connection:
                outcome = self._write(connection, prepared, pieces)
        except BaseException:
            self._attempts.forget()
            self._ids.forget()
            raise
        self._attempts.keep()
        return outcome

    def begin_anew(self, topic: str, partition: int, stream: str, offset: int) -> None:
        """Follow a partition as another log from `offset` on: under its old name, the topic was made anew."""
        expected = self._planned[topic, partition].next_offset
        self.store((), [(_Anew(stream, topic, partition, expected, offset), True)])

    # Preparing -------------------------------------------------------------------------------------------------------

    def _runs(self, batches: Iterable[Batch], gaps: Iterable[tuple[Gap, bool]]) -> list[_Run]:
        runs: dict[Topic, _Run] = {}
        for gap, anew in gaps:
            place = (gap.topic, gap.partition)
            if anew and place in self._planned:
                stream_id = self._next_incarnation(gap, self._planned[place].stream_id)
                run = _Run(gap.stream, *place, stream_id, gap.next_offset, gap.next_offset, known=False)
            else:
                run = self._run(gap)
                run.removed = gap.next_offset - gap.expected
            run.next_offset = gap.next_offset
            runs[place] = run
        for batch in batches:
            place = (batch.topic, batch.partition)
            if place not in runs:
                runs[place] = self._run(batch)
            run = runs[place]
            if batch.expected != run.next_offset:
                raise Fenced(f"{place[0]}/{place[1]} is stored up to {run.next_offset}, not {batch.expected}")
            run.records += batch.records
            run.absent += batch.absent
            run.next_offset = batch.next_offset
        return list(runs.values())

    def _run(self, read: Batch | Gap) -> _Run:
        planned = self._planned.get((read.topic, read.partition))
        if planned is None:
            stream_id = self._stream(read.stream, read.topic)
            return _Run(read.stream, read.topic, read.partition, stream_id, read.expected, read.expected, known=False)
        offset = planned.next_offset
        return _Run(read.stream, read.topic, read.partition, planned.stream_id, offset, offset)

    def _stream(self, stream: str, topic: str) -> int:
        """The latest incarnation of a topic, made where there is none."""
        values = {"pipeline": self.pipeline, "stream": stream, "topic": topic}
        with self._engine.begin() as connection:
            found = connection.execute(sql.LATEST_STREAM, values).scalar()
            return self._make_stream(connection, stream, topic, 1) if found is None else int(found)

    def _next_incarnation(self, gap: Gap, current: int) -> int:
        with self._engine.begin() as connection:
            number = connection.execute(sql.INCARNATION, {"id": current}).scalar_one()
            return self._make_stream(connection, gap.stream, gap.topic, number + 1)

    def _make_stream(self, connection: Connection, stream: str, topic: str, incarnation: int) -> int:
        values = {"pipeline": self.pipeline, "stream": stream, "topic": topic, "incarnation": incarnation}
        connection.execute(sql.ADD_STREAM, values)
        return int(connection.execute(sql.STREAM, values).scalar_one())

    # One transaction -------------------------------------------------------------------------------------------------

    def _write(self, connection: Connection, prepared: Prepared, pieces: Sequence[tuple[Any, ...]]) -> Outcome:
        runs = prepared.runs
        self._move(connection, runs)
        self._ids.begin(connection)
        copy(connection, "segments", sql.SEGMENT_COLUMNS, [(self._ids.take(), *piece) for piece in pieces])
        self._keep_notes(connection, [run.noted for run in runs])
        stored = self._attempts.store(connection, prepared.attempts)
        frozen = self._gate.apply(connection, stored)
        keys = {facts.entity_key for facts in stored}
        for run in runs:
            keys.update(one.entity_key for one in run.noted.keyed)
            keys.update(one.entity_key for one in run.noted.snapshots)
        return Outcome(
            records=sum(len(run.records) for run in runs),
            attempts=len(stored),
            undecodable=sum(len(run.noted.undecodable) for run in runs),
            snapshots=sum(len(run.noted.snapshots) for run in runs),
            frozen=frozen,
            keys=frozenset(keys),
        )

    def _move(self, connection: Connection, runs: Sequence[_Run]) -> None:
        """Move the positions first: whoever comes second waits here, and then learns that it came second."""
        for known, statement in ((True, sql.MOVE), (False, sql.BEGIN)):
            rows = [_position(run) for run in runs if run.known is known]
            if not rows:
                continue
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            if connection.execute(statement, columns).rowcount != len(rows):
                raise Fenced(
                    f"pipeline {self.pipeline!r}: another collector has stored these offsets meanwhile; it goes on"
                )

    def _keep_notes(self, connection: Connection, noted: Sequence[Noted]) -> None:
        take = self._ids.take
        keyed = [(take(), *one.place, one.at_ms, one.entity_key) for each in noted for one in each.keyed]
        copy(connection, "keyed_records", sql.KEYED_COLUMNS, keyed)
        bad = [(take(), *one.place, one.size, plain(one.error)) for each in noted for one in each.undecodable]
        copy(connection, "undecodable", sql.UNDECODABLE_COLUMNS, bad)
        seen: list[tuple[Any, ...]] = [
            (
                take(),
                *one.place,
                one.at_ms,
                one.seq,
                one.snapshot_at_ms,
                one.size,
                one.suspended,
                one.entity_key,
                plain(one.request_id),
                one.sha256,
            )
            for each in noted
            for one in each.snapshots
        ]
        copy(connection, "snapshots", sql.SNAPSHOT_COLUMNS, seen)


class Hold:
    """The right to follow a pipeline, held by at most one process at a time and let go when its connection ends."""

    def __init__(self, url: str | URL, pipeline: str) -> None:
        self._engine = create_engine(
            driver_url(url),
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={"connect_timeout": 10, "application_name": f"hindcast collect {pipeline}"},
        )
        self._name = f"hindcast collect {pipeline}"
        self._connection: Connection | None = None

    def take(self) -> bool:
        """Try to get it; True also when it is held already. Raises `sqlalchemy` errors."""
        if self._connection is not None and self._connection.execute(sql.ALIVE).scalar_one() == 1:
            return True
        connection = self._engine.connect()
        if connection.execute(sql.HOLD, {"name": self._name}).scalar_one():
            self._connection = connection
            return True
        connection.close()
        return False

    def let_go(self) -> None:
        """Give it back; harmless when repeated, and when the connection is gone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):
                connection.close()
        self._engine.dispose()


def _position(run: _Run) -> dict[str, Any]:
    noted = run.noted
    return {
        "stream_id": run.stream_id,
        "partition": run.partition,
        "expected": run.expected,
        "next_offset": run.next_offset,
        "mark": mark_of(run.records[-1]) if run.records else None,
        "records": len(run.records),
        "undecodable": len(noted.undecodable),
        "tombstones": noted.tombstones,
        "absent": run.absent,
        "removed": run.removed,
        "latest_ms": noted.latest_ms,
        "latest_clock_ms": noted.latest_clock_ms,
    }


def _pieces(records: Sequence[Delivered]) -> Iterable[Sequence[Delivered]]:
    """Cut records into segments; one that is larger than a segment stands alone."""
    start = size = 0
    for index, record in enumerate(records):
        length = len(record.value or b"")
        if index > start and (index - start >= _SEGMENT_RECORDS or size + length > _SEGMENT_BYTES):
            yield records[start:index]
            start, size = index, 0
        size += length
    if start < len(records):
        yield records[start:]


__all__ = ["Fenced", "Gap", "Hold", "Intake", "Outcome", "Stored"]
