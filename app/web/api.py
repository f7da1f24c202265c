"""JSON for scripts, under `/api/v1`: the same objects that pages show, and problem objects where something is wrong."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import RedirectResponse, Response

from app.incidents import inputs, live, pool, service
from app.incidents.audit import Action
from app.web import openapi
from app.web.auditing import record_run_view, record_view
from app.web.bodies import read_body
from app.web.compare import compare_path
from app.web.config import MIB
from app.web.filters import ReadWanted
from app.web.incidents import bundle_response
from app.web.intake import import_form
from app.web.loading import (
    IMPORT,
    VIEW,
    ReadIncident,
    ReadReplay,
    ReplayIncident,
    ViewIncident,
    ViewReplay,
    builds_of,
    store_of,
)
from app.web.offers import offered_builds
from app.web.problems import json_response
from app.web.replays import MAX_BUILDS, queue_runs
from app.web.sights import viewers_sight
from app.web.views_api import IncidentOut, IncidentPage, ReplayOut, ReplaysOut, incident_json, replay_json
from app.web.views_listed import line_json, listed_scopes
from app.web.views_redacted import redacted_incident, redacted_replay

router = APIRouter(prefix="/api/v1", tags=["v1"], responses=openapi.PROBLEMS)


Name = Annotated[str, Field(min_length=1, max_length=64)]


class ReplayIn(BaseModel):
    """Which build to replay with (a name from the configuration) or which several, and what is supplied beside."""

    model_config = ConfigDict(extra="forbid", strict=True)

    build: Name | None = None
    builds: Annotated[list[Name], Field(min_length=1, max_length=MAX_BUILDS)] | None = None
    tool_answers: list[dict[str, Any]] | None = None
    decision: dict[str, Any] | None = None
    what_if: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> ReplayIn:
        if (self.build is None) == (self.builds is None):
            raise ValueError("name either a build or several builds")
        return self

    def chosen(self) -> list[str]:
        """The builds, each once."""
        return list(dict.fromkeys(self.builds or [self.build or ""]))

    def inputs(self) -> service.RunInputs:
        """Check what is supplied. Raises `InputRefused`."""
        decision = None if self.decision is None else inputs.decision_of(self.decision)
        return service.RunInputs(inputs.checked_answers(self.tool_answers or []), decision, self.what_if)


@router.get("/incidents", dependencies=[VIEW], response_model=IncidentPage)
async def list_incidents(
    request: Request,
    wanted: ReadWanted,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List incidents, newest first unless told otherwise; `next` is the following page's `after`, null on the last."""
    async with store_of(request).read() as session:
        scopes = listed_scopes(request, wanted)
        page = await service.list_incidents(session, after=after, limit=limit, wanted=wanted, scopes=scopes)
        latest = await service.latest_runs(session, page.items)
    items = [line_json(request, item, [latest[item.id]] if item.id in latest else []) for item in page.items]
    return _json(IncidentPage(incidents=items, next=page.next))


@router.post(
    "/incidents/import",
    status_code=201,
    dependencies=[IMPORT],
    response_model=IncidentOut,
    openapi_extra=openapi.IMPORT_BODY,
)
async def import_incident(request: Request) -> Response:
    """Open an incident from files or from a bundle: all of them are kept, or nothing is."""
    incident = await import_form(request)
    async with store_of(request).read() as session:
        evidence = await service.evidence_of(session, incident)
        status = await live.live_status(session, incident)
    body = incident_json(incident, evidence=evidence, status=status, offered=offered_builds(request, incident))
    return _json(body, 201, {"Location": f"/api/v1/incidents/{incident.id}"})


@router.get("/incidents/{incident_id}", response_model=IncidentOut)
async def get_incident(request: Request, incident: ViewIncident) -> Response:
    """One incident with its evidence and runs; redacted for viewers."""
    async with store_of(request).read() as session:
        evidence = await service.evidence_of(session, incident)
        runs = await service.runs_of(session, incident)
        status = await live.live_status(session, incident)
    if (sight := viewers_sight(request, incident)) is not None:
        return _json(redacted_incident(sight.redactor, incident, evidence=evidence, runs=runs, status=status))
    offered = offered_builds(request, incident)
    return _json(incident_json(incident, evidence=evidence, runs=runs, status=status, offered=offered))


@router.post(
    "/incidents/{incident_id}/replays",
    status_code=202,
    response_model=ReplayOut | ReplaysOut,
    openapi_extra=openapi.REPLAY_BODY,
)
async def create_replay(request: Request, incident: ReplayIncident) -> Response:
    """Queue a replay with one of the configured builds; `Location` is where to ask for its verdict.

    Several `builds` are queued at once and answered as a list; `Location` is then the page that compares them. With a
    `decision` nothing recorded is repeated: the run shows what would follow (`kind` is then `what-if`). So does
    `what_if` for a recorded run of Flink Agents: models that a build's resources allow are asked what the record cannot
    answer.
    """
    expected = (
        'a JSON object {"build": name or "builds": [names], "tool_answers"?: [...], "decision"?: {...},'
        ' "what_if"?: true or false}'
    )
    asked = await read_body(request, ReplayIn, expected, most=4 * MIB)
    runs = await queue_runs(request, incident, asked.chosen(), asked.inputs())
    queued = [replay_json(run, verdict=None) for run in runs]
    if asked.builds is None:
        return _json(queued[0], 202, {"Location": f"/api/v1/replays/{runs[0].id}"})
    page = compare_path(incident, [run.number for run in runs])
    return _json(ReplaysOut(replays=queued, compare=page), 202, {"Location": page})


@router.get("/incidents/{incident_id}/bundle.zip", response_class=Response, responses=openapi.ZIP)
async def get_bundle(request: Request, incident: ReadIncident) -> Response:
    """All evidence of an incident as one file, the same bytes that the page's button gives."""
    return await bundle_response(request, incident)


@router.get("/replays/{replay_id}", response_model=ReplayOut)
async def get_replay(request: Request, current: ViewReplay) -> Response:
    """The state of a replay, and once it is `done` its verdict: what `hindcast replay --format json` prints."""
    run = current.run
    await record_run_view(request, current)
    if (sight := viewers_sight(request, current.incident)) is not None:
        return _json(redacted_replay(sight.redactor, run, verdict=run.verdict))
    async with store_of(request).read() as session:
        waits_for = await pool.why_waiting(session, run, shown=[build.name for build in builds_of(request)])
    return _json(replay_json(run, verdict=run.verdict, waits_for=waits_for))


@router.get("/replays/{replay_id}/ledger", response_class=Response, responses=openapi.JSON_LINES)
async def get_ledger(request: Request, current: ReadReplay) -> Response:
    """What the model saw, what it said, what the agent did with it: a JSON object a line, in order."""
    run = current.run
    await record_view(request, Action.EVIDENCE_READ, current.incident, run=run.number, ledger="all")
    async with store_of(request).read() as session:
        lines = [json.dumps(line) + "\n" async for line in service.ledger_lines(session, run)]
    return Response("".join(lines), media_type="application/jsonl")


@router.get("/openapi.json", include_in_schema=False, dependencies=[VIEW])
async def openapi_document(request: Request) -> Response:
    """The OpenAPI document of everything here."""
    return json_response(request.app.openapi())


alias = APIRouter(include_in_schema=False)


@alias.get("/openapi.json", dependencies=[VIEW])
async def openapi_alias() -> Response:
    return RedirectResponse("/api/v1/openapi.json", 307)


def _json(body: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return json_response(body.model_dump(mode="python"), status, headers)
