"""Live pipelines for scripts, under `/api/v1`: recent activations, incidents on them, exports of a key's state."""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from app.incidents import live, service
from app.web import openapi
from app.web.access import Permission
from app.web.bodies import read_body
from app.web.loading import (
    OPEN,
    READ,
    AskExport,
    ExportIncident,
    LoadActivation,
    OpenIncident,
    ReadExport,
    limit_exports,
    pipelines_of,
    principal_of,
    scopes_of,
    settings_of,
    store_of,
)
from app.web.offers import offered_builds
from app.web.problems import json_response
from app.web.views_api import IncidentOut, incident_json

router = APIRouter(prefix="/api/v1", tags=["v1"], responses=openapi.PROBLEMS)

MAX_SEQ: Final = 2**63 - 1
Ms = Annotated[int | None, Query(ge=-(2**63), le=MAX_SEQ)]


class KeyIn(BaseModel):
    """A key, given once: as text, as hex, or as base64."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str | None = None
    hex: str | None = None
    base64: str | None = None

    @model_validator(mode="after")
    def _given_once(self) -> Self:
        if [self.text, self.hex, self.base64].count(None) != 2:
            raise ValueError("give the key once: as text, as hex, or as base64")
        return self

    def read(self) -> bytes:
        """Raises `IncidentError` for what is not in the form that it says."""
        return live.parse_key(key=self.text, hex=self.hex, base64=self.base64)


class IncidentIn(BaseModel):
    """The activation that is asked about: by pipeline, key and perhaps seq, or by the id of a collected one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    pipeline: str | None = Field(None, min_length=1, max_length=64, examples=["refunds"])
    entity_key: KeyIn | None = Field(None, examples=[{"text": "customer-42"}])
    seq: int | None = Field(None, ge=0, le=MAX_SEQ, description="the latest attempt of the key without it")
    activation: str | None = Field(None, max_length=64, description="an activation's id, instead of all of these")
    title: str | None = Field(None, max_length=200)

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        by_key = self.pipeline is not None and self.entity_key is not None
        if by_key == (self.activation is not None):
            raise ValueError("name either pipeline and entity_key, or activation")
        return self


class ExportIn(BaseModel):
    """Why the key's state is asked for; it is recorded."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field(min_length=1, max_length=1000)


class ActivationsOut(BaseModel):
    """One page, latest event time first; `next` is the `after` of the following page, null on the last."""

    items: list[dict[str, Any]] = Field(
        description="id, pipeline, entity_key {hex, text}, seq, kind, category, status, clock_ms, reason, error_type,"
        " entry_step, batch_size, tools, intents [{intent_id, step, tool, kind}], events"
    )
    next: str | None


class ExportOut(BaseModel):
    """A request for a key's state, and the states that came back; `request_id` names it at the pipeline."""

    model_config = ConfigDict(extra="allow")

    id: str
    request_id: str
    state: str = Field(description="requested, answered or timed_out; a late answer still makes it answered")


def _body(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    # What the model refers to stands inside it: nothing else of the document uses it.
    known = schema.pop("$defs", {})
    for name, value in schema["properties"].items():
        for option in value.get("anyOf", ()):
            if "$ref" in option:
                found = known[option.pop("$ref").rpartition("/")[2]]
                schema["properties"][name] = {**found, "description": found.get("description", "")}
                break
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.get("/activations", dependencies=[READ], response_model=ActivationsOut)
async def list_activations(
    request: Request,
    pipeline: str | None = None,
    status: str | None = None,
    reason: str | None = None,
    tool: str | None = None,
    kind: str | None = None,
    since_ms: Ms = None,
    until_ms: Ms = None,
    key: Annotated[str | None, Query(description="the entity key as text")] = None,
    key_hex: str | None = None,
    key_base64: str | None = None,
    seq: Annotated[int | None, Query(ge=0, le=MAX_SEQ)] = None,
    intent: Annotated[
        str | None, Query(description="who emitted this intent; other filters but pipeline fall away")
    ] = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List what the pipelines did of late: each attempt with its intents, as the traces tell it."""
    among = scopes_of(request, Permission.READ).pipelines
    if intent is not None:
        async with store_of(request).read() as session:
            found = await live.find_by_intent(session, intent, pipeline=pipeline, among=among)
        return json_response(live.ActivationPage(found, None).as_json())
    given = (key, key_hex, key_base64)
    entity_key = None if given == (None, None, None) else live.parse_key(key=key, hex=key_hex, base64=key_base64)
    chosen = live.ActivationFilter(pipeline, status, reason, tool, kind, since_ms, until_ms, entity_key, seq, among)
    async with store_of(request).read() as session:
        page = await live.list_activations(session, chosen, after=after, limit=limit)
    return json_response(page.as_json())


@router.post(
    "/incidents", status_code=201, dependencies=[OPEN], response_model=IncidentOut, openapi_extra=_body(IncidentIn)
)
async def open_incident(request: Request) -> Response:
    """Open an incident on a live pipeline: what was collected is its evidence at once, the rest is searched for."""
    told = await read_body(request, IncidentIn, 'a JSON object {"pipeline": name, "entity_key": {"text": key}}')
    if told.activation is not None:
        await LoadActivation(Permission.OPEN)(request, told.activation)
    async with store_of(request).write() as session:
        incident = await live.open_incident(
            session,
            who=principal_of(request).name,
            known=pipelines_of(request, Permission.OPEN),
            activation=told.activation,
            pipeline=told.pipeline,
            entity_key=None if told.entity_key is None else told.entity_key.read(),
            seq=told.seq,
            title=told.title,
        )
    async with store_of(request).read() as session:
        incident = await service.get_incident(session, incident.id)
        evidence = await service.evidence_of(session, incident)
        status = await live.live_status(session, incident)
    body = incident_json(incident, evidence=evidence, status=status, offered=offered_builds(request, incident))
    return json_response(body.model_dump(), 201, {"Location": f"/api/v1/incidents/{incident.id}"})


@router.post(
    "/incidents/{incident_id}/exports", status_code=202, response_model=ExportOut, openapi_extra=_body(ExportIn)
)
async def request_export(request: Request, incident: ExportIncident) -> Response:
    """Ask the running pipeline for the state of the incident's key; `Location` is where to ask what became of it."""
    limit_exports(request)
    told = await read_body(request, ExportIn, 'a JSON object {"reason": words}')
    async with store_of(request).write() as session:
        export = await live.request_export(
            session,
            incident,
            who=principal_of(request).name,
            reason=told.reason,
            known=pipelines_of(request),
            timeout_s=settings_of(request).collector.export_timeout_s,
        )
    return await _export_response(request, export.id, 202)


@router.get("/exports/{export_id}", response_model=ExportOut)
async def get_export(view: ReadExport) -> Response:
    """One export: where its request lies, and every state that came back under its id."""
    return json_response(view.as_json())


@router.post("/exports/{export_id}/retry", status_code=202, response_model=ExportOut)
async def retry_export(request: Request, view: AskExport) -> Response:
    """Ask again under the same request id, once an export has timed out."""
    export_id = view.export.id
    timeout_s = settings_of(request).collector.export_timeout_s
    async with store_of(request).write() as session:
        await live.retry_export(session, export_id, who=principal_of(request).name, timeout_s=timeout_s)
    return await _export_response(request, export_id, 202)


@router.post("/incidents/{incident_id}/searches", status_code=202)
async def request_search(request: Request, incident: OpenIncident) -> Response:
    """Search the topics again for what the incident lacks; the search that is under way, where there is one."""
    async with store_of(request).write() as session:
        search = await live.request_gathering(session, incident, who=principal_of(request).name)
    async with store_of(request).read() as session:
        view = await live.get_gathering(session, search.id)
    return json_response(view.as_json(), 202)


async def _export_response(request: Request, export_id: str, status: int) -> Response:
    async with store_of(request).read() as session:
        view = await live.get_export(session, export_id)
    return json_response(view.as_json(), status, {"Location": f"/api/v1/exports/{export_id}"} if status == 202 else {})
