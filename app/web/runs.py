"""The pages of a run: its verdict and timeline, one event opened, one value whole; and running it again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import service
from app.incidents.audit import Action
from app.incidents.service import Filters, Neighbours, ReadSession, RunRow, Window
from app.web.auditing import record_view
from app.web.downloads import download
from app.web.formats import duration
from app.web.loading import (
    MAX_NUMBER,
    CurrentRun,
    Number,
    ReadRun,
    ReplayRun,
    pages_of,
    principal_of,
    settings_of,
    store_of,
)
from app.web.problems import Refused, not_found
from app.web.reproduce import command
from app.web.views import status_of
from app.web.views_run import about, verdict_view
from app.web.views_timeline import every_field, timeline

router = APIRouter(prefix="/incidents/{incident_id}/runs/{number}", include_in_schema=False)

WINDOW = 200
STUCK_MS = 10_000  # a queued run that waits longer than this most likely has no worker to wait for

Ordinal = Annotated[int | None, Query(ge=0, le=MAX_NUMBER)]


@dataclass(frozen=True, slots=True)
class Look:
    """Which part of the timeline the URL asks for, and how it is folded."""

    at: int | None = None
    start: int | None = None
    only_differences: bool = False
    open_folds: bool = False
    unfolded: list[int] = field(default_factory=list)


@router.get("")
async def run(
    request: Request,
    current: ReadRun,
    at: Ordinal = None,
    start: Ordinal = None,
    show: str | None = None,
    folds: str | None = None,
    unfold: Annotated[list[int] | None, Query()] = None,
) -> Response:
    """The run page, whatever state the run is in; `at` names the event around which the window lies."""
    look = Look(at, start, show == "differences", folds == "open", unfold or [])
    if current.run.verdict is None:
        return pages_of(request).page("run.html", request, **_header(request, current))
    async with store_of(request).read() as session:
        first = current.run.first_divergence
        row = None if first is None else await service.get_row(session, current.run, first)
        context = _header(request, current, row) | await _timeline(session, current, look)
    return pages_of(request).page("run.html", request, **context)


@router.get("/events/{ordinal}")
async def event(request: Request, current: ReadRun, ordinal: Number) -> Response:
    """One event with every field of both sides: a page of its own, and what `o` opens in the timeline."""
    async with store_of(request).read() as session:
        row = await service.get_row(session, current.run, ordinal)
        around = await service.neighbours(session, current.run, ordinal)
    await record_view(request, Action.EVIDENCE_READ, current.incident, run=current.run.number, event=ordinal)
    line = timeline([row], bodies={row.ordinal: row}, normalised={}, first_divergence=None)[0]
    context = _header(request, current) | {"row": row, "line": line, "fields": every_field(row), "around": around}
    return pages_of(request).page("event.html", request, **context)


@router.get("/value")
async def value(
    request: Request,
    current: ReadRun,
    ordinal: Annotated[int, Query(ge=0, le=MAX_NUMBER)],
    side: str,
    name: Annotated[str, Query(alias="field")],
) -> Response:
    """One value whole, as a file: the page shows only the head of large ones."""
    async with store_of(request).read() as session:
        row = await service.get_row(session, current.run, ordinal)
    text = _value(row, side, name)
    if text is None:
        raise Refused(not_found(f"Event {ordinal} has no {side} value {name!r}."))
    await record_view(
        request, Action.EVIDENCE_READ, current.incident, run=current.run.number, event=ordinal, field=name, side=side
    )
    return download(text.encode("utf-8", "surrogatepass"), f"event-{ordinal}-{name}-{side}.txt", "text/plain")


@router.post("/retry")
async def retry(request: Request, current: ReplayRun) -> Response:
    """Queue a run again that ended without a verdict."""
    known = [build.name for build in settings_of(request).builds]
    async with store_of(request).write() as session:
        await service.retry_run(session, current.run.id, who=principal_of(request).name, known=known)
    return RedirectResponse(current.base, 303)


@router.post("/cancel")
async def cancel(request: Request, current: ReplayRun) -> Response:
    """End a run that waits or works."""
    async with store_of(request).write() as session:
        await service.cancel_run(session, current.run.id, who=principal_of(request).name)
    return RedirectResponse(current.base, 303)


def _header(request: Request, current: CurrentRun, first: RunRow | None = None) -> dict[str, Any]:
    """What every state of the page shows."""
    run, verdict = current.run, current.run.verdict
    since = (run.started_at if run.state == "running" else None) or run.created_at
    waited_ms = max(0, int(time.time() * 1000) - since)
    return {
        "incident": current.incident,
        "run": run,
        "retryable": run.run_state.retryable,
        "base": current.base,
        "status": status_of(run),
        "verdict": None if verdict is None else verdict_view(verdict, first),
        "elapsed": duration(waited_ms) if waited_ms >= 1000 else "a moment",
        "stuck": run.state == "queued" and waited_ms > STUCK_MS,
        "about": about(run),
        "reproduce": command(settings_of(request).builds, run.build, current.incident),
        "total": 0,
    }


async def _timeline(session: ReadSession, current: CurrentRun, look: Look) -> dict[str, Any]:
    run, verdict = current.run, current.run.verdict or {}
    window = await _window(session, current, look)
    bodies: dict[int, Any] = {}
    around = Neighbours(None, None)
    if window.rows:
        first, last = window.rows[0].ordinal, window.rows[-1].ordinal
        differing = await service.rows_of(
            session, run, start=first, limit=WINDOW, filters=Filters(only_differences=True), bodies=True
        )
        bodies = {row.ordinal: row for row in differing.rows if row.ordinal <= last}
        before = await service.neighbours(session, run, first)
        after = await service.neighbours(session, run, last)
        around = Neighbours(before.previous, after.next)
    return {
        "window": window,
        "total": verdict.get("counts", {}).get("rows", 0),
        "around": around,
        "items": timeline(
            window.rows,
            bodies=bodies,
            normalised=_normalised(verdict),
            first_divergence=run.first_divergence,
            unfolded=look.unfolded,
            fold=not look.open_folds,
        ),
        "only_differences": look.only_differences,
        "folds_open": look.open_folds,
        "unfolded": look.unfolded,
    }


async def _window(session: ReadSession, current: CurrentRun, look: Look) -> Window:
    if look.at is not None:
        return await service.rows_around(
            session, current.run, at=look.at, limit=WINDOW, filters=Filters(only_differences=look.only_differences)
        )
    return await service.rows_of(
        session,
        current.run,
        start=look.start or 0,
        limit=WINDOW,
        filters=Filters(only_differences=look.only_differences),
    )


def _normalised(verdict: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    grouped: dict[int, list[dict[str, Any]]] = {}
    for item in verdict.get("normalised", ()):
        grouped.setdefault(item["ordinal"], []).append(item)
    return grouped


def _value(row: Any, side: str, name: str) -> str | None:
    """A field of one side, by the name under which the page shows it."""
    if side not in ("recorded", "replayed"):
        return None
    for item in row.fields:
        if item["name"] == name:
            return _known(item[side])
    event = getattr(row, side) or {}
    for group, prefix in (("attributes", "attributes."), ("payload", ""), ("identity", "")):
        found = event.get(group, {}).get(name.removeprefix(prefix))
        if found is not None:
            return _known(found)
    return None


def _known(value: object) -> str | None:
    return None if value is None else str(value)
