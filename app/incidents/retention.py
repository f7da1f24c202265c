"""How long collected records are kept: whole days, by age and by size. Evidence of incidents was copied, and stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from app.incidents.store import ReadSession, WriteSession


@dataclass(frozen=True, slots=True)
class Day:
    """One day of collected records: days since 1970, and the bytes that it takes, indexes included."""

    day: int
    size: int

    @property
    def date(self) -> str:
        """The day as people write it."""
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=self.day)).date().isoformat()


async def days(session: ReadSession) -> list[Day]:
    """List the days that are kept, oldest first."""
    return [Day(row.day, row.size) for row in await session.execute(_DAYS)]


async def today(session: ReadSession) -> int:
    """The current day by the database's clock."""
    return int((await session.execute(_TODAY)).scalar_one())


async def drop_day(session: WriteSession, day: int) -> None:
    """Drop one day's records; the database refuses a day that is not over."""
    await session.execute(_DROP, {"day": day})


def too_much(kept: Sequence[Day], now: int, *, keep_days: int, keep_bytes: int) -> list[Day]:
    """Choose the days to drop: all that are too old, then the oldest until the rest fits. Today always stays."""
    dropped = []
    total = sum(day.size for day in kept)
    for day in sorted(kept, key=lambda one: one.day):
        if day.day >= now:
            break
        if day.day < now - keep_days or total > keep_bytes:
            dropped.append(day)
            total -= day.size
    return dropped


_DAYS = text(
    "SELECT CAST(substring(c.relname FROM '_(\\d+)$') AS integer) AS day,"
    " CAST(sum(pg_total_relation_size(c.oid)) AS bigint) AS size FROM pg_inherits i"
    " JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent"
    " WHERE c.relkind = 'r' AND p.relnamespace = to_regnamespace(current_schema())"
    " AND p.relname IN ('segments', 'attempts', 'keyed_records', 'undecodable', 'snapshots') GROUP BY 1 ORDER BY 1"
)
_TODAY = text("SELECT CAST(floor(extract(epoch FROM clock_timestamp()) / 86400) AS integer)")
_DROP = text("SELECT hindcast_drop_day(:day)")
