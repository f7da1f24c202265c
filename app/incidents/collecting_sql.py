"""The statements of intake, ids that tell their day, and COPY: all SQL of the collector's hot path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, text

from app.incidents.live_models import DAY_SHIFT

_BLOCK: Final = 1024  # as the sequence `collected_ids` counts
_REST: Final = (1 << DAY_SHIFT) - 1

POSITIONS: Final = text(
    "SELECT s.id AS stream_id, s.topic, p.partition, p.next_offset, p.mark FROM positions p"
    " JOIN streams s ON s.id = p.stream_id WHERE s.pipeline = :pipeline ORDER BY s.incarnation"
)
LATEST_STREAM: Final = text(
    "SELECT id FROM streams WHERE pipeline = :pipeline AND stream = :stream AND topic = :topic"
    " ORDER BY incarnation DESC LIMIT 1"
)
INCARNATION: Final = text("SELECT incarnation FROM streams WHERE id = :id")
STREAM: Final = text(
    "SELECT id FROM streams WHERE pipeline = :pipeline AND stream = :stream AND topic = :topic"
    " AND incarnation = :incarnation"
)
ADD_STREAM: Final = text(
    "INSERT INTO streams (pipeline, stream, topic, incarnation) VALUES (:pipeline, :stream, :topic, :incarnation)"
    " ON CONFLICT DO NOTHING"
)

_MOVED: Final = """unnest(
    CAST(:stream_id AS smallint[]), CAST(:partition AS integer[]), CAST(:expected AS bigint[]),
    CAST(:next_offset AS bigint[]), CAST(:mark AS bytea[]), CAST(:records AS bigint[]), CAST(:undecodable AS bigint[]),
    CAST(:tombstones AS bigint[]), CAST(:absent AS bigint[]), CAST(:removed AS bigint[]),
    CAST(:latest_ms AS bigint[]), CAST(:latest_clock_ms AS bigint[])
) AS v (stream_id, partition, expected, next_offset, mark, records, undecodable, tombstones, absent, removed,
    latest_ms, latest_clock_ms)"""
MOVE: Final = text(
    "UPDATE positions p SET next_offset = v.next_offset, mark = v.mark,"  # noqa: S608
    " records = p.records + v.records, undecodable = p.undecodable + v.undecodable,"
    " tombstones = p.tombstones + v.tombstones, absent = p.absent + v.absent, removed = p.removed + v.removed,"
    " latest_ms = greatest(p.latest_ms, v.latest_ms),"
    " latest_clock_ms = greatest(p.latest_clock_ms, v.latest_clock_ms), changed_at = clock_timestamp()"
    f" FROM {_MOVED} WHERE p.stream_id = v.stream_id AND p.partition = v.partition AND p.next_offset = v.expected"
)
BEGIN: Final = text(
    "INSERT INTO positions (stream_id, partition, next_offset, mark, records, undecodable, tombstones,"  # noqa: S608
    " absent, removed, latest_ms, latest_clock_ms) SELECT stream_id, partition, next_offset, mark, records,"
    f" undecodable, tombstones, absent, removed, latest_ms, latest_clock_ms FROM {_MOVED} ON CONFLICT DO NOTHING"
)

# OFFSET 0 keeps the look-up inside the loop: each key and seq is one descent of an index, however large the table.
KNOWN_ATTEMPTS: Final = text(
    "SELECT a.id, a.clock_ms, a.entity_key, a.seq, a.shape_id, a.places FROM unnest(CAST(:keys AS bytea[]),"
    " CAST(:seqs AS bigint[])) AS u (k, s) CROSS JOIN LATERAL (SELECT id, clock_ms, entity_key, seq, shape_id, places"
    " FROM attempts WHERE entity_key = u.k AND seq = u.s OFFSET 0) a"
)
SEQS_OF: Final = text(
    "SELECT DISTINCT a.entity_key, a.seq FROM unnest(CAST(:keys AS bytea[])) AS u (k) CROSS JOIN LATERAL"
    " (SELECT entity_key, seq FROM attempts WHERE entity_key = u.k OFFSET 0) a LIMIT 100000"
)
STRAY_ROWS: Final = text(
    "SELECT a.id, a.clock_ms, a.entity_key, a.seq, a.shape_id, a.places FROM unnest(CAST(:keys AS bytea[])) AS u (k)"
    " CROSS JOIN LATERAL (SELECT id, clock_ms, entity_key, seq, shape_id, places FROM attempts"
    " WHERE entity_key = u.k AND shape_id = ANY(CAST(:shapes AS integer[])) OFFSET 0) a"
)
DROP_ATTEMPTS: Final = text(
    "DELETE FROM attempts a USING unnest(CAST(:ids AS bigint[]), CAST(:clocks AS bigint[])) AS u (id, clock_ms)"
    " WHERE a.id = u.id AND a.clock_ms = u.clock_ms"
)
SEGMENTS: Final = text(
    "SELECT u.stream_id, u.partition, s.data FROM unnest(CAST(:streams AS smallint[]), CAST(:partitions AS integer[]),"
    " CAST(:firsts AS bigint[]), CAST(:lasts AS bigint[])) AS u (stream_id, partition, first, last)"
    " CROSS JOIN LATERAL (SELECT max(first_offset) AS low FROM segments WHERE stream_id = u.stream_id"
    " AND partition = u.partition AND first_offset <= u.first OFFSET 0) b"
    " CROSS JOIN LATERAL (SELECT data FROM segments WHERE stream_id = u.stream_id AND partition = u.partition"
    " AND first_offset BETWEEN coalesce(b.low, u.first) AND u.last AND next_offset > u.first OFFSET 0) s"
)

SHAPES: Final = text("SELECT * FROM shapes WHERE id = ANY(CAST(:ids AS integer[]))")
SHAPE_IDS: Final = text(
    "SELECT id, digest FROM shapes WHERE pipeline = :pipeline AND digest = ANY(CAST(:digests AS bytea[]))"
)
ADD_SHAPE: Final = text(
    "INSERT INTO shapes (pipeline, kind, category, status, reason, error_type, entry_step, batch_size, batch_trigger,"
    " plain, tools, intents, digest) VALUES (:pipeline, :kind, :category, :status, :reason, :error_type, :entry_step,"
    " :batch_size, :batch_trigger, :plain, CAST(:tools AS text[]), CAST(:intents AS json), :digest)"
    " ON CONFLICT DO NOTHING"
)
STRAY_SHAPES: Final = text("SELECT id FROM shapes WHERE pipeline = :pipeline AND category = 'stray'")

HOLD: Final = text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))")
ALIVE: Final = text("SELECT 1")

# In the order of the rows that `copy` is handed; the types are the columns' own, as binary COPY wants them.
SEGMENT_COLUMNS: Final = {
    "id": "int8", "stream_id": "int2", "partition": "int4", "first_offset": "int8", "next_offset": "int8",
    "records": "int4", "size": "int8", "data": "bytea",
}  # fmt: skip
ATTEMPT_COLUMNS: Final = {
    "id": "int8", "clock_ms": "int8", "seq": "int8", "intent": "int8", "shape_id": "int4", "entity_key": "bytea",
    "places": "bytea", "more_intents": "int8[]",
}  # fmt: skip
KEYED_COLUMNS: Final = {
    "id": "int8", "stream_id": "int2", "partition": "int4", "offset": "int8", "at_ms": "int8", "entity_key": "bytea",
}  # fmt: skip
UNDECODABLE_COLUMNS: Final = {
    "id": "int8", "stream_id": "int2", "partition": "int4", "offset": "int8", "size": "int8", "error": "text",
}  # fmt: skip
SNAPSHOT_COLUMNS: Final = {
    "id": "int8", "stream_id": "int2", "partition": "int4", "offset": "int8", "at_ms": "int8", "seq": "int8",
    "snapshot_at_ms": "int8", "size": "int8", "suspended": "bool", "entity_key": "bytea", "request_id": "text",
    "sha256": "text",
}  # fmt: skip

_NEXT_BLOCK: Final = text("SELECT nextval('collected_ids')")
_TODAY: Final = text("SELECT CAST(floor(extract(epoch FROM clock_timestamp()) / 86400) AS integer)")
_ADD_DAY: Final = text("SELECT hindcast_add_day(:day)")


@dataclass
class DailyIds:
    """Hands out ids whose high bits are the day by the database's clock; makes the partitions of a day that is new."""

    _day: int = -1
    _made: set[int] = field(default_factory=set)
    _next: int = 0
    _end: int = 0
    _connection: Connection | None = None

    def forget(self) -> None:
        """Look anew at which days there are: what a transaction made may have been rolled back."""
        self._made.clear()

    def begin(self, connection: Connection) -> None:
        """Begin a transaction; all ids until the next call are of today."""
        self._connection = connection
        self._day = connection.execute(_TODAY).scalar_one()
        for day in (self._day, self._day + 1):
            if day not in self._made:
                connection.execute(_ADD_DAY, {"day": day})
                self._made.add(day)

    def take(self) -> int:
        """One more id."""
        if self._next >= self._end:
            assert self._connection is not None, "ids are handed out inside a transaction"
            self._next = self._connection.execute(_NEXT_BLOCK).scalar_one()
            self._end = self._next + _BLOCK
        self._next += 1
        return self._day << DAY_SHIFT | (self._next - 1) & _REST


def copy(connection: Connection, table: str, columns: dict[str, str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Write rows by binary COPY."""
    if not rows:
        return
    driver: Any = connection.connection.driver_connection
    names = ", ".join(f'"{name}"' for name in columns)
    with driver.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT BINARY)") as stream:
        stream.set_types(list(columns.values()))
        for row in rows:
            stream.write_row(row)
