"""What a collector is handed and what it stored: batches as a broker would give them, rows as they lie there."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from app.incidents.projection import read_places
from app.incidents.segments import Raw, unpack
from tests.fixtures.postgres import Database


@dataclass(frozen=True)
class Batch:
    """Records of one partition, as `app.kafka.intake.Batch` is."""

    stream: str
    topic: str
    partition: int
    records: tuple[Raw, ...]
    expected: int
    absent: int = 0

    @property
    def next_offset(self) -> int:
        return self.records[-1].offset + 1


@dataclass(frozen=True)
class Gap:
    stream: str
    topic: str
    partition: int
    expected: int
    next_offset: int


class Topics:
    """Gives out offsets: each partition of each topic counts its own."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] = {}

    def batch(
        self, stream: str, values: Iterable[tuple[bytes | None, bytes | None]], *, partition: int = 0, at_ms: int = 1000
    ) -> Batch:
        """Put (key, value) pairs at the end of a partition of the stream's topic."""
        start = self.ends.get((stream, partition), 0)
        records = tuple(Raw(start + index, at_ms, key, value) for index, (key, value) in enumerate(values))
        self.ends[stream, partition] = start + len(records)
        return Batch(stream, f"t.{stream}", partition, records, start)


def chunks(items: Sequence[Any], sizes: Iterable[int]) -> list[Sequence[Any]]:
    """Cut a sequence into pieces of some sizes, over and over."""
    pieces, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(items):
            return pieces
        pieces.append(items[at : at + size])
        at += size
    return pieces


def attempts(database: Database) -> list[tuple[Any, ...]]:
    """Read all rows as what they say, ids apart."""
    with psycopg.connect(database.app) as connection:
        rows = connection.execute(
            "SELECT a.entity_key, a.seq, a.clock_ms, s.kind, s.category, s.status, s.reason, s.error_type,"
            " s.entry_step, s.batch_size, s.tools, s.intents, a.places, a.intent, a.more_intents"
            " FROM attempts a JOIN shapes s ON s.id = a.shape_id"
        ).fetchall()
    return sorted((tuple(map(_plain, row)) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, list) else value


def raw(database: Database, stream: str) -> list[tuple[int, Raw]]:
    """Read everything that is stored of a stream, as (partition, record), in order."""
    with psycopg.connect(database.app) as connection:
        rows = connection.execute(
            "SELECT g.partition, g.data FROM segments g JOIN streams s ON s.id = g.stream_id WHERE s.stream = %s"
            " ORDER BY s.incarnation, g.partition, g.first_offset",
            (stream,),
        ).fetchall()
    return [(partition, record) for partition, data in rows for record in unpack(data)]


def events_at(database: Database, places: bytes) -> list[Raw]:
    """Read the raw records at a row's places, those in between included."""
    with psycopg.connect(database.app) as connection:
        found = []
        for one in read_places(places)[1]:
            for (data,) in connection.execute(
                "SELECT data FROM segments WHERE stream_id = %s AND partition = %s AND first_offset <= %s"
                " AND next_offset > %s ORDER BY first_offset",
                (one.stream, one.partition, one.last, one.first),
            ):
                found += [record for record in unpack(data) if one.first <= record.offset <= one.last]
    return found
