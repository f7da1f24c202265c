"""How long imported event logs are kept: by age and by size. Lines that are evidence were copied, and stay.

By age a run goes whole, once its last event is old and each log that holds it has been here that long: an old log that
is imported today is not gone tomorrow. By size whole logs go, the longest unchanged first, never one of the last day.
What is known of a log itself stays, so that its lines are not imported again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import CursorResult, TextClause, text

from app.incidents.audit import Action, record_event
from app.incidents.errors import IncidentError
from app.incidents.store import ReadSession, Store, WriteSession

_BATCH: Final = 1_000  # runs that go in one transaction


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Days and bytes that imported lines are kept for; None for no limit."""

    days: int | None = None
    size: int | None = None

    @property
    def none(self) -> bool:
        return self.days is None and self.size is None


@dataclass(frozen=True, slots=True)
class Held:
    """A log with lines: the bytes from its first kept line on, and whether it has not changed for a day."""

    id: int
    name: str
    size: int
    over: bool


@dataclass(frozen=True, slots=True)
class Due:
    """What would go: runs that are too old, and whole logs for want of room."""

    runs: int
    logs: tuple[Held, ...]


def too_big(held: Sequence[Held], limit: int) -> list[Held]:
    """Choose the logs to drop, of those given the longest unchanged first, until the rest fits."""
    total = sum(log.size for log in held)
    dropped = []
    for log in held:
        if total <= limit:
            break
        if log.over:
            dropped.append(log)
            total -= log.size
    return dropped


async def due(session: ReadSession, limits: LogLimits) -> Due:
    """Say what would go. Raises `IncidentError` where this role may not see event logs."""
    await _check(session)
    runs = 0
    if limits.days is not None:
        runs = int((await session.execute(_OLD, {"days": limits.days})).scalar_one())
    logs = () if limits.size is None else tuple(too_big(await _held(session), limits.size))
    return Due(runs, logs)


async def purge_logs(store: Store, limits: LogLimits, *, who: str) -> Counter[str]:
    """Remove what is due, a bounded piece in each transaction; returns how many rows went, by table."""
    total: Counter[str] = Counter()
    if limits.none:
        return total
    async with store.read() as session:
        await _check(session)
    if limits.days is not None:
        days = {"days": limits.days}
        while (gone := await _piece(store, _old_runs, {**days, "most": _BATCH}, who)).total():
            total += gone
        total += await _piece(store, _old_loose, days, who)
    if limits.size is not None:
        async with store.read() as session:
            dropped = too_big(await _held(session), limits.size)
        for log in dropped:
            total += await _piece(store, _log, {"log": log.id}, who)
    return total


async def _piece(store: Store, remove: Any, values: dict[str, Any], who: str) -> Counter[str]:
    async with store.write() as session:
        gone: Counter[str] = await remove(session, values)
        if gone.total():
            detail = {"removed": dict(gone), **values}
            record_event(session, Action.LOG_PURGED, who=who, subject="event logs", detail=detail)
    return gone


async def _old_runs(session: WriteSession, values: dict[str, Any]) -> Counter[str]:
    """Runs first: an importer that adds to one holds it, and what then is no longer old stays."""
    ids = list((await session.execute(_DROP_OLD, values)).scalars())
    lines = await _count(session, _LINES, {"runs": ids})
    return Counter(flink_runs=len(ids), flink_records=lines)


async def _old_loose(session: WriteSession, values: dict[str, Any]) -> Counter[str]:
    return Counter(flink_records=await _count(session, _LOOSE, values))


async def _log(session: WriteSession, values: dict[str, Any]) -> Counter[str]:
    ids = list((await session.execute(_DROP_OF_LOG, values)).scalars())
    lines = await _count(session, _LINES, {"runs": ids}) + await _count(session, _REST, values)
    return Counter(flink_runs=len(ids), flink_records=lines)


async def _held(session: ReadSession) -> list[Held]:
    return [Held(row.id, row.name, row.size, row.over) for row in await session.execute(_HELD)]


async def _check(session: ReadSession) -> None:
    if not (await session.execute(_MAY)).scalar_one():
        raise IncidentError("the role of retention may not see flink_logs yet; run `hindcast migrate`")


async def _count(session: WriteSession, statement: TextClause, values: dict[str, Any]) -> int:
    result = await session.execute(statement, values)
    return result.rowcount if isinstance(result, CursorResult) else 0


_BEFORE: Final = "clock_timestamp() - make_interval(days => :days)"
_IS_OLD: Final = (
    f"r.last_ns < CAST(extract(epoch FROM {_BEFORE}) AS bigint) * 1000000000 AND NOT EXISTS (SELECT 1 FROM"  # noqa: S608
    " flink_records l JOIN flink_logs g ON g.id = l.log_id WHERE l.run_id = r.id"
    f" AND g.created_at >= {_BEFORE})"
)
_OLD: Final = text(f"SELECT count(*) FROM flink_runs r WHERE {_IS_OLD}")  # noqa: S608  our own words
_DROP_OLD: Final = text(
    "DELETE FROM flink_runs d WHERE d.id IN (SELECT r.id FROM flink_runs r"  # noqa: S608
    f" WHERE {_IS_OLD} ORDER BY r.first_ns, r.id LIMIT :most)"
    f" AND d.last_ns < CAST(extract(epoch FROM {_BEFORE}) AS bigint) * 1000000000 RETURNING d.id"
)
_LINES: Final = text("DELETE FROM flink_records WHERE run_id = ANY(CAST(:runs AS bigint[]))")
# Lines of no run carry no time of ours: they go with the runs around them, the last ones once the log is over.
_LOOSE: Final = text(
    "WITH bounds AS (SELECT g.id, CASE WHEN g.changed_at < "  # noqa: S608
    f"{_BEFORE} THEN g.position + 1 ELSE coalesce((SELECT min(k.position) FROM flink_records k WHERE k.log_id = g.id"
    f" AND k.run_id IS NOT NULL), 0) END AS upto FROM flink_logs g WHERE g.created_at < {_BEFORE})"
    " DELETE FROM flink_records l USING bounds b WHERE l.log_id = b.id AND l.run_id IS NULL AND l.position < b.upto"
)
_HELD: Final = text(
    "SELECT g.id, g.name, g.position - f.first AS size, g.changed_at < clock_timestamp() - interval '1 day' AS over"
    " FROM flink_logs g CROSS JOIN LATERAL (SELECT min(position) AS first FROM flink_records WHERE log_id = g.id) f"
    " WHERE f.first IS NOT NULL ORDER BY g.changed_at, g.id"
)
_DROP_OF_LOG: Final = text(
    "DELETE FROM flink_runs WHERE id IN (SELECT run_id FROM flink_records WHERE log_id = :log) RETURNING id"
)
_REST: Final = text("DELETE FROM flink_records WHERE log_id = :log")
_MAY: Final = text("SELECT has_table_privilege('flink_logs', 'SELECT') AND has_table_privilege('flink_runs', 'DELETE')")
