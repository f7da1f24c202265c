"""The page of agent builds, and the patterns page that shows every component in every state."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.web.loading import READ, builds_of, pages_of
from app.web.patterns import samples

router = APIRouter(include_in_schema=False)


@router.get("/builds", dependencies=[READ])
async def builds(request: Request) -> Response:
    """Which code may be replayed."""
    return pages_of(request).page("builds.html", request, builds=builds_of(request))


@router.get("/patterns", dependencies=[READ])
async def patterns(request: Request) -> Response:
    """Every component with made-up values: to look at while changing one, and for the tests of accessibility."""
    return pages_of(request).page("patterns.html", request, **samples())
