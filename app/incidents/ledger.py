"""A run's ledger: what the model saw, what it said, what the agent did with it, read event by event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from app.incidents import rows as db
from app.incidents.errors import found
from app.incidents.models import LedgerRow, Run
from app.incidents.store import ReadSession
from app.replay.ledger import DEFAULT_BYTES
from app.replay.verdict import LedgerEntry

# How many bytes a worker lets a run's ledger have.
LEDGER_BYTES: Final = DEFAULT_BYTES
PAGE: Final = 50


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What a run's ledger holds: entries, how many of them explain no row, and how many did not fit."""

    entries: int
    unplaced: int
    cut: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def summary_of(entries: Sequence[LedgerEntry]) -> LedgerSummary:
    """Sum a ledger up for the run's own row."""
    told = [entry for entry in entries if entry.kind != "cut"]
    cut = sum(int(entry.body.get("entries", 0)) for entry in entries if entry.kind == "cut")
    return LedgerSummary(len(told), sum(entry.ordinal is None for entry in told), cut)


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """Some of the entries asked for, with their bodies; `next` is where to go on, None at the end."""

    entries: tuple[LedgerRow, ...]
    next: int | None


async def ledger_outline(
    session: ReadSession, run: Run, first: int, last: int, *, limit: int = 5_000
) -> list[LedgerRow]:
    """List the entries at rows `first` to `last`, without their bodies."""
    return await db.ledger(session, LedgerRow.run_id == run.id, LedgerRow.ordinal.between(first, last), limit=limit)


async def ledger_outline_of(session: ReadSession, run: Run, limit: int) -> list[LedgerRow]:
    """List a run's first entries, without their bodies."""
    return await db.ledger(session, LedgerRow.run_id == run.id, LedgerRow.kind != "cut", limit=limit)


async def ledger_bodies(session: ReadSession, run: Run, positions: Collection[int]) -> list[LedgerRow]:
    """Load some entries whole."""
    return await db.ledger_bodies(session, run.id, positions) if positions else []


async def ledger_at(
    session: ReadSession, run: Run, ordinal: int | None, *, start: int = 0, limit: int = PAGE
) -> LedgerPage:
    """Load the entries that explain one row, or (None) those that explain no row; `start` is a `LedgerPage.next`."""
    here = LedgerRow.ordinal.is_(None) if ordinal is None else LedgerRow.ordinal == ordinal
    which = (LedgerRow.run_id == run.id, here, LedgerRow.kind != "cut")
    entries = await db.ledger(session, *which, start=start, limit=limit + 1, bodies=True)
    return LedgerPage(tuple(entries[:limit]), entries[limit].position if len(entries) > limit else None)


async def ledger_page(session: ReadSession, run: Run, *, start: int = 0, limit: int = PAGE) -> LedgerPage:
    """Load a run's entries in their order, whatever they explain; `start` is a `LedgerPage.next`."""
    which = (LedgerRow.run_id == run.id, LedgerRow.kind != "cut")
    entries = await db.ledger(session, *which, start=start, limit=limit + 1, bodies=True)
    return LedgerPage(tuple(entries[:limit]), entries[limit].position if len(entries) > limit else None)


async def ledger_entry(session: ReadSession, run: Run, position: int) -> LedgerRow:
    """Load one entry whole. Raises `NotFound`."""
    entries = await db.ledger_bodies(session, run.id, [position])
    return found(entries[0] if entries else None, "ledger entry", position)


async def ledger_lines(session: ReadSession, run: Run) -> AsyncIterator[dict[str, Any]]:
    """Go through a run's whole ledger, as `hindcast replay --ledger` writes it."""
    async for entry in db.ledger_lines(session, run.id):
        yield entry_json(entry)


def entry_json(entry: LedgerRow) -> dict[str, Any]:
    """One entry as `LedgerEntry.as_json` has it."""
    return {"ordinal": entry.ordinal, "kind": entry.kind, **entry.body}
