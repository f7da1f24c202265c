"""Sharing: the links themselves, the owner's preview of one, making it, and the list of all with the end of each."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import service, shares
from app.incidents.errors import NotFound
from app.incidents.redaction import Redactor, Reveal, Rules
from app.incidents.service import Incident, Run
from app.incidents.share_models import Share
from app.incidents.shares import Listed
from app.web import sights
from app.web.access import Permission, Principal, Requires, admitted, note_refusal
from app.web.forms import read_form
from app.web.limits import RateLimits, address_of
from app.web.loading import LoadIncident, authorise, base_of, pages_of, principal_of, store_of
from app.web.problems import Problem, Refused
from app.web.sights import Sight

router = APIRouter(include_in_schema=False)

LIFETIMES: Final[Mapping[str, tuple[int, str]]] = {
    "1h": (3600, "1 hour"),
    "1d": (24 * 3600, "1 day"),
    "7d": (shares.DEFAULT_EXPIRY_S, "7 days"),
    "30d": (30 * 24 * 3600, "30 days"),
}
DEFAULT_LIFETIME: Final = "7d"
REVEALS: Final[Mapping[Reveal, str]] = {
    Reveal.KEY: "Key, and the ids that are made from it",
    Reveal.NAMES: "Names: tools, models, fields, builds",
    Reveal.PAYLOADS: "Payloads: prompts, responses, arguments, outputs, attributes, digests of files",
    Reveal.MEMORY: "Memory and continuations",
    Reveal.TEXTS: "Title, file names, sentences and errors: they may quote any of the above",
}
_WHOLE: Final = "all"
_NOTHING: Final = "redacted"

SHARE = Depends(Requires(Permission.SHARE))
ShareIncident = Annotated[Incident, Depends(LoadIncident(Permission.SHARE))]


# What a link shows ---------------------------------------------------------------------------------------------------


class LoadShare:
    """Finds a link that the person may end: their own, or as an admin anybody's. Any other is not found."""

    permission = Permission.SHARE

    async def __call__(self, request: Request, share_id: str) -> Share:
        await admitted(request)
        async with store_of(request).read() as session:
            share, pipeline = await shares.get_share(session, share_id)
        await authorise(request, self.permission, pipeline, "share", share_id)
        if not _theirs(principal_of(request), share, pipeline):
            await note_refusal(request, principal_of(request), Permission.SHARES, share_id)
            raise NotFound("share", share_id)
        return share


def _theirs(principal: Principal, share: Share, pipeline: str | None) -> bool:
    if principal.may(Permission.SHARES, pipeline):
        return True
    return principal.may(Permission.SHARE, pipeline) and share.created_by == principal.name


async def listed_for(request: Request, incident: Incident | None = None) -> Sequence[Listed]:
    """The links that the person may end, or could have ended."""
    principal = principal_of(request)
    async with store_of(request).read() as session:
        return await shares.list_shares(
            session,
            incident=incident,
            now_ms=now_of(request),
            shown=lambda share, pipeline: _theirs(principal, share, pipeline),
        )


class LoadShared:
    """Finds what a link shows, on every request anew; whatever is wrong with it, the answer is one and the same."""

    permission = Permission.SHARED

    async def __call__(self, request: Request, token: str) -> Sight:
        """Count the access, and load. Raises `NotFound`, or `Refused` with 429."""
        limits: RateLimits = request.app.state.rates
        address = address_of(request)
        limits.dead.check(address)
        limits.shared.check(address)
        try:
            async with store_of(request).write() as session:
                opened = await shares.open_share(session, token, now_ms=now_of(request))
        except NotFound:
            limits.dead.note(address)
            raise
        limits.shared.note(address)
        return Sight(
            opened.incident, opened.run, opened.redactor(rules_of(request)), f"/s/{token}", opened.share.expires_at
        )


class LoadPreview:
    """What a link would show that does not exist yet; the address holds the choices."""

    permission = Permission.SHARE

    async def __call__(self, request: Request, incident_id: str, scope: str, choice: str, lifetime: str) -> Sight:
        incident = await LoadIncident(self.permission)(request, incident_id)
        run = await _only(request, incident, scope)
        reveal = shares.revealed([] if choice == _NOTHING else choice.split("-"))
        if lifetime not in LIFETIMES:
            raise NotFound("lifetime", lifetime)
        # Digests of a preview mean nothing in the share that is made of it, which has a key of its own.
        key = hmac.digest(request.app.state.keys.previews, incident.id.encode(), "sha256")
        preview = {
            "incident_id": incident.id,
            "run": None if run is None else run.number,
            "reveal": sorted(map(str, reveal)),
            "lifetime": lifetime,
            "lives": LIFETIMES[lifetime][1],
        }
        base = f"/incidents/{incident.id}/preview/{scope}/{choice}/{lifetime}"
        return Sight(incident, run, Redactor(key, reveal, rules_of(request)), base, None, preview)


TheirShare = Annotated[Share, Depends(LoadShare())]
Shared = Annotated[Sight, Depends(LoadShared())]
Preview = Annotated[Sight, Depends(LoadPreview())]
_PREVIEW: Final = "/incidents/{incident_id}/preview/{scope}/{choice}/{lifetime}"


@router.get("/s/{token}")
async def shared(request: Request, sight: Shared) -> Response:
    return await sights.front(request, sight)


@router.get("/s/{token}/runs/{number}")
async def shared_run(request: Request, sight: Shared, number: str) -> Response:
    return await sights.run_page(request, sight, number)


@router.get("/s/{token}/runs/{number}/events/{ordinal}")
async def shared_event(request: Request, sight: Shared, number: str, ordinal: str) -> Response:
    return await sights.event_page(request, sight, number, ordinal)


@router.get("/s/{token}/runs/{number}/verdict.json")
async def shared_verdict(request: Request, sight: Shared, number: str) -> Response:
    return await sights.verdict_file(request, sight, number)


@router.get("/s/{token}/recorded")
async def shared_recorded(request: Request, sight: Shared) -> Response:
    return await sights.recorded_page(request, sight)


@router.get("/s/{token}/recorded/events/{ordinal}")
async def shared_recorded_event(request: Request, sight: Shared, ordinal: str) -> Response:
    return await sights.recorded_event_page(request, sight, ordinal)


@router.get(_PREVIEW)
async def preview(request: Request, sight: Preview) -> Response:
    return await sights.front(request, sight)


@router.get(_PREVIEW + "/recorded")
async def preview_recorded(request: Request, sight: Preview) -> Response:
    return await sights.recorded_page(request, sight)


@router.get(_PREVIEW + "/recorded/events/{ordinal}")
async def preview_recorded_event(request: Request, sight: Preview, ordinal: str) -> Response:
    return await sights.recorded_event_page(request, sight, ordinal)


@router.get(_PREVIEW + "/runs/{number}")
async def preview_run(request: Request, sight: Preview, number: str) -> Response:
    return await sights.run_page(request, sight, number)


@router.get(_PREVIEW + "/runs/{number}/events/{ordinal}")
async def preview_event(request: Request, sight: Preview, number: str, ordinal: str) -> Response:
    return await sights.event_page(request, sight, number, ordinal)


@router.get(_PREVIEW + "/runs/{number}/verdict.json")
async def preview_verdict(request: Request, sight: Preview, number: str) -> Response:
    return await sights.verdict_file(request, sight, number)


# Making, listing, ending ---------------------------------------------------------------------------------------------


@router.get("/incidents/{incident_id}/shares/new")
async def new_share(request: Request, incident: ShareIncident) -> Response:
    """The form: what, for how long, what is opened. It leads to the preview, and only that makes the link."""
    query = request.query_params
    if "lifetime" in query:
        choice = "-".join(str(each) for each in Reveal if str(each) in query.getlist("reveal")) or _NOTHING
        scope = query.get("run") or _WHOLE
        if query["lifetime"] in LIFETIMES and (scope == _WHOLE or sights.number(scope) is not None):
            where = f"/incidents/{incident.id}/preview/{scope}/{choice}/{query['lifetime']}"
            return RedirectResponse(where, 303)
    async with store_of(request).read() as session:
        runs = await service.runs_of(session, incident)
    listed = await listed_for(request, incident)
    return pages_of(request).page(
        "share_new.html",
        request,
        incident=incident,
        runs=runs,
        chosen_run=sights.number(query.get("run")),
        chosen=set(query.getlist("reveal")),
        reveals=REVEALS,
        lifetimes=LIFETIMES,
        chosen_lifetime=query.get("lives") if query.get("lives") in LIFETIMES else DEFAULT_LIFETIME,
        live=sum(item.state == "live" for item in listed),
    )


@router.post("/incidents/{incident_id}/shares")
async def create(request: Request, incident: ShareIncident) -> Response:
    """Make the link and show it, this once."""
    form = await read_form(request)
    lifetime = form.value("lifetime") or DEFAULT_LIFETIME
    if lifetime not in LIFETIMES:
        raise Refused(
            Problem(422, "Unknown lifetime", f"{lifetime!r} is no lifetime.", f"one of {', '.join(LIFETIMES)}")
        )
    reveal = shares.revealed(form.values.get("reveal", []))
    run = await _only(request, incident, form.value("run") or _WHOLE)
    share, url = await make(request, incident, run, reveal, LIFETIMES[lifetime][0])
    return pages_of(request).page(
        "share_created.html", request, 201, incident=incident, share=share, run=run, url=url, reveals=REVEALS
    )


@router.get("/shares", dependencies=[SHARE])
async def list_all(request: Request) -> Response:
    """All links in one place, those that are alive first."""
    return pages_of(request).page("shares.html", request, listed=await listed_for(request))


@router.post("/shares/{share_id}/revoke")
async def revoke(request: Request, share: TheirShare) -> Response:
    await end(request, share.id)
    return RedirectResponse("/shares", 303)


async def make(
    request: Request, incident: Incident, run: Run | None, reveal: frozenset[Reveal], expires_in_s: int
) -> tuple[Share, str]:
    """Make a link in one unit of work; returns it and its whole address. Raises `Refused` with 429."""
    limits: RateLimits = request.app.state.rates
    limits.shares.check(principal_of(request).name)
    limits.shares.note(principal_of(request).name)
    async with store_of(request).write() as session:
        share, token = await shares.create_share(
            session,
            incident,
            who=principal_of(request).name,
            run=run,
            reveal=reveal,
            expires_in_s=expires_in_s,
            now_ms=now_of(request),
        )
    return share, f"{base_of(request)}/s/{token}"


async def end(request: Request, share_id: str) -> None:
    """Revoke a link. Raises `NotFound`."""
    async with store_of(request).write() as session:
        await shares.revoke_share(session, share_id, who=principal_of(request).name, now_ms=now_of(request))


async def _only(request: Request, incident: Incident, scope: str) -> Run | None:
    """The one run that is shared; None for the whole incident."""
    if scope == _WHOLE:
        return None
    number = sights.number(scope)
    if number is None:
        raise NotFound("run", scope)
    async with store_of(request).read() as session:
        return await service.get_run_by_number(session, incident, number)


def now_of(request: Request) -> int | None:
    """The time at which a link is judged: None lets the database's clock decide; tests stop it."""
    clock: Any = request.app.state.clock
    return None if clock is None else int(clock())


def rules_of(request: Request) -> Rules:
    """The configuration's rules, compiled once per process."""
    rules: Rules = request.app.state.rules
    return rules
