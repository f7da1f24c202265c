"""The post-mortem page and its Markdown."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.incidents.audit import Action
from app.web.auditing import record_view
from app.web.downloads import download
from app.web.loading import ReadIncident, base_of, pages_of, settings_of, store_of
from app.web.postmortem_md import as_markdown
from app.web.views_postmortem import facts, post_mortem

router = APIRouter(prefix="/incidents/{incident_id}", include_in_schema=False)

_TYPE: Final = "text/markdown; charset=utf-8"


@router.get("/post-mortem")
async def page(request: Request, incident: ReadIncident) -> Response:
    """Everything that is known of the incident as one document, made to be printed."""
    async with store_of(request).read() as session:
        told = await post_mortem(session, settings_of(request), incident)
    await record_view(request, Action.EVIDENCE_READ, incident, post_mortem="page")
    return pages_of(request).page("postmortem.html", request, told=told, incident=incident, facts=facts(told))


@router.get("/post-mortem.md")
async def document(request: Request, incident: ReadIncident) -> Response:
    """The same as Markdown, in the same order."""
    async with store_of(request).read() as session:
        told = await post_mortem(session, settings_of(request), incident)
    await record_view(request, Action.EVIDENCE_READ, incident, post_mortem="markdown")
    text = as_markdown(told, f"{base_of(request)}/incidents/{incident.id}")
    return download(text.encode("utf-8", "replace"), f"post-mortem-{incident.id}.md", _TYPE)
