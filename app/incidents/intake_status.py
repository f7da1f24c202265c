"""How intake of each stream stands: what was read, what of it could not be read as what it should be, and its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text

from app.incidents import live_repository as live
from app.incidents.errors import NotFound
from app.incidents.projection import Range
from app.incidents.segments import Raw
from app.incidents.store import ReadSession


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One followed topic, all partitions together. `absent` offsets hold no record, `removed` ones were lost to us.

    `latest_ms` is the latest record time that was read, `anew` how often the topic was made anew.
    """

    pipeline: str
    stream: str
    topic: str
    partitions: int
    records: int
    undecodable: int
    tombstones: int
    absent: int
    removed: int
    latest_ms: int | None
    anew: int

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline, "stream": self.stream, "topic": self.topic, "partitions": self.partitions,
            "records": self.records, "undecodable": self.undecodable, "tombstones": self.tombstones,
            "absent": self.absent, "removed": self.removed, "latest_ms": self.latest_ms, "anew": self.anew,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that is not what its topic should hold; its bytes are kept (`raw_record`)."""

    id: int
    pipeline: str
    topic: str
    partition: int
    offset: int
    size: int
    error: str


async def stream_statuses(session: ReadSession) -> list[StreamStatus]:
    """Say of each topic that was ever followed what was read of it."""
    return [StreamStatus(*row) for row in await session.execute(_STATUSES)]


async def undecodable_records(
    session: ReadSession, *, pipeline: str | None = None, before: int | None = None, limit: int = 50
) -> list[BadRecord]:
    """List records that could not be read, newest first; `before` is the id of the last one that was shown."""
    values = {"pipeline": pipeline, "before": before, "limit": max(1, min(limit, 200))}
    return [BadRecord(*row) for row in await session.execute(_BAD, values)]


async def raw_record(session: ReadSession, record_id: int) -> Raw:
    """Read the raw bytes of a record that could not be decoded. Raises `NotFound` when they were dropped since."""
    row = (await session.execute(_PLACE, {"id": record_id})).one_or_none()
    if row is not None:
        place = Range(row.stream_id, row.partition, row.offset, row.offset)
        for record in (await live.raw_records(session, [place])).get((row.stream_id, row.partition), ()):
            return record
    raise NotFound("record", record_id)


_STATUSES: Final = text(
    "SELECT s.pipeline, s.stream, s.topic, CAST(count(DISTINCT p.partition) AS integer),"
    " CAST(sum(p.records) AS bigint), CAST(sum(p.undecodable) AS bigint), CAST(sum(p.tombstones) AS bigint),"
    " CAST(sum(p.absent) AS bigint), CAST(sum(p.removed) AS bigint), max(p.latest_ms), max(s.incarnation) - 1"
    " FROM streams s JOIN positions p ON p.stream_id = s.id GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
)
_BAD: Final = text(
    'SELECT u.id, s.pipeline, s.topic, u.partition, u."offset", u.size, u.error FROM undecodable u'
    " JOIN streams s ON s.id = u.stream_id WHERE (CAST(:pipeline AS text) IS NULL OR s.pipeline = :pipeline)"
    " AND (CAST(:before AS bigint) IS NULL OR u.id < :before) ORDER BY u.id DESC LIMIT :limit"
)
_PLACE: Final = text('SELECT stream_id, partition, "offset" FROM undecodable WHERE id = :id')
