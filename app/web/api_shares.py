"""Shares for scripts, under `/api/v1`: make one (its address is told once), list all, end one."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from app.incidents import service, shares
from app.incidents.redaction import EVERYTHING, Reveal
from app.incidents.shares import Listed
from app.web import openapi
from app.web.formats import iso
from app.web.forms import body_of
from app.web.loading import MAX_NUMBER, store_of
from app.web.problems import Problem, Refused, json_response
from app.web.shares import SHARE, ShareIncident, TheirShare, end, listed_for, make

router = APIRouter(prefix="/api/v1", tags=["v1"], responses=openapi.PROBLEMS)


class ShareIn(BaseModel):
    """How long a link lives, and what it shows: nothing but shapes and digests unless told otherwise."""

    model_config = ConfigDict(extra="forbid", strict=True)

    expires_in_s: int = Field(
        shares.DEFAULT_EXPIRY_S, ge=1, le=shares.LONGEST_EXPIRY_S, description="seconds; 7 days by default"
    )
    redact: bool = Field(True, description="false shows everything that the configuration's rules do not hide")
    reveal: list[str] = Field(
        default_factory=list, max_length=len(Reveal), description="what to open: " + ", ".join(Reveal)
    )
    run: int | None = Field(None, ge=1, le=MAX_NUMBER, description="number of the one run to share; null shares all")


class ShareCreated(BaseModel):
    """The link that was made; `url` is never told again."""

    id: str
    url: str


class ShareOut(BaseModel):
    """A link in the list; who opened it, and when, is in the audit trail."""

    id: str
    incident_id: str
    run: int | None = Field(description="number of the one run that is shared; null for the whole incident")
    state: str = Field(description="live, expired or revoked")
    redact: bool
    reveal: list[str]
    created_at: str | None
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    accesses: int
    last_access_at: str | None


class ShareList(BaseModel):
    shares: list[ShareOut]


_BODY: Final[dict[str, Any]] = {
    "requestBody": {"required": False, "content": {"application/json": {"schema": ShareIn.model_json_schema()}}}
}


@router.post("/incidents/{incident_id}/shares", status_code=201, response_model=ShareCreated, openapi_extra=_BODY)
async def create_share(request: Request, incident: ShareIncident) -> Response:
    """Make a link to an incident, or to one run of it; redacted unless told otherwise."""
    told = await _share_in(request)
    reveal = shares.revealed(told.reveal, redact=told.redact)
    run = None
    if told.run is not None:
        async with store_of(request).read() as session:
            run = await service.get_run_by_number(session, incident, told.run)
    share, url = await make(request, incident, run, reveal, told.expires_in_s)
    return json_response(ShareCreated(id=share.id, url=url).model_dump(), 201)


@router.get("/shares", dependencies=[SHARE], response_model=ShareList)
async def list_shares(request: Request) -> Response:
    """List the live links that you may end (admins: of everybody), then the newest dead ones."""
    listed = await listed_for(request)
    return json_response(ShareList(shares=[_out(item) for item in listed]).model_dump())


@router.delete("/shares/{share_id}", status_code=204, response_class=Response)
async def delete_share(request: Request, share: TheirShare) -> Response:
    """End a link: the next request with it is answered 404."""
    await end(request, share.id)
    return Response(status_code=204)


async def _share_in(request: Request) -> ShareIn:
    body = await body_of(request, 64 * 1024)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and media != "application/json":
        raise Refused(Problem(415, "Wrong content type", f"The body is {media or 'of no type'}.", "application/json"))
    try:
        return ShareIn.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors()[0]
        status = 400 if first["type"] == "json_invalid" else 422
        place = ".".join(str(part) for part in first["loc"]) or "body"
        expected = 'a JSON object {"expires_in_s": seconds, "redact": true}'
        raise Refused(Problem(status, "Invalid request", f"{place}: {first['msg']}.", expected)) from error


def _out(item: Listed) -> ShareOut:
    share = item.share
    return ShareOut(
        id=share.id,
        incident_id=share.incident_id,
        run=item.run,
        state=item.state,
        redact=set(share.reveal) != {str(each) for each in EVERYTHING},
        reveal=list(share.reveal),
        created_at=iso(share.created_at),
        created_by=share.created_by,
        expires_at=iso(share.expires_at),
        revoked_at=None if share.revoked_at is None else iso(share.revoked_at),
        accesses=share.accesses,
        last_access_at=None if share.last_access_at is None else iso(share.last_access_at),
    )
