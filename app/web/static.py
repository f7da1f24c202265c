"""Serves our own style sheet and scripts, and the vendored ones; browsers keep them by the digest in their address."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import FileResponse, Response

from app import resource
from app.web.access import public
from app.web.problems import Refused, not_found

router = APIRouter(prefix="/static", include_in_schema=False)

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


# The gate lets nobody past who has no token, but for the few files that draw the door.
@router.get("/{name:path}", dependencies=[Depends(public)])
async def static_file(request: Request, name: str) -> Response:
    """One file of `static/`; anything else, whatever its path says, is not found."""
    folder = resource("static").resolve()
    path = (folder / name).resolve()
    if not path.is_relative_to(folder) or path.suffix not in _TYPES or not path.is_file():
        raise Refused(not_found(f"There is no static file {name!r}."))
    lasting = "v" in request.query_params
    cache = "private, max-age=31536000, immutable" if lasting else "private, max-age=300"
    return FileResponse(path, media_type=_TYPES[path.suffix], headers={"Cache-Control": cache})
