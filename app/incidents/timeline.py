"""Windows on a run's timeline: a page reads hundreds of rows of thousands, and says truly how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.incidents import repository as db
from app.incidents.errors import found
from app.incidents.models import Run, RunRow
from app.incidents.store import ReadSession

MAX_WINDOW: Final = 1000


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run's timeline around some row.

    `total` counts the rows of the whole list asked for (all, or only the differing ones), by the same condition that
    chose `rows`. `previous` and `next` are what to pass as `start` for the windows before and after, None at the ends.
    """

    rows: tuple[RunRow, ...]
    total: int
    previous: int | None
    next: int | None


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Ordinals of the differing rows just before and just after one row; None where there is none."""

    previous: int | None
    next: int | None


async def rows_of(
    session: ReadSession,
    run: Run,
    *,
    start: int = 0,
    limit: int = 200,
    only_differences: bool = False,
    bodies: bool = False,
) -> Window:
    """Read the rows of a run from ordinal `start` on; `bodies` loads recorded, replayed and fields with them."""
    limit = max(1, min(limit, MAX_WINDOW))
    chosen = db.rows(run.id, only_differences=only_differences)
    rows = await db.rows_from(session, chosen, start, limit + 1, bodies=bodies)
    shown = tuple(rows[:limit])
    total = await db.count_rows(session, chosen)
    previous = await db.start_before(session, chosen, shown[0].ordinal if shown else start, limit)
    return Window(shown, total, previous, rows[limit].ordinal if len(rows) > limit else None)


async def rows_around(
    session: ReadSession,
    run: Run,
    *,
    at: int,
    limit: int = 200,
    only_differences: bool = False,
    bodies: bool = False,
) -> Window:
    """Read the rows around ordinal `at`, so that a link to one event always finds it in the window."""
    limit = max(1, min(limit, MAX_WINDOW))
    chosen = db.rows(run.id, only_differences=only_differences)
    start = await db.start_before(session, chosen, at, (limit - 1) // 2) if limit > 2 else None
    return await rows_of(
        session,
        run,
        start=at if start is None else start,
        limit=limit,
        only_differences=only_differences,
        bodies=bodies,
    )


async def get_row(session: ReadSession, run: Run, ordinal: int) -> RunRow:
    """Load one row with its bodies. Raises `NotFound`."""
    return found(await db.row(session, run.id, ordinal), "row", ordinal)


async def neighbours(session: ReadSession, run: Run, ordinal: int) -> Neighbours:
    """Find the differing rows before and after a row, for the keys `n` and `p`."""
    return Neighbours(*await db.neighbours(session, run.id, ordinal))
