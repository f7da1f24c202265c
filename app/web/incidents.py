"""The pages of incidents: the list, one incident with its evidence and runs, its files, its bundle."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import live, service
from app.incidents.audit import Action
from app.incidents.service import Incident, Run
from app.web.auditing import record_view
from app.web.downloads import download
from app.web.forms import read_form
from app.web.loading import (
    READ,
    Number,
    ReadIncident,
    ReplayIncident,
    pages_of,
    principal_of,
    settings_of,
    store_of,
)
from app.web.reproduce import bundle_name
from app.web.views import choices
from app.web.views_incident import EvidenceLine, RunLine, about, attempt_pairs, cards, version_of
from app.web.views_live import live_view

router = APIRouter(include_in_schema=False)

DEMO: Final = "the demo"  # who opened the story's incident


@router.get("/", dependencies=[READ])
async def incidents(request: Request, after: str | None = None) -> Response:
    """The list, newest first; its first page is the console's front page."""
    async with store_of(request).read() as session:
        page = await service.list_incidents(session, after=after)
        latest = await service.latest_runs(session, page.items)
    runs = {ident: RunLine.of(run) for ident, run in latest.items()}
    # The story of `hindcast demo` says what to click, as long as it is what one sees here.
    story = next((item for item in page.items if item.created_by == DEMO), None)
    shown = story if settings_of(request).pipelines else None
    return pages_of(request).page("incidents.html", request, page=page, runs=runs, paged=after is not None, story=shown)


@router.get("/incidents", dependencies=[READ])
async def incidents_alias() -> Response:
    return RedirectResponse("/", 307)


@router.get("/incidents/{incident_id}")
async def incident(request: Request, incident: ReadIncident) -> Response:
    """One incident: evidence, runs, and what a replay can show."""
    async with store_of(request).read() as session:
        files = await service.evidence_of(session, incident)
        runs = await service.runs_of(session, incident)
        gathering, others = None, []
        around: tuple[live.Activation, ...] = ()
        if incident.pipeline is not None:
            status = await live.live_status(session, incident)
            gathering = live_view(incident, status, files)
            of_key = live.ActivationFilter(pipeline=incident.pipeline, entity_key=incident.entity_key)
            around = (await live.list_activations(session, of_key, limit=8)).items
            assert incident.entity_key is not None, "an incident of a pipeline is of a key"
            others = [
                each
                for each in await live.incidents_about(session, incident.pipeline, incident.entity_key)
                if each.id != incident.id
            ]
    evidence = [EvidenceLine.of(file) for file in files]
    replaying = any(not run.run_state.finished for run in runs)
    settings = settings_of(request)
    return pages_of(request).page(
        "incident.html",
        request,
        incident=incident,
        evidence=evidence,
        runs=[RunLine.of(run) for run in runs],
        choices=choices(settings.builds, incident, settings.pipelines),
        gathering=gathering,
        around=around,
        others=others,
        moving=replaying or (gathering is not None and gathering.under_way),
        cards=cards(incident, evidence),
        about=about(incident),
        attempt=attempt_pairs(incident),
        live=replaying or gathering is not None,
        seen=version_of(runs, None if gathering is None else gathering.status),
    )


@router.post("/incidents/{incident_id}/replays")
async def replay(request: Request, incident: ReplayIncident) -> Response:
    """The Replay button: queue a run of the chosen build and go to its page."""
    form = await read_form(request)
    run = await queue_run(request, incident, form.value("build") or "")
    return RedirectResponse(f"/incidents/{incident.id}/runs/{run.number}", 303)


async def queue_run(request: Request, incident: Incident, build: str) -> Run:
    """Queue a run in one transaction. Raises `UnknownBuild`."""
    known = [each.name for each in settings_of(request).builds]
    async with store_of(request).write() as session:
        return await service.request_replay(session, incident, build, who=principal_of(request).name, known=known)


@router.get("/incidents/{incident_id}/evidence/{evidence_id}")
async def evidence_file(request: Request, incident: ReadIncident, evidence_id: Number) -> Response:
    """One file, byte for byte as it was received."""
    async with store_of(request).read() as session:
        evidence = await service.get_evidence(session, incident, evidence_id)
        data = await service.evidence_bytes(session, evidence)
    await record_view(request, Action.EVIDENCE_READ, incident, evidence=evidence.id, sha256=evidence.sha256)
    return download(data, evidence.name, "application/octet-stream")


@router.get("/incidents/{incident_id}/bundle.zip")
async def bundle(request: Request, incident: ReadIncident) -> Response:
    """All evidence as one file, which imports again here and replays in a terminal."""
    return await bundle_response(request, incident)


async def bundle_response(request: Request, incident: Incident) -> Response:
    async with store_of(request).read() as session:
        data = await service.export_bundle(session, incident)
    await record_view(request, Action.INCIDENT_EXPORTED, incident, size=len(data))
    return download(data, bundle_name(incident), "application/zip")
