"""The page of workers and queues: who works, for which builds, and what waits; the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from app.incidents import pool
from app.web import openapi
from app.web.access import Permission
from app.web.loading import READ, builds_of, pages_of, scopes_of, settings_of, store_of
from app.web.problems import json_response

router = APIRouter()


class WorkerOut(BaseModel):
    """One worker process. `builds` is null for one that takes every run."""

    name: str
    version: str
    state: str = Field(description="idle, busy, draining or gone")
    builds: list[str] | None
    jobs: int = Field(description="replays that it runs at the same time")
    running: int
    silent_ms: int = Field(description="how long ago it showed a sign of life")


class QueueOut(BaseModel):
    """The runs of one build."""

    build: str
    waiting: int
    running: int
    oldest_ms: int | None = Field(description="how long the first in line has waited")
    workers: int = Field(description="workers that would take one of its runs")
    capacity: int = Field(description="replays that those run at the same time")


class PoolOut(BaseModel):
    """The pool. `max_waiting` is how many runs may wait before further ones are refused."""

    workers: list[WorkerOut]
    queues: list[QueueOut]
    waiting: int
    max_waiting: int


async def _status(request: Request) -> pool.PoolStatus:
    """The pool, as far as it works for builds that the person may see."""
    shown = [build.name for build in builds_of(request)]
    async with store_of(request).read() as session:
        status = await pool.pool_status(session, shown)
    if scopes_of(request, Permission.READ).everything:
        return status
    workers = [one if one.builds is None else replace(one, builds=_among(one.builds, shown)) for one in status.workers]
    return pool.PoolStatus(workers, [one for one in status.queues if one.build in shown])


def _among(builds: Sequence[str], shown: Sequence[str]) -> list[str]:
    return [build for build in builds if build in shown]


@router.get("/workers", dependencies=[READ], include_in_schema=False)
async def workers(request: Request) -> Response:
    """Who works, and what waits."""
    most = settings_of(request).console.max_waiting
    return pages_of(request).page("workers.html", request, pool=await _status(request), most=most)


@router.get("/api/v1/workers", dependencies=[READ], response_model=PoolOut, tags=["v1"], responses=openapi.PROBLEMS)
async def workers_json(request: Request) -> Response:
    """Workers and queues as they stand."""
    status = await _status(request)
    most = settings_of(request).console.max_waiting
    body = PoolOut(**status.as_json(), waiting=status.waiting, max_waiting=most)
    return json_response(body.model_dump(mode="python"))
