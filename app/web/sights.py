"""Draws what a share shows, for the recipient and for the owner's preview alike: the same pages over redacted data.

Everything passes `redacted` before a template sees it. The pages run no script and store nothing in the browser. What
viewers of the house see is drawn here as well; theirs have the console's scripts, and follow a run.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from app.incidents import live, redacted, service
from app.incidents.errors import NotFound
from app.incidents.flink_evidence import KIND
from app.incidents.redacted import SharedRow
from app.incidents.redaction import Redactor, Reveal
from app.incidents.service import Filters, Incident, Neighbours, ReadSession, Run
from app.web.access import Permission
from app.web.downloads import download
from app.web.loading import MAX_NUMBER, pages_of, principal_of, store_of
from app.web.problems import json_response
from app.web.recorded import Recorded, context_of, event_fields, recorded_of
from app.web.views import status_of, took
from app.web.views_incident import version_of
from app.web.views_run import counts, verdict_view
from app.web.views_timeline import every_field, timeline

WINDOW: Final = 200

# Over and above what every answer carries; a share needs no script, no form and no connection.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex, nofollow, noarchive",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Sight:
    """What is to be seen: an incident or one run of it (`only`), through a redactor, at the address `base`."""

    incident: Incident
    only: Run | None
    redactor: Redactor
    base: str
    expires_at: int | None
    preview: Mapping[str, Any] | None = None
    viewer: bool = False  # somebody of the house, who gets its navigation around it

    def context(self) -> dict[str, Any]:
        """What every page of a share shows."""
        glyph, words, tone = redacted.badge(self.redactor)
        return {
            "shown": redacted.incident(self.redactor, self.incident),
            "whole": self.only is None,
            "home": self.base,
            "hidden": {"glyph": glyph, "words": words, "tone": tone},
            "texts": self.redactor.shows(Reveal.TEXTS),
            "expires_at": self.expires_at,
            "preview": self.preview,
            "frame": "viewer_base.html" if self.viewer else "share_base.html",
        }


def viewers_sight(request: Request, incident: Incident) -> Sight | None:
    """What a viewer sees of an incident; None for somebody who may read it as it is."""
    if principal_of(request).may(Permission.READ, incident.pipeline):
        return None
    return Sight(incident, None, viewers_redactor(request, incident), f"/incidents/{incident.id}", None, viewer=True)


def viewers_redactor(request: Request, incident: Incident) -> Redactor:
    """What hides an incident from viewers: the same for all of them, and another for each incident."""
    key = hmac.digest(request.app.state.keys.viewers, incident.id.encode(), "sha256")
    return Redactor(key, rules=request.app.state.rules)


@dataclass(frozen=True, slots=True)
class Follows:
    """From which version on a page follows its stream, and whether it also asks by itself, should that be cut."""

    seen: int
    asks: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """Which part of a timeline the address asks for; what is no number is not asked for."""

    at: int | None
    start: int | None
    only_differences: bool
    open_folds: bool
    unfolded: tuple[int, ...]

    @classmethod
    def of(cls, request: Request) -> Look:
        query = request.query_params
        unfolded = [number(text) for text in query.getlist("unfold")]
        return cls(
            number(query.get("at")),
            number(query.get("start")),
            query.get("show") == "differences",
            query.get("folds") == "open",
            tuple(each for each in unfolded if each is not None),
        )


def number(text: str | None) -> int | None:
    """A number of an address, None for anything else."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 10:
        return None
    return min(int(text), MAX_NUMBER)


async def front(request: Request, sight: Sight) -> Response:
    """The link itself: the incident, or where one run is shared, that run."""
    if sight.only is not None:
        return await run_page(request, sight, str(sight.only.number))
    async with store_of(request).read() as session:
        runs = await service.runs_of(session, sight.incident)
        files = await service.evidence_of(session, sight.incident)
        follows = await _follows(session, sight, runs)
    shown = [redacted.run(sight.redactor, run) for run in runs]
    return _page(
        request,
        sight,
        "share.html",
        runs=[(run, status_of(run), took(run)) for run in shown],
        files=[redacted.file(sight.redactor, file) for file in files],
        recorded_run=sight.incident.kind == KIND,
        follows=follows,
    )


async def _follows(session: ReadSession, sight: Sight, runs: Sequence[Run]) -> Follows | None:
    """What the page of an incident follows where somebody of the house looks, as a responder's does."""
    replaying = any(not run.run_state.finished for run in runs)
    if not sight.viewer or not (replaying or sight.incident.pipeline):
        return None
    status = await live.live_status(session, sight.incident) if sight.incident.pipeline else None
    return Follows(version_of(runs, status), replaying)


async def recorded_page(request: Request, sight: Sight) -> Response:
    """The recorded run of an event log, through the redactor. Raises `NotFound` for an incident that has none."""
    recorded = await _recorded(request, sight)
    return _page(request, sight, "share_recorded.html", **context_of(request, recorded))


async def recorded_event_page(request: Request, sight: Sight, ordinal: str) -> Response:
    """One recorded event with every field, through the redactor."""
    recorded = await _recorded(request, sight)
    place = _known(number(ordinal))
    told, fields = event_fields(recorded, place)
    return _page(
        request, sight, "share_recorded_event.html", event=told, fields=fields, ordinal=place,
        total=len(recorded.run.entries), recorded_base=recorded.base,
    )  # fmt: skip


async def _recorded(request: Request, sight: Sight) -> Recorded:
    async with store_of(request).read() as session:
        run = (
            None if sight.only is not None else await recorded_of(session, sight.incident, request.app.state.assembled)
        )
    if run is None:
        raise NotFound("recorded run", sight.incident.id)
    return Recorded(run, f"{sight.base}/recorded", sight.redactor)


async def run_page(request: Request, sight: Sight, run_number: str) -> Response:
    """One run: verdict and timeline."""
    async with store_of(request).read() as session:
        run = await _run(session, sight, run_number)
        context = _run_context(sight, run)
        if run.verdict is not None:
            look = Look.of(request)
            context |= await _verdict(session, sight, run)
            context |= await _timeline(session, sight, run, look)
    return _page(request, sight, "share_run.html", **context)


async def event_page(request: Request, sight: Sight, run_number: str, ordinal: str) -> Response:
    """One event with every field of both sides."""
    async with store_of(request).read() as session:
        run = await _run(session, sight, run_number)
        stored = await service.get_row(session, run, _known(number(ordinal)))
        around = await service.neighbours(session, run, stored.ordinal)
    row = redacted.row(sight.redactor, stored, bodies=True)
    line = timeline([row], bodies={row.ordinal: row}, normalised={}, first_divergence=None)[0]
    context = _run_context(sight, run) | {"row": row, "line": line, "fields": every_field(row), "around": around}
    return _page(request, sight, "share_event.html", **context)


async def verdict_file(request: Request, sight: Sight, run_number: str) -> Response:
    """The verdict as JSON, redacted like the page."""
    async with store_of(request).read() as session:
        run = await _run(session, sight, run_number)
    if run.verdict is None:
        raise NotFound("share", "link")
    body = json_response(redacted.verdict(sight.redactor, run.verdict)).body
    response = download(bytes(body), f"verdict-run-{run.number}.json", "application/json")
    if not sight.viewer:
        response.headers.update(HEADERS)
    return response


async def _run(session: ReadSession, sight: Sight, run_number: str) -> Run:
    wanted = _known(number(run_number))
    if sight.only is not None and sight.only.number != wanted:
        raise NotFound("share", "link")
    return await service.get_run_by_number(session, sight.incident, wanted)


def _known(found: int | None) -> int:
    if found is None:
        raise NotFound("share", "link")
    return found


def _run_context(sight: Sight, run: Run) -> dict[str, Any]:
    shown = redacted.run(sight.redactor, run)
    return {
        "follows": Follows(run.version) if sight.viewer and not run.run_state.finished else None,
        "run": shown,
        "status": status_of(shown),
        "took": took(shown),
        "base": f"{sight.base}/runs/{run.number}",
        "compared": sight.incident.kind == KIND,
        "verdict": None,
        "reason_code": None,
        "total": 0,
    }


async def _verdict(session: ReadSession, sight: Sight, run: Run) -> dict[str, Any]:
    told = redacted.verdict(sight.redactor, run.verdict or {})
    first = None
    if run.first_divergence is not None:
        stored = await service.get_row(session, run, run.first_divergence)
        first = redacted.row(sight.redactor, stored)
    page = dict(told)
    if not sight.redactor.shows(Reveal.TEXTS):  # the state says it; a hidden sentence beside it says nothing more
        page["surfaces"] = [{**item, "detail": ""} for item in told.get("surfaces", [])]
    return {
        "verdict": verdict_view(page, first),
        "reason_code": (told.get("reason") or {}).get("code"),
        "counted": counts(told.get("counts", {})),
        "total": told.get("counts", {}).get("rows", 0),
    }


async def _timeline(session: ReadSession, sight: Sight, run: Run, look: Look) -> dict[str, Any]:
    # A filter by text would answer questions about what is hidden: a share has none.
    filters = Filters(only_differences=look.only_differences)
    if look.at is not None:
        window = await service.rows_around(session, run, at=look.at, limit=WINDOW, filters=filters)
    else:
        window = await service.rows_of(session, run, start=look.start or 0, limit=WINDOW, filters=filters)
    rows = [redacted.row(sight.redactor, row) for row in window.rows]
    bodies: dict[int, SharedRow] = {}
    around = Neighbours(None, None)
    if rows:
        differing = await service.with_bodies(session, run, window.rows)
        bodies = {ordinal: redacted.row(sight.redactor, row, bodies=True) for ordinal, row in differing.items()}
        around = await service.neighbours(session, run, rows[0].ordinal, rows[-1].ordinal, window=window)
    told = redacted.verdict(sight.redactor, {"normalised": (run.verdict or {}).get("normalised", [])})
    normalised: dict[int, list[dict[str, Any]]] = {}
    for item in told["normalised"]:
        normalised.setdefault(item["ordinal"], []).append(item)
    return {
        "window": window,
        "around": around,
        "items": timeline(
            rows,
            bodies=bodies,
            normalised=normalised,
            first_divergence=run.first_divergence,
            unfolded=look.unfolded,
            fold=not look.open_folds,
        ),
        "only_differences": look.only_differences,
        "folds_open": look.open_folds,
        "unfolded": list(look.unfolded),
    }


def _page(request: Request, sight: Sight, name: str, **context: Any) -> Response:
    response = pages_of(request).page(name, request, **sight.context(), **context)
    if sight.preview is None and not sight.viewer:
        response.headers.update(HEADERS)
    return response
