"""Runs of Flink Agents as they are stored: found by key, tool, status, problem category and words; read whole; counted.

Functions take the caller's session and never commit.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, ColumnElement, bindparam, func, select, text, tuple_

from app.flink.assemble import assemble
from app.flink.keys import parse_paths
from app.flink.model import Run
from app.incidents import flink_sql as sql
from app.incidents.columns import plain
from app.incidents.errors import IncidentError, found
from app.incidents.flink_models import FlinkLog, FlinkRun, flink_records
from app.incidents.flink_store import WHOLE_RUN, placed_line
from app.incidents.store import ReadSession

LEADING_UP: Final = 500  # earlier runs of a key that are kept with an incident
LEADING_UP_BYTES: Final = 16 * 1024 * 1024
STATUSES: Final = ("completed", "failed", "unfinished")
_MOST_LOOSE: Final = 200


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are wanted: what is None or empty wants all. Times are epoch milliseconds, `until_ms` exclusive."""

    key: str | None = None
    tool: str | None = None
    status: str | None = None
    category: str | None = None
    text: str = ""
    log: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page of runs, newest first; `next` is the cursor of the following page. `total` counts what was asked for."""

    items: tuple[FlinkRun, ...]
    next: str | None
    total: int


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run with its row, its lines exactly as they were, and what they tell; `ordinal` counts the inputs of its key.

    `again` are runs that hold an event of this one too, with how many; for a log without run ids, an equal input.
    """

    row: FlinkRun
    run: Run
    lines: tuple[bytes, ...]
    ordinal: int | None
    again: tuple[tuple[FlinkRun, int], ...]
    log_name: str
    key_paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loose:
    """A line without a run: where it stands, why it is no record (None: it is one, of no known run), and the line."""

    position: int
    note: str | None
    line: bytes


async def list_runs(session: ReadSession, chosen: RunFilter, *, after: str | None = None, limit: int = 50) -> RunPage:
    """Read runs, newest first. Raises `IncidentError` for a cursor that is not ours."""
    which = _conditions(chosen)
    query = select(FlinkRun).where(*which).order_by(FlinkRun.first_ns.desc(), FlinkRun.id.desc())
    if after is not None:
        position = tuple_(*(bindparam(None, number, BigInteger) for number in _position(after)))
        query = query.where(tuple_(FlinkRun.first_ns, FlinkRun.id) < position)
    rows = list(await session.scalars(query.limit(limit + 1)))
    total = (await session.scalars(select(func.count()).select_from(FlinkRun).where(*which))).one()
    items = tuple(rows[:limit])
    more = f"{items[-1].first_ns}.{items[-1].id}" if len(rows) > limit else None
    return RunPage(items, more, total)


def _conditions(chosen: RunFilter) -> list[ColumnElement[bool]]:
    which: list[ColumnElement[bool]] = []
    if chosen.key is not None:
        which.append(FlinkRun.key == plain(chosen.key))
    if chosen.tool:
        which.append(FlinkRun.tools.contains([plain(chosen.tool)]))
    if chosen.category:
        which.append(FlinkRun.categories.contains([plain(chosen.category)]))
    if chosen.status:
        which.append(FlinkRun.status == chosen.status)
    if chosen.text:
        which.append(FlinkRun.words.bool_op("@@")(func.websearch_to_tsquery("simple", plain(chosen.text))))
    if chosen.log is not None:
        inside = select(flink_records.c.run_id).where(flink_records.c.log_id == chosen.log)
        which.append(FlinkRun.id.in_(inside))
    if chosen.since_ms is not None:
        which.append(FlinkRun.first_ns >= chosen.since_ms * 1_000_000)
    if chosen.until_ms is not None:
        which.append(FlinkRun.first_ns < chosen.until_ms * 1_000_000)
    return which


def _position(cursor: str) -> tuple[int, int]:
    match = re.fullmatch(r"(-?\d{1,19})\.(\d{1,18})", cursor)
    if match is None or abs(int(match[1])) >= 2**63:
        raise IncidentError(f"{cursor!r} is not a position in the list of runs; start from its first page")
    return int(match[1]), int(match[2])


class AssembledRuns:
    """Runs that pages looked at lately, as they were assembled; stored lines never change, so neither do these."""

    def __init__(self, most: int = 2 * WHOLE_RUN) -> None:
        self._most = most
        self._runs: OrderedDict[Hashable, Run] = OrderedDict()

    def get(self, key: Hashable) -> Run | None:
        run = self._runs.get(key)
        if run is not None:
            self._runs.move_to_end(key)
        return run

    def keep(self, key: Hashable, run: Run) -> None:
        """Keep a run, and let go of those that were looked at longest ago: so many records are held at most."""
        self._runs[key] = run
        while len(self._runs) > 1 and sum(len(one.entries) for one in self._runs.values()) > self._most:
            self._runs.popitem(last=False)


async def get_flink_run(session: ReadSession, run_id: int, *, lately: AssembledRuns | None = None) -> WholeRun:
    """Read a run whole; one that was looked at `lately` comes without its lines. Raises `NotFound`."""
    row = found(await session.get(FlinkRun, run_id), "run", run_id)
    log_name, paths = await _log_of(session, row.id)
    ordinal, again = await _ordinal(session, row), await _again(session, row)
    run = None if lately is None else lately.get((row.id, row.records))
    if run is not None:
        return WholeRun(row, run, (), ordinal, again, log_name, tuple(paths))
    lines = (await session.execute(sql.LINES_OF, {"runs": [row.id], "limit": WHOLE_RUN})).all()
    data = tuple(line.line for line in lines)
    placed = [(row.ref, line.how, line.line) for line in lines]
    made = await asyncio.to_thread(lambda: assemble([placed_line(*one) for one in placed], parse_paths(paths)))
    if lately is not None:
        lately.keep((row.id, row.records), made)
    return WholeRun(row, made, data, ordinal, again, log_name, tuple(paths))


async def lines_before(session: ReadSession, row: FlinkRun) -> tuple[int, list[bytes]]:
    """The lines of the runs of a key before one, oldest first, and how many runs these are; none without a key.

    Bounded in runs and in bytes: where there are more, the oldest are left out.
    """
    if row.key is None:
        return 0, []
    query = select(FlinkRun.id).where(*_earlier(row)).order_by(FlinkRun.first_ns.desc(), FlinkRun.id.desc())
    ids = list(await session.scalars(query.limit(LEADING_UP)))
    lines: dict[int, list[bytes]] = {}
    for one in await session.execute(sql.LINES_OF, {"runs": ids, "limit": WHOLE_RUN}):
        lines.setdefault(one.run_id, []).append(one.line + b"\n")
    kept, size = [], 0
    for run in ids:
        size += sum(map(len, lines.get(run, ())))
        if size > LEADING_UP_BYTES:
            break
        kept.append(run)
    return len(kept), [line for run in reversed(kept) for line in lines.get(run, ())]


async def _log_of(session: ReadSession, run_id: int) -> tuple[str, Sequence[str]]:
    """The name of the log in which a run begins, and where keys stand in it."""
    inside = select(flink_records.c.log_id).where(flink_records.c.run_id == run_id)
    query = select(FlinkLog.name, FlinkLog.key_paths).where(FlinkLog.id.in_(inside)).order_by(FlinkLog.id).limit(1)
    found = (await session.execute(query)).one_or_none()
    return ("event.log", ()) if found is None else (found[0], found[1])


async def _ordinal(session: ReadSession, row: FlinkRun) -> int | None:
    """Which input of its key this is, among those of its job that are here; None where the key is not known.

    Where the log does not tell its job, only its own runs are counted: another log may be of another job.
    """
    if row.key is None:
        return None
    earlier = select(func.count()).select_from(FlinkRun).where(*_earlier(row))
    return (await session.scalars(earlier)).one() + 1


def _earlier(row: FlinkRun) -> list[ColumnElement[bool]]:
    which = [FlinkRun.key == row.key, FlinkRun.job == row.job, FlinkRun.first_ns < row.first_ns]
    if not row.job:
        own = select(flink_records.c.log_id).where(flink_records.c.run_id == row.id)
        which.append(FlinkRun.id.in_(select(flink_records.c.run_id).where(flink_records.c.log_id.in_(own))))
    return which


async def _again(session: ReadSession, row: FlinkRun) -> tuple[tuple[FlinkRun, int], ...]:
    counted = (
        await session.execute(
            text(
                "SELECT other.run_id, count(DISTINCT other.event) AS n FROM flink_records mine JOIN flink_records other"
                " ON other.event = mine.event AND other.run_id <> mine.run_id WHERE mine.run_id = :run"
                " GROUP BY other.run_id ORDER BY n DESC, other.run_id LIMIT 20"
            ),
            {"run": row.id},
        )
    ).all()
    rows = {one.id: one for one in await session.scalars(
        select(FlinkRun).where(FlinkRun.id.in_([run for run, _ in counted]))
    )}  # fmt: skip
    return tuple((rows[run], n) for run, n in counted if run in rows)


@dataclass(frozen=True, slots=True)
class RunChoices:
    """What runs can be narrowed to, most frequent first."""

    tools: tuple[str, ...]
    categories: tuple[str, ...]


async def run_choices(session: ReadSession) -> RunChoices:
    """Names that occur in the latest runs."""

    async def names(column: str) -> tuple[str, ...]:
        query = text(
            f"SELECT name FROM (SELECT unnest({column}) AS name FROM (SELECT {column} FROM flink_runs"  # noqa: S608
            " ORDER BY first_ns DESC, id DESC LIMIT 5000) latest) named GROUP BY name ORDER BY count(*) DESC, name"
            " LIMIT 100"
        )
        return tuple((await session.execute(query)).scalars())

    return RunChoices(await names("tools"), await names("categories"))


# Logs ----------------------------------------------------------------------------------------------------------------


async def list_logs(session: ReadSession, limit: int = 50) -> list[FlinkLog]:
    """List the logs that were read, the latest first."""
    return list(await session.scalars(select(FlinkLog).order_by(FlinkLog.changed_at.desc()).limit(limit)))


async def get_log(session: ReadSession, log_id: int) -> FlinkLog:
    """Load one log. Raises `NotFound`."""
    return found(await session.get(FlinkLog, log_id), "event log", log_id)


async def loose_lines(session: ReadSession, log_id: int, limit: int = _MOST_LOOSE) -> list[Loose]:
    """Read the first lines of a log that are in no run."""
    columns = flink_records.c
    query = (
        select(columns.position, columns.note, columns.line)
        .where(columns.log_id == log_id, columns.run_id.is_(None))
        .order_by(columns.position)
        .limit(limit)
    )
    return [Loose(*row) for row in (await session.execute(query)).all()]
