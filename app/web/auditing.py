"""Puts into the audit trail what pages and scripts look at; what they change is recorded where it is changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import Request

from app.incidents.audit import Action, record_event
from app.incidents.service import Incident
from app.web.identity import Recent
from app.web.loading import CurrentRun, principal_of, store_of

AGAIN_S: Final = 300.0  # a page that loads itself anew, again and again, is looked at once


async def record_view(request: Request, action: Action, incident: Incident, **detail: object) -> None:
    """Record that evidence of an incident was looked at or taken away, before it is handed out."""
    async with store_of(request).write() as session:
        record_event(session, action, who=principal_of(request).name, subject=incident.id, detail=detail)


async def record_run_view(request: Request, current: CurrentRun) -> None:
    """Record that somebody opened a run's page; once while it stays as it is, for some minutes."""
    views: Recent = request.app.state.run_views
    run, who = current.run, principal_of(request).name
    with views.news(who, run.id, run.state) as news:
        if news:
            detail = {"run": run.number, "state": run.state}
            async with store_of(request).write() as session:
                record_event(session, Action.RUN_READ, who=who, subject=current.incident.id, detail=detail)


@asynccontextmanager
async def run_viewed(request: Request, current: CurrentRun) -> AsyncIterator[None]:
    """Record as `record_run_view` while the block makes the page: it is not left before that is done, or raises."""
    noting = asyncio.create_task(record_run_view(request, current), name="note that a run was opened")
    try:
        yield
    finally:
        await noting
