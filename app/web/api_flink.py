"""Event logs of Flink Agents for scripts, under `/api/v1`: runs found and read, an incident opened from a run."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from app.incidents import flink_runs, live, service
from app.incidents.audit import Action, record_event
from app.incidents.flink_opening import open_flink_incident
from app.incidents.flink_runs import RunFilter
from app.web import openapi
from app.web.flink_seen import find, only_seen, redactor_of
from app.web.loading import IMPORT, SEE_LOGS, principal_of, store_of
from app.web.offers import offered_builds
from app.web.problems import json_response
from app.web.views_api import IncidentOut, incident_json
from app.web.views_api_flink import RunPageOut, WholeRunOut, page_json, whole_json

router = APIRouter(prefix="/api/v1/flink/runs", tags=["v1"], responses=openapi.PROBLEMS)

MAX_ID: Final = 2**63 - 1
Ident = Annotated[int, Path(ge=0, le=MAX_ID)]
_MS: Final = MAX_ID // 1_000_000
Ms = Annotated[int | None, Query(ge=-_MS, le=_MS)]


@router.get("", dependencies=[SEE_LOGS], response_model=RunPageOut)
async def list_runs(
    request: Request,
    key: str | None = None,
    tool: str | None = None,
    status: Annotated[str | None, Query(pattern=f"^({'|'.join(flink_runs.STATUSES)})$")] = None,
    category: Annotated[str | None, Query(description="problem category of an execution")] = None,
    q: Annotated[str, Query(max_length=200, description='whole words, or a "phrase"')] = "",
    log: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
    since_ms: Ms = None,
    until_ms: Ms = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List recorded runs, newest first: each is one input of one key. Redacted for viewers, whose filters by what is
    hidden find nothing."""
    chosen = RunFilter(key, tool, status, category, q.strip(), log, since_ms, until_ms)
    hides = only_seen(request)
    async with store_of(request).read() as session:
        page = await (find if hides else flink_runs.list_runs)(session, chosen, after=after, limit=limit)
    told = page_json(page, partial(redactor_of, request) if hides else None)
    return json_response(told.model_dump())


@router.get("/{run_id}", dependencies=[SEE_LOGS], response_model=WholeRunOut)
async def get_run(
    request: Request,
    run_id: Ident,
    start: Annotated[int, Query(ge=0, le=2**31 - 1, description="ordinal of the first event")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Response:
    """One run: what caused what, and its events in order; redacted for viewers."""
    async with store_of(request).read() as session:
        whole = await flink_runs.get_flink_run(session, run_id, lately=request.app.state.assembled)
    redactor = redactor_of(request, whole.row) if only_seen(request) else None
    body = whole_json(whole, start=start, limit=limit, redactor=redactor)
    async with store_of(request).write() as session:
        detail = {"events": [start, start + len(body.events)]}
        who = principal_of(request).name
        record_event(session, Action.EVIDENCE_READ, who=who, subject=f"flink run {run_id}", detail=detail)
    return json_response(body.model_dump())


@router.post("/{run_id}/incidents", status_code=201, dependencies=[IMPORT], response_model=IncidentOut)
async def open_incident(request: Request, run_id: Ident) -> Response:
    """Open an incident on a run: its lines become evidence, byte for byte."""
    async with store_of(request).write() as session:
        incident = await open_flink_incident(session, run_id, who=principal_of(request).name)
    async with store_of(request).read() as session:
        incident = await service.get_incident(session, incident.id)
        evidence = await service.evidence_of(session, incident)
        status = await live.live_status(session, incident)
    body = incident_json(incident, evidence=evidence, status=status, offered=offered_builds(request, incident))
    return json_response(body.model_dump(), 201, {"Location": f"/api/v1/incidents/{incident.id}"})
