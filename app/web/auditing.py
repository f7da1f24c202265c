"""Puts into the audit trail what pages and scripts look at; what they change is recorded where it is changed."""

from __future__ import annotations

from fastapi import Request

from app.incidents.audit import Action, record_event
from app.incidents.service import Incident
from app.web.loading import principal_of, store_of


async def record_view(request: Request, action: Action, incident: Incident, **detail: object) -> None:
    """Record that evidence of an incident was looked at or taken away, before it is handed out."""
    async with store_of(request).write() as session:
        record_event(session, action, who=principal_of(request).name, subject=incident.id, detail=detail)
