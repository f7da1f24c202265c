"""Event streams that make pages follow a run by themselves. They say only that something changed; the page reads on.

A stream holds no database connection while it waits. A message told twice, or missed and told after reconnecting, makes
the page load its state once more and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response, StreamingResponse

from app.incidents import live, service
from app.incidents.changes import Changes
from app.incidents.service import Store
from app.web.loading import ViewIncident, ViewRun, store_of
from app.web.views_incident import version_of

router = APIRouter(prefix="/incidents/{incident_id}", include_in_schema=False)

HEARTBEAT_S: Final = 10.0
# A stream ends after this long and the browser opens it again: so a session that ended does not go on listening.
LONGEST_S: Final = 300.0
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Standing = tuple[int, bool]  # the version now, and whether nothing more will happen


@asynccontextmanager
async def listening(app: FastAPI, store: Store) -> AsyncIterator[None]:
    """Run the process's one listener while the application runs."""
    async with Changes(store.url) as changes:
        app.state.changes = changes
        yield


@router.get("/runs/{number}/changes")
async def run_changes(request: Request, current: ViewRun, since: int = 0) -> Response:
    """Follow one run; `since` is the version that the page shows."""

    async def read() -> Standing:
        async with store_of(request).read() as session:
            version, state = await service.standing_of(session, current.run.id)
        return version, state.finished

    return _stream(request, current.run.id, since, read)


@router.get("/changes")
async def incident_changes(request: Request, incident: ViewIncident, since: int = 0) -> Response:
    """Follow all runs of an incident and, where it is of a live pipeline, its evidence."""

    async def read() -> Standing:
        async with store_of(request).read() as session:
            runs = await service.runs_of(session, incident)
            if incident.pipeline is None:
                return version_of(runs), all(run.run_state.finished for run in runs)
            # What it holds was loaded when the stream began; evidence that came since counts in its version.
            now = await service.get_incident(session, incident.id)
            # More may always come: a late answer, another's snapshot.
            return version_of(runs, await live.live_status(session, now)), False

    return _stream(request, incident.id, since, read)


def _stream(request: Request, subject: str, since: int, read: Callable[[], Awaitable[Standing]]) -> Response:
    last = request.headers.get("last-event-id", "")
    seen = int(last) if last.isascii() and last.isdigit() else since
    changes = cast(Changes, request.app.state.changes)
    body = messages(changes, subject, seen, read)
    return StreamingResponse(body, media_type="text/event-stream", headers=_HEADERS)


async def messages(
    changes: Changes, subject: str, seen: int, read: Callable[[], Awaitable[Standing]]
) -> AsyncIterator[str]:
    """`change` whenever the version differs from `seen`, `done` at the end, comments in between against buffering."""
    end = asyncio.get_running_loop().time() + LONGEST_S
    async with changes.subscribe(subject) as subscription:
        yield "retry: 2000\n\n"
        while asyncio.get_running_loop().time() < end:
            version, finished = await read()
            if version != seen:
                seen = version
                yield f"event: change\nid: {version}\ndata: {version}\n\n"
            if finished:
                yield f"event: done\nid: {version}\ndata: {version}\n\n"
                return
            if not await subscription.wait(HEARTBEAT_S):
                yield ": nothing new\n\n"
