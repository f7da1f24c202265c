"""`/healthz` and `/readyz`: whether this console lives, and whether it can work; for anybody, and without secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.responses import Response

from app.incidents.changes import Changes
from app.incidents.service import Store
from app.operations import health, listener, metrics
from app.operations.health import Check, Word
from app.web.access import public
from app.web.config import WebSettings

router = APIRouter(include_in_schema=False)

_JSON = "application/json"


@router.get("/healthz", dependencies=[Depends(public)])
async def healthz() -> Response:
    """The process answers."""
    code, body = health.alive()
    return Response(body, code, media_type=_JSON)


@router.get("/readyz", dependencies=[Depends(public)])
async def readyz(request: Request) -> Response:
    """Each check with its word; 503 where the console cannot work."""
    code, body = health.answer(await checks(request.app))
    return Response(body, code, media_type=_JSON)


async def checks(app: FastAPI) -> Sequence[Check]:
    """Database and schema must be well. That nobody replays or collects is told, but is no fault of the console's."""
    store, settings = cast(Store, app.state.store), cast(WebSettings, app.state.settings)
    found = await health.database(store)
    if any(check.word is Word.FAILING for check in found):
        return found
    changes: Changes = app.state.changes
    listens = Check("changes", Word.OK, "pages are told of changes") if changes.listening else _DEAF
    try:
        more = [await health.workers(store), await health.collectors(store, _pipelines(settings))]
    except health.AWAY:
        return [Check("database", Word.FAILING, "it does not answer")]
    return [*found, listens, *more]


_DEAF = Check("changes", Word.WARNING, "the connection that listens is away; pages look by themselves")


def _pipelines(settings: WebSettings) -> list[str]:
    return [pipeline.name for pipeline in settings.pipelines]


@asynccontextmanager
async def watched(app: FastAPI, address: tuple[str, int] | None) -> AsyncIterator[None]:
    """Answer those who watch on a port of their own, where one is configured."""
    store, settings = cast(Store, app.state.store), cast(WebSettings, app.state.settings)

    async def ready() -> Sequence[Check]:
        return await checks(app)

    async def measured() -> bytes:
        try:
            await metrics.read_installation(store, [build.name for build in settings.builds], _pipelines(settings))
            metrics.DATABASE.set(1)
        except health.AWAY:
            metrics.DATABASE.set(0)
        return metrics.text()

    async with listener.listening(address, ready, measured):
        yield
