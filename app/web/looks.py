"""Reads the part of a run's timeline that a URL asks for, and lays it out: window, filters, folds, view, stories."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, Query

from app.incidents import service
from app.incidents.service import Facet, Filters, LedgerRow, Neighbours, ReadSession, Run, RunRow, Window
from app.web.loading import MAX_NUMBER
from app.web.views_story import Step, Telling, story
from app.web.views_timeline import Item, Told, fit, sketch

WINDOW: Final = 200
_STORIES: Final = 12  # events of a window that may tell their story unasked
_STEPS: Final = 6
_SMALL: Final = 8_000  # bytes of an event's entries that are told unasked
_TOLD: Final = "model"  # entries of this kind are told unasked, wherever they are small

Ordinal = Annotated[int | None, Query(ge=0, le=MAX_NUMBER)]
Words = Annotated[str, Query(max_length=200)]
Several = Annotated[list[str] | None, Query(max_length=50)]


@dataclass(frozen=True, slots=True)
class Look:
    """Which part of the timeline the URL asks for, and how it is drawn; of `at`, `end` and `start` the first holds."""

    at: int | None = None
    start: int | None = None
    end: int | None = None
    filters: Filters = field(default_factory=Filters)
    open_folds: bool = False
    unfolded: Sequence[int] = ()
    unified: bool = False


def look_of(
    at: Ordinal = None,
    start: Ordinal = None,
    end: Ordinal = None,
    show: str | None = None,
    folds: str | None = None,
    unfold: Annotated[list[int] | None, Query(max_length=200)] = None,
    view: str | None = None,
    surface: Several = None,
    type: Several = None,  # noqa: A002  it is the name in the URL
    q: Words = "",
) -> Look:
    """Read the query of a run page; what means nothing there is left alone."""
    filters = Filters(
        surfaces=[name for name in surface or () if name],
        types=[name for name in type or () if name],
        text=q.strip(),
        only_differences=show == "differences",
    )
    return Look(at, start, end, filters, folds == "open", unfold or [], view == "unified")


ReadLook = Annotated[Look, Depends(look_of)]


@dataclass(frozen=True, slots=True)
class Seen:
    """A window as the page draws it. `earlier` and `later` are ordinals to go on from, None at the ends."""

    items: Sequence[Item]
    window: Window
    total: int
    earlier: int | None
    later: int | None
    around: Neighbours
    facets: Sequence[Facet]


async def seen(session: ReadSession, run: Run, look: Look, first: RunRow | None) -> Seen:
    """Read and lay out what is asked for; `first` is the row of the first divergence, with its bodies."""
    verdict = run.verdict or {}
    window = await _window(session, run, look)
    facets = await service.facets_of(session, run, window=window)
    total = sum(facet.count for facet in facets)
    if not window.rows:
        return Seen((), window, total, None, None, Neighbours(None, None), facets)
    items = sketch(
        window.rows,
        bodies=await service.with_bodies(session, run, window.rows),
        normalised=_normalised(verdict),
        first_divergence=run.first_divergence,
        unfolded=look.unfolded,
        fold=not look.open_folds,
        told=await _stories(session, run, window.rows, telling_of(run, first, brief=True)),
    )
    cut = fit(items, look.at, backwards=look.end is not None)
    begin, end = cut.items[0].begin, cut.items[-1].last
    around = await service.neighbours(session, run, begin, end, window=window)
    later = next((item.begin for item in items if item.begin > end), window.next)
    earlier = begin if cut.before or window.previous is not None else None
    return Seen(cut.items, window, total, earlier, later, around, facets)


async def _window(session: ReadSession, run: Run, look: Look) -> Window:
    if look.at is not None:
        return await service.rows_around(session, run, at=look.at, limit=WINDOW, filters=look.filters)
    if look.end is not None:
        return await service.rows_before(session, run, end=look.end, limit=WINDOW, filters=look.filters)
    return await service.rows_of(session, run, start=look.start or 0, limit=WINDOW, filters=look.filters)


def _normalised(verdict: Mapping[str, Any]) -> dict[int, list[dict[str, Any]]]:
    grouped: dict[int, list[dict[str, Any]]] = {}
    for item in verdict.get("normalised", ()):
        grouped.setdefault(item["ordinal"], []).append(item)
    return grouped


# What the ledger tells unasked ---------------------------------------------------------------------------------------


async def _stories(session: ReadSession, run: Run, rows: Sequence[RunRow], telling: Telling) -> Mapping[int, Told]:
    """The stories of small model calls, and of the first diverging event; of other events only how many steps wait."""
    if not run.ledger:
        return {}
    by_ordinal: dict[int, list[LedgerRow]] = {}
    for entry in await service.ledger_outline(session, run, rows[0].ordinal, rows[-1].ordinal):
        if entry.ordinal is not None:
            by_ordinal.setdefault(entry.ordinal, []).append(entry)
    chosen: dict[int, list[LedgerRow]] = {}
    for ordinal in _in_order_of_interest(by_ordinal, run.first_divergence):
        entries = [e for e in by_ordinal[ordinal] if _unasked(e, ordinal == run.first_divergence)][:_STEPS]
        if entries and sum(entry.size for entry in entries) <= _SMALL and len(chosen) < _STORIES:
            chosen[ordinal] = entries
    positions = [entry.position for entries in chosen.values() for entry in entries]
    bodies = {entry.position: entry for entry in await service.ledger_bodies(session, run, positions)}
    told: dict[int, Told] = {}
    for ordinal, entries in by_ordinal.items():
        here = [bodies[entry.position] for entry in chosen.get(ordinal, ())]
        steps: tuple[Step, ...] = tuple(story(here, telling))
        told[ordinal] = Told(steps, len(entries) - len(steps))
    return told


def _unasked(entry: LedgerRow, at_divergence: bool) -> bool:
    """Model calls tell themselves; at the first divergence everything does but intents, whose arguments stand there."""
    return entry.kind == _TOLD or (at_divergence and entry.kind != "intent")


def _in_order_of_interest(ordinals: Mapping[int, object], first: int | None) -> list[int]:
    """The first divergence, then what is nearest to it; without one, the order of the timeline."""
    return sorted(ordinals) if first is None else sorted(ordinals, key=lambda ordinal: abs(ordinal - first))


def telling_of(run: Run, first: RunRow | None, *, brief: bool = False) -> Telling:
    """How a run's stories are told; values of the row of the first divergence are marked in them."""
    verdict = run.verdict or {}
    answers = verdict.get("served", {}).get("answers", ())
    sources = {answer["cache_key"]: answer["source"] for answer in answers}
    return Telling(sources, () if first is None else frozenset(_values(first)), brief)


_ID: Final = re.compile(r"[0-9a-f]{16,}|[0-9a-f]{8}-[0-9a-f-]{27}")
_NUMBER: Final = re.compile(r"-?\d[\d.]{2,20}")
_PLAIN: Final = frozenset({"true", "false", "null", "none", "start", "resume", "completed"})


def _values(row: RunRow) -> Iterator[str]:
    """What the first divergence is about: numbers that differ, and texts where both sides have one."""
    for item in row.fields:
        both = item["recorded"] is not None and item["replayed"] is not None
        for side in ("recorded", "replayed"):
            value = item[side] or ""
            if item["state"] == "changed" and (_NUMBER.fullmatch(value) or (both and _telling(value))):
                yield value.strip('"')
    for event in (row.recorded, row.replayed):
        if event is not None and not row.fields:
            for text in event.get("payload", {}).values():
                yield from (str(number) for number in _numbers(text) if abs(number) >= 100)


def _telling(value: str) -> bool:
    """Whether a text is worth looking for elsewhere: no id, no word that stands everywhere."""
    text = value.strip('"')
    return 4 <= len(text) <= 80 and "\n" not in text and not _ID.fullmatch(text) and text.lower() not in _PLAIN


def _numbers(text: str) -> Iterator[int | float]:
    try:
        todo = [json.loads(text)] if len(text) <= 20_000 else []
    except (ValueError, RecursionError):
        return
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list):
            todo += value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value
