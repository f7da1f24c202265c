"""Export key: the page that says what will be disclosed and asks why, the request, and asking again."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import live
from app.incidents.errors import IncidentError, NotFound
from app.incidents.service import Incident
from app.web.forms import read_form
from app.web.loading import (
    ExportIncident,
    OpenIncident,
    limit_exports,
    pages_of,
    pipelines_of,
    principal_of,
    settings_of,
    store_of,
)
from app.web.problems import Refused, not_found

router = APIRouter(prefix="/incidents/{incident_id}", include_in_schema=False)


@router.get("/export")
async def export_form(request: Request, incident: ExportIncident) -> Response:
    """State topic, key and what is disclosed, before anything is asked of the pipeline."""
    if incident.pipeline is None:
        raise Refused(not_found("This incident came from files: no pipeline is known that could be asked."))
    return await _form(request, incident)


@router.post("/exports")
async def request_export(request: Request, incident: ExportIncident) -> Response:
    """Ask the pipeline for the key's state."""
    limit_exports(request)
    form = await read_form(request)
    reason = form.value("reason") or ""
    try:
        async with store_of(request).write() as session:
            await live.request_export(
                session,
                incident,
                who=principal_of(request).name,
                reason=reason,
                known=pipelines_of(request),
                timeout_s=settings_of(request).collector.export_timeout_s,
            )
    except IncidentError as error:
        if incident.pipeline not in pipelines_of(request):
            raise
        return await _form(request, incident, reason, f"{error}.")
    return RedirectResponse(f"/incidents/{incident.id}", 303)


@router.post("/exports/{export_id}/retry")
async def retry_export(request: Request, incident: ExportIncident, export_id: str) -> Response:
    """Ask again under the same request id, once it has timed out."""
    timeout_s = settings_of(request).collector.export_timeout_s
    async with store_of(request).write() as session:
        if (await live.get_export(session, export_id)).export.incident_id != incident.id:
            raise NotFound("export", export_id)
        await live.retry_export(session, export_id, who=principal_of(request).name, timeout_s=timeout_s)
    return RedirectResponse(f"/incidents/{incident.id}", 303)


@router.post("/searches")
async def request_search(request: Request, incident: OpenIncident) -> Response:
    """Search the topics again."""
    async with store_of(request).write() as session:
        await live.request_gathering(session, incident, who=principal_of(request).name)
    return RedirectResponse(f"/incidents/{incident.id}", 303)


@router.post("/searches/{search_id}/cancel")
async def cancel_search(request: Request, incident: OpenIncident, search_id: str) -> Response:
    """End a search; what it found is kept. One that has ended meanwhile is left as it is."""
    async with store_of(request).write() as session:
        view = await live.get_gathering(session, search_id)
        if view.gathering.incident_id != incident.id:
            raise NotFound("search", search_id)
        if not view.gathering.gathering_state.finished:
            await live.cancel_gathering(session, search_id, who=principal_of(request).name)
    return RedirectResponse(f"/incidents/{incident.id}", 303)


async def _form(request: Request, incident: Incident, reason: str = "", problem: str | None = None) -> Response:
    async with store_of(request).read() as session:
        status = await live.live_status(session, incident)
    return pages_of(request).page(
        "export.html",
        request,
        422 if problem else 200,
        incident=incident,
        status=status,
        reason=reason,
        problem=problem,
        timeout_s=round(settings_of(request).collector.export_timeout_s),
    )
