"""Windows on a run's timeline: a page reads hundreds of rows of thousands, and says truly how many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.incidents import rows as db
from app.incidents.errors import found
from app.incidents.models import Run, RunRow
from app.incidents.rows import ALL, Filters
from app.incidents.store import ReadSession

MAX_WINDOW: Final = 1000


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run's timeline around some row.

    `total` counts the rows of the whole list asked for, by the same condition that chose `rows`. `previous` and `next`
    are what to pass as `start` for the windows before and after, None at the ends. `whole`: these are all of the run's.
    """

    rows: tuple[RunRow, ...]
    total: int
    previous: int | None
    next: int | None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Ordinals of the differing rows just before and just after one row; None where there is none."""

    previous: int | None
    next: int | None


@dataclass(frozen=True, slots=True)
class Facet:
    """How many rows of a run are of one surface and type."""

    surface: str
    type: str
    count: int


async def rows_of(
    session: ReadSession,
    run: Run,
    *,
    start: int = 0,
    limit: int = 200,
    filters: Filters = ALL,
    bodies: bool = False,
) -> Window:
    """Read the rows of a run from ordinal `start` on; `bodies` loads recorded, replayed and fields with them."""
    limit = max(1, min(limit, MAX_WINDOW))
    chosen = db.rows(run.id, filters)
    rows = await db.rows_from(session, chosen, start, limit + 1, bodies=bodies)
    shown = tuple(rows[:limit])
    first, further = start <= 0, rows[limit].ordinal if len(rows) > limit else None  # ordinals count from 0
    total = len(shown) if first and further is None else await db.count_rows(session, chosen)
    previous = None if first else await db.start_before(session, chosen, shown[0].ordinal if shown else start, limit)
    return Window(shown, total, previous, further, whole=first and further is None and not filters.any)


async def rows_around(
    session: ReadSession, run: Run, *, at: int, limit: int = 200, filters: Filters = ALL, bodies: bool = False
) -> Window:
    """Read the rows around ordinal `at`, so that a link to one event always finds it in the window."""
    limit = max(1, min(limit, MAX_WINDOW))
    start = await db.start_before(session, db.rows(run.id, filters), at, (limit - 1) // 2) if limit > 2 else None
    return await rows_of(
        session, run, start=at if start is None else start, limit=limit, filters=filters, bodies=bodies
    )


async def rows_before(
    session: ReadSession, run: Run, *, end: int, limit: int = 200, filters: Filters = ALL, bodies: bool = False
) -> Window:
    """Read the last rows before ordinal `end`: the way back from a window that begins there."""
    limit = max(1, min(limit, MAX_WINDOW))
    start = await db.start_before(session, db.rows(run.id, filters), end, limit)
    window = await rows_of(session, run, start=start or 0, limit=limit, filters=filters, bodies=bodies)
    beyond = next((row.ordinal for row in window.rows if row.ordinal >= end), window.next)
    kept = tuple(row for row in window.rows if row.ordinal < end)
    return replace(window, rows=kept, next=beyond, whole=window.whole and len(kept) == len(window.rows))


async def get_row(session: ReadSession, run: Run, ordinal: int) -> RunRow:
    """Load one row with its bodies. Raises `NotFound`."""
    return found(await db.row(session, run.id, ordinal), "row", ordinal)


async def with_bodies(session: ReadSession, run: Run, rows: Sequence[RunRow]) -> dict[int, RunRow]:
    """Load the bodies of those rows that differ; they by their ordinals, the others are left out."""
    differing = [row.ordinal for row in rows if row.differs]
    return {row.ordinal: row for row in await db.bodies(session, run.id, differing)} if differing else {}


async def neighbours(
    session: ReadSession, run: Run, first: int, last: int | None = None, *, window: Window | None = None
) -> Neighbours:
    """Find the differing rows before row `first` and after row `last` (default: the same), for the keys `n` and `p`.

    A `window` that is whole answers by itself.
    """
    last = first if last is None else last
    if window is None or not window.whole:
        return Neighbours(*await db.neighbours(session, run.id, first, last))
    differing = [row.ordinal for row in window.rows if row.differs]
    before = [ordinal for ordinal in differing if ordinal < first]
    after = [ordinal for ordinal in differing if ordinal > last]
    return Neighbours(max(before, default=None), min(after, default=None))


async def facets_of(session: ReadSession, run: Run, *, window: Window | None = None) -> list[Facet]:
    """What a run's timeline can be narrowed to, in the order of first appearance, each with its count.

    A `window` that is whole answers by itself.
    """
    if window is None or not window.whole:
        return [Facet(*facet) for facet in await db.facets(session, run.id)]
    counted = Counter((row.surface, row.event_type) for row in window.rows)
    return [Facet(*named, count) for named, count in counted.items()]


async def rows_with_payload(session: ReadSession, run: Run, name: str, limit: int = 200) -> list[RunRow]:
    """Load the rows whose events carry a payload of that name (`args_json`: what was asked for), with their bodies."""
    return await db.rows_with_payload(session, run.id, name, limit)
