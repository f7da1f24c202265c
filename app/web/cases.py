"""An incident as a case, for people: its form, notes and their history, links to other incidents of the key.

Every form carries the version that its author saw. Whoever was slower gets their words back beside those of the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import case_notes, cases, service
from app.incidents.errors import Outdated
from app.incidents.service import Incident, InputRefused, WriteSession
from app.web.access import Permission
from app.web.forms import Form, read_form
from app.web.incidents import incident_page
from app.web.loading import AnnotateIncident, LoadIncident, Number, ReadIncident, pages_of, principal_of, store_of
from app.web.markdown import markdown
from app.web.views_case import Trouble

router = APIRouter(prefix="/incidents/{incident_id}", include_in_schema=False)

_NO_VERSION = InputRefused("case", "the form says not which version it was made from", "a whole form", "Load again.")


@router.post("/case")
async def change_case(request: Request, incident: AnnotateIncident) -> Response:
    """Change what is said of the incident; a ticked box that is missing means no."""
    form = await read_form(request)
    typed: dict[str, Any] = {name: form.value(name) or "" for name in ("title", "status", "severity", "owner", "tags")}
    typed["pinned"] = form.value("pinned") is not None

    async def change(session: WriteSession) -> None:
        who, revision = principal_of(request).name, _version(form, "revision")
        await cases.change_case(session, incident, typed, revision=revision, who=who)

    return await _done(request, incident, change, typed, field="case", anchor="")


@router.post("/notes")
async def add_note(request: Request, incident: AnnotateIncident) -> Response:
    """Write a note."""
    text = (await read_form(request)).value("text") or ""

    async def change(session: WriteSession) -> None:
        await case_notes.add_note(session, incident, text, who=principal_of(request).name)

    return await _done(request, incident, change, {"text": text}, field="text", anchor="#notes")


@router.post("/notes/{number}")
async def edit_note(request: Request, incident: AnnotateIncident, number: Number) -> Response:
    """Let a note say something else."""
    form = await read_form(request)
    text = form.value("text") or ""

    async def change(session: WriteSession) -> None:
        who, version = principal_of(request).name, _version(form, "version")
        await case_notes.edit_note(session, incident, number, text, version=version, who=who)

    typed = {"text": text, "number": number}
    return await _done(request, incident, change, typed, field="note", anchor=f"#note-{number}")


@router.get("/notes/{number}")
async def note_history(request: Request, incident: ReadIncident, number: Number) -> Response:
    """A note with everything that it ever said, the newest first."""
    async with store_of(request).read() as session:
        note = await case_notes.get_note(session, incident, number)
        versions = await case_notes.versions_of(session, note)
    told = [(one, markdown(one.text)) for one in reversed(versions)]
    return pages_of(request).page("note.html", request, incident=incident, note=note, versions=told)


@router.post("/links")
async def link(request: Request, incident: AnnotateIncident) -> Response:
    """Say what this incident is to another of its key; no kind takes the link away."""
    form = await read_form(request)
    other, kind = form.value("other") or "", form.value("kind") or ""
    who = principal_of(request).name
    await LoadIncident(Permission.ANNOTATE)(request, other)

    async def change(session: WriteSession) -> None:
        if kind:
            await case_notes.link_incidents(session, incident, other, kind, who=who)
        else:
            await case_notes.unlink_incidents(session, incident, other, who=who)

    return await _done(request, incident, change, {"other": other}, field="kind", anchor="#on-key")


async def _done(
    request: Request,
    incident: Incident,
    change: Callable[[WriteSession], Awaitable[None]],
    typed: dict[str, Any],
    *,
    field: str,
    anchor: str,
) -> Response:
    """Make a change and go back to the page; what was refused stands beside its form, as it was typed."""
    try:
        async with store_of(request).write() as session:
            await change(session)
    except InputRefused as refused:
        trouble, code = Trouble.of(refused, typed), 422
        trouble = trouble if field != "note" else Trouble("note", *_words(refused), typed)
    except Outdated as error:
        remedy = "Your words are still in the form: look at what it reads now, mend them, and save again."
        trouble, code = Trouble(field, str(error), "the version that is here now", remedy, typed, error.now), 409
    else:
        return RedirectResponse(f"/incidents/{incident.id}{anchor}", 303)
    async with store_of(request).read() as session:
        incident = await service.get_incident(session, incident.id)
    return await incident_page(request, incident, code=code, trouble=trouble)


def _words(refused: InputRefused) -> tuple[str, str, str]:
    return refused.problem, refused.expected, refused.remedy


def _version(form: Form, name: str) -> int:
    text = form.value(name) or ""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _NO_VERSION
    return int(text)
