"""Cases for scripts, under `/api/v1`: change what is said of an incident, write and edit notes, link incidents."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.incidents import case_notes, cases, live, service
from app.incidents.case_models import Note, NoteVersion
from app.incidents.service import Incident
from app.web import openapi
from app.web.access import Permission
from app.web.bodies import read_body
from app.web.formats import iso
from app.web.loading import AnnotateIncident, LoadIncident, Number, ReadIncident, principal_of, scopes_of, store_of
from app.web.offers import offered_builds
from app.web.problems import json_response
from app.web.views_api import IncidentOut, incident_json

router = APIRouter(prefix="/api/v1/incidents/{incident_id}", tags=["v1"], responses=openapi.PROBLEMS)

_TITLE: Final = cases.TITLE_LENGTH


class CaseIn(BaseModel):
    """What to change, and the revision that it is changed from; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    revision: int = Field(ge=1, le=2**31 - 1, description="`case.revision` as it was read; another answers 409")
    title: str | None = Field(None, max_length=1000, description=f"1 to {_TITLE} characters")
    status: str | None = Field(None, description="open, contained, explained or closed")
    severity: str | None = Field(None, description="critical, high, medium or low; null for not judged")
    owner: str | None = Field(None, max_length=1000, description="null for nobody")
    tags: list[str] | None = Field(None, max_length=100)
    pinned: bool | None = Field(None, description="a pinned incident is never purged")


class NoteIn(BaseModel):
    """A note, in Markdown."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(description=f"1 to {case_notes.NOTE_LENGTH} characters of Markdown")


class NoteEdit(NoteIn):
    """What a note says from now on, and the version that it is edited from."""

    version: int = Field(ge=1, le=2**31 - 1, description="`version` as it was read; another answers 409")


class LinkIn(BaseModel):
    """What the incident is to the other one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str = Field(description="related, duplicate or follows")


class NoteVersionOut(BaseModel):
    version: int
    at: str | None
    who: str
    text: str


class NoteOut(BaseModel):
    """A note as it reads now; `versions` is all that it ever said, oldest first, null in lists."""

    number: int
    version: int
    text: str
    created_at: str | None
    created_by: str
    edited_at: str | None
    edited_by: str | None
    versions: list[NoteVersionOut] | None = None


class NoteList(BaseModel):
    notes: list[NoteOut]


class LinkOut(BaseModel):
    """Another incident of the same key; `kind` is null where nobody linked the two."""

    incident_id: str
    title: str
    kind: str | None
    points: str | None = Field(description="to or from: whether this incident says it of the other one, or is told of")


class LinkList(BaseModel):
    incidents: list[LinkOut]


def _body(model: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


@router.patch("", response_model=IncidentOut, openapi_extra=_body(CaseIn))
async def change_case(request: Request, incident: AnnotateIncident) -> Response:
    """Change title, status, severity, owner, tags or pin, from the revision that was read."""
    told = await read_body(request, CaseIn, 'a JSON object {"revision": number, "status"?: word, …}')
    changes = {name: getattr(told, name) for name in told.model_fields_set - {"revision"}}
    async with store_of(request).write() as session:
        who = principal_of(request).name
        incident = await cases.change_case(session, incident, changes, revision=told.revision, who=who)
    return await _incident(request, incident)


@router.get("/notes", response_model=NoteList)
async def list_notes(request: Request, incident: ReadIncident) -> Response:
    """List the notes as they read now, oldest first."""
    async with store_of(request).read() as session:
        notes = await case_notes.notes_of(session, incident)
    return json_response(NoteList(notes=[_note(note) for note in notes]).model_dump())


@router.post("/notes", status_code=201, response_model=NoteOut, openapi_extra=_body(NoteIn))
async def add_note(request: Request, incident: AnnotateIncident) -> Response:
    """Write a note."""
    told = await read_body(request, NoteIn, 'a JSON object {"text": words}', most=256 * 1024)
    async with store_of(request).write() as session:
        note = await case_notes.add_note(session, incident, told.text, who=principal_of(request).name)
    address = f"/api/v1/incidents/{incident.id}/notes/{note.number}"
    return json_response(_note(note).model_dump(), 201, {"Location": address})


@router.get("/notes/{number}", response_model=NoteOut)
async def get_note(request: Request, incident: ReadIncident, number: Number) -> Response:
    """One note with everything that it ever said."""
    async with store_of(request).read() as session:
        note = await case_notes.get_note(session, incident, number)
        versions = await case_notes.versions_of(session, note)
    return json_response(_note(note, versions).model_dump())


@router.patch("/notes/{number}", response_model=NoteOut, openapi_extra=_body(NoteEdit))
async def edit_note(request: Request, incident: AnnotateIncident, number: Number) -> Response:
    """Let a note say something else, from the version that was read; what it said stays in its history."""
    told = await read_body(request, NoteEdit, 'a JSON object {"version": number, "text": words}', most=256 * 1024)
    async with store_of(request).write() as session:
        who = principal_of(request).name
        note = await case_notes.edit_note(session, incident, number, told.text, version=told.version, who=who)
    return json_response(_note(note).model_dump())


@router.get("/links", response_model=LinkList)
async def list_links(request: Request, incident: ReadIncident) -> Response:
    """List the other incidents of the key, linked ones first."""
    async with store_of(request).read() as session:
        found = await case_notes.incidents_on_key(session, incident, scopes=scopes_of(request, Permission.READ))
    listed = [
        LinkOut(
            incident_id=one.incident.id,
            title=one.incident.title,
            kind=None if one.link is None else one.link.kind,
            points=None if one.link is None else "to" if one.link.incident_id == incident.id else "from",
        )
        for one in found
    ]
    return json_response(LinkList(incidents=listed).model_dump())


@router.put("/links/{other_id}", status_code=204, response_class=Response, openapi_extra=_body(LinkIn))
async def put_link(request: Request, incident: AnnotateIncident, other_id: str) -> Response:
    """Link the incident to another of its key; between two there is one link, and the newest holds."""
    told = await read_body(request, LinkIn, 'a JSON object {"kind": "related"}')
    await LoadIncident(Permission.ANNOTATE)(request, other_id)
    async with store_of(request).write() as session:
        who = principal_of(request).name
        await case_notes.link_incidents(session, incident, other_id, told.kind, who=who)
    return Response(status_code=204)


@router.delete("/links/{other_id}", status_code=204, response_class=Response)
async def delete_link(request: Request, incident: AnnotateIncident, other_id: str) -> Response:
    """Take a link away, whichever of the two it was made from."""
    await LoadIncident(Permission.ANNOTATE)(request, other_id)
    async with store_of(request).write() as session:
        await case_notes.unlink_incidents(session, incident, other_id, who=principal_of(request).name)
    return Response(status_code=204)


async def _incident(request: Request, incident: Incident) -> Response:
    async with store_of(request).read() as session:
        evidence = await service.evidence_of(session, incident)
        runs = await service.runs_of(session, incident)
        status = await live.live_status(session, incident)
    body = incident_json(
        incident, evidence=evidence, runs=runs, status=status, offered=offered_builds(request, incident)
    )
    return json_response(body.model_dump())


def _note(note: Note, versions: Any = None) -> NoteOut:
    return NoteOut(
        number=note.number,
        version=note.version,
        text=note.text,
        created_at=iso(note.created_at),
        created_by=note.created_by,
        edited_at=None if note.edited_at is None else iso(note.edited_at),
        edited_by=note.edited_by,
        versions=None if versions is None else [_version(one) for one in versions],
    )


def _version(one: NoteVersion) -> NoteVersionOut:
    return NoteVersionOut(version=one.version, at=iso(one.at), who=one.who, text=one.text)
