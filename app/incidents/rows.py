"""The SQL of a run's timeline and ledger: written once by COPY, read in windows, found by what they say."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Text, cast, exists, func, or_, select
from sqlalchemy.orm import undefer

from app.incidents.columns import dumps, members, plain, veiled
from app.incidents.models import DIFFERS, LedgerRow, RunRow
from app.incidents.store import ReadSession, WriteSession
from app.replay.verdict import LedgerEntry, Row

_BODIES: Final = (undefer(RunRow.recorded), undefer(RunRow.replayed), undefer(RunRow.fields))
# In the order of `_line` and of `_ledger_line`.
_ROW_COLUMNS: Final = (
    "run_id, ordinal, state, surface, event_type, label, about, step, cause, recorded, replayed, fields"
)
_LEDGER_COLUMNS: Final = "run_id, position, ordinal, kind, name, digest, size, body"
# What only tells where a step stands; two runs may say the same at different places.
_PLACE: Final = frozenset({"step", "intent_id", "cache_key", "from_cache"})


@dataclass(frozen=True, slots=True)
class Filters:
    """Which rows of a timeline are wanted: empty choices want all. `text` is looked for in what a row says.

    Looked through are types and labels, attributes and payloads of both sides, and the ledger's entries.
    """

    surfaces: Sequence[str] = ()
    types: Sequence[str] = ()
    text: str = ""
    only_differences: bool = False

    @property
    def any(self) -> bool:
        return bool(self.surfaces or self.types or self.text or self.only_differences)


ALL: Final = Filters()


# Writing -------------------------------------------------------------------------------------------------------------


async def add_rows(session: WriteSession, run_id: str, rows: Iterable[Row]) -> None:
    """Write a run's whole timeline by COPY: ten thousand rows take a fraction of a second."""
    await _copy(session, f"run_rows ({_ROW_COLUMNS})", (_line(run_id, row) for row in rows))


async def add_ledger(session: WriteSession, run_id: str, entries: Iterable[LedgerEntry]) -> None:
    """Write a run's whole ledger by COPY."""
    lines = (_ledger_line(run_id, position, entry) for position, entry in enumerate(entries))
    await _copy(session, f"run_ledger ({_LEDGER_COLUMNS})", lines)


async def _copy(session: WriteSession, target: str, lines: Iterator[tuple[Any, ...]]) -> None:
    connection = await (await session.connection()).get_raw_connection()
    driver: Any = connection.driver_connection
    async with driver.cursor() as cursor, cursor.copy(f"COPY {target} FROM STDIN") as copy:
        for line in lines:
            await copy.write_row(line)


def _line(run_id: str, row: Row) -> tuple[Any, ...]:
    event = row.event
    fields = [
        {"name": f.name, "recorded": f.recorded, "replayed": f.replayed, "state": str(f.state)} for f in row.fields
    ]
    return (
        run_id,
        row.ordinal,
        str(row.state),
        plain(row.surface),
        plain(event.type),
        plain(event.label),
        plain(event.about),
        event.step,
        row.cause,
        None if row.recorded is None else dumps(row.recorded.as_json()),
        None if row.replayed is None else dumps(row.replayed.as_json()),
        dumps(fields),
    )


def _ledger_line(run_id: str, position: int, entry: LedgerEntry) -> tuple[Any, ...]:
    body = dumps(dict(entry.body))
    said = dumps({name: value for name, value in sorted(entry.body.items()) if name not in _PLACE})
    digest = hashlib.sha256(said.encode()).hexdigest()
    return run_id, position, entry.ordinal, plain(entry.kind), plain(name_of(entry)), digest, len(body), body


def name_of(entry: LedgerEntry) -> str:
    """What a step is about, in a word: the model, the tool, or the memory operation and its key."""
    body = entry.body
    match entry.kind:
        case "model":
            request = body.get("request")
            return str(request.get("model", "")) if isinstance(request, dict) else ""
        case "tool" | "intent":
            return str(body.get("tool", ""))
        case "memory":
            return f"{body.get('operation', '')} {body.get('key', '')}".strip()
    return ""


# Rows ----------------------------------------------------------------------------------------------------------------


def rows(run_id: str, filters: Filters = ALL) -> Select[RunRow]:
    """Choose a run's rows; the one condition that windows and their counts share."""
    query = select(RunRow).where(RunRow.run_id == run_id)
    if filters.only_differences:
        query = query.where(DIFFERS)
    if filters.surfaces:
        query = query.where(RunRow.surface.in_(filters.surfaces))
    if filters.types:
        query = query.where(RunRow.event_type.in_(filters.types))
    return query.where(_says(filters.text)) if filters.text else query


def _says(words: str) -> ColumnElement[bool]:
    """Whether a row, or the ledger at it, says the words; JSON is stored escaped, so the words are escaped as well."""
    escaped = dumps(words)[1:-1]
    sides = [
        cast(members(side)[part], Text).icontains(veiled(escaped), autoescape=True)
        for side in (RunRow.recorded, RunRow.replayed)
        for part in ("attributes", "payload")
    ]
    told = exists().where(
        LedgerRow.run_id == RunRow.run_id,
        LedgerRow.ordinal == RunRow.ordinal,
        cast(LedgerRow.body, Text).icontains(escaped, autoescape=True),
    )
    plainly = [
        column.icontains(plain(words), autoescape=True)
        for column in (RunRow.event_type, RunRow.label, RunRow.about, RunRow.surface)
    ]
    return or_(*plainly, *sides, told)


async def rows_from(
    session: ReadSession, chosen: Select[RunRow], start: int, limit: int, *, bodies: bool
) -> list[RunRow]:
    """Read rows from an ordinal on."""
    query = chosen.where(RunRow.ordinal >= start).order_by(RunRow.ordinal).limit(limit)
    return list(await session.scalars(query.options(*_BODIES) if bodies else query))


async def start_before(session: ReadSession, chosen: Select[RunRow], ordinal: int, count: int) -> int | None:
    """Find where the `count` rows just before an ordinal begin; None when there are none."""
    before = (
        chosen.with_only_columns(RunRow.ordinal)
        .where(RunRow.ordinal < ordinal)
        .order_by(RunRow.ordinal.desc())
        .limit(count)
        .subquery()
    )
    found: int | None = (await session.scalars(select(func.min(before.c.ordinal)))).one()
    return found


async def count_rows(session: ReadSession, chosen: Select[RunRow]) -> int:
    """Count what `chosen` chooses."""
    return (await session.scalars(chosen.with_only_columns(func.count()))).one()


async def row(session: ReadSession, run_id: str, ordinal: int) -> RunRow | None:
    """Load one row with its bodies."""
    query = select(RunRow).where(RunRow.run_id == run_id, RunRow.ordinal == ordinal).options(*_BODIES)
    return (await session.scalars(query.execution_options(populate_existing=True))).one_or_none()


async def rows_with_payload(session: ReadSession, run_id: str, name: str, limit: int) -> list[RunRow]:
    """Load the first rows whose recorded or replayed side carries a payload of that name."""
    sides = (members(RunRow.recorded), members(RunRow.replayed))
    held = or_(*(side["payload"][name].as_string().is_not(None) for side in sides))
    query = select(RunRow).where(RunRow.run_id == run_id, held).order_by(RunRow.ordinal).limit(limit)
    return list(await session.scalars(query.options(*_BODIES)))


async def bodies(session: ReadSession, run_id: str, ordinals: Collection[int]) -> list[RunRow]:
    """Load some rows with their bodies."""
    query = select(RunRow).where(RunRow.run_id == run_id, RunRow.ordinal.in_(ordinals)).options(*_BODIES)
    return list(await session.scalars(query.execution_options(populate_existing=True)))


async def neighbours(session: ReadSession, run_id: str, first: int, last: int) -> tuple[int | None, int | None]:
    """Find the ordinals of the differing rows nearest before one row and after another."""
    differing = select(RunRow.ordinal).where(RunRow.run_id == run_id, DIFFERS)
    before = differing.where(RunRow.ordinal < first).order_by(RunRow.ordinal.desc()).limit(1)
    after = differing.where(RunRow.ordinal > last).order_by(RunRow.ordinal).limit(1)
    found = (await session.execute(select(before.scalar_subquery(), after.scalar_subquery()))).one()
    return found[0], found[1]


async def facets(session: ReadSession, run_id: str) -> list[tuple[str, str, int]]:
    """Count a run's rows by surface and type."""
    query = (
        select(RunRow.surface, RunRow.event_type, func.count())
        .where(RunRow.run_id == run_id)
        .group_by(RunRow.surface, RunRow.event_type)
        .order_by(func.min(RunRow.ordinal))
    )
    return [(surface, kind, count) for surface, kind, count in await session.execute(query)]


# The ledger ----------------------------------------------------------------------------------------------------------


async def ledger(
    session: ReadSession, *which: ColumnElement[bool], start: int = 0, limit: int | None = None, bodies: bool = False
) -> list[LedgerRow]:
    """Read entries in their order, without their bodies or with them."""
    query = select(LedgerRow).where(*which, LedgerRow.position >= start).order_by(LedgerRow.position).limit(limit)
    if bodies:
        query = query.options(undefer(LedgerRow.body)).execution_options(populate_existing=True)
    return list(await session.scalars(query))


async def ledger_bodies(session: ReadSession, run_id: str, positions: Collection[int]) -> list[LedgerRow]:
    """Load some entries whole."""
    return await ledger(session, LedgerRow.run_id == run_id, LedgerRow.position.in_(positions), bodies=True)


async def ledger_lines(session: ReadSession, run_id: str) -> AsyncIterator[LedgerRow]:
    """Stream all entries of a run, whole."""
    query = select(LedgerRow).where(LedgerRow.run_id == run_id).order_by(LedgerRow.position)
    found = await session.stream_scalars(query.options(undefer(LedgerRow.body)).execution_options(yield_per=100))
    async for entry in found:
        yield entry
