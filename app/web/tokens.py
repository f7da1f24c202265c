"""The page of API tokens: all that one answers for, making one (shown this once), ending one."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import repository, tokens
from app.incidents.access_models import ApiToken
from app.incidents.errors import IncidentError, NotFound
from app.incidents.roles import ANYWHERE, RANKS, Role
from app.web.access import Permission, Requires, admitted, forbidden_to, note_refusal
from app.web.forms import Form, read_form
from app.web.loading import pages_of, principal_of, settings_of, store_of
from app.web.problems import Refused

router = APIRouter(include_in_schema=False)

TOKENS = Depends(Requires(Permission.TOKENS))
DAYS: Final = {"1": "a day", "7": "a week", "30": "30 days", "90": "90 days", "366": "a year"}


class LoadToken:
    """Finds a token whose every scope the person is an admin of; one of a scope where they are nothing is not found."""

    permission = Permission.TOKENS

    async def __call__(self, request: Request, token_id: str) -> ApiToken:
        principal = await admitted(request)
        async with store_of(request).read() as session:
            token = await tokens.get_token(session, token_id)
        foreign = not principal.grants.includes(Role.VIEWER, token.scopes)
        if not foreign and principal.grants.includes(Role.ADMIN, token.scopes) and not principal.by_token:
            return token
        await note_refusal(request, principal, self.permission, token_id, foreign=foreign)
        if foreign:
            raise NotFound("token", token_id)
        raise Refused(forbidden_to(self.permission))


@router.get("/tokens", dependencies=[TOKENS])
async def list_tokens(request: Request) -> Response:
    return await _page(request)


@router.post("/tokens", dependencies=[TOKENS])
async def create_token(request: Request) -> Response:
    """Make a token and show it, this once."""
    form = await read_form(request)
    principal = principal_of(request)
    scopes = form.values.get("scope", [])
    role, days = form.value("role") or "", form.value("days") or ""
    try:
        if not principal.grants.includes(Role.ADMIN, scopes) or not set(scopes) <= set(_scopes(request)):
            raise IncidentError("a token reaches no further than where you are an admin")
        if role not in RANKS or days not in DAYS:
            raise IncidentError("choose a role and a time")
        async with store_of(request).write() as session:
            made, secret = await tokens.create_token(
                session,
                name=form.value("name") or "",
                role=Role(role),
                scopes=scopes,
                who=principal.name,
                days=int(days),
            )
    except IncidentError as error:
        return await _page(request, form, f"{error}.")
    return pages_of(request).page("token_created.html", request, 201, token=made, secret=secret)


@router.post("/tokens/{token_id}/revoke")
async def revoke_token(request: Request, token: Annotated[ApiToken, Depends(LoadToken())]) -> Response:
    async with store_of(request).write() as session:
        await tokens.revoke_token(session, token.id, who=principal_of(request).name)
    return RedirectResponse("/tokens", 303)


async def _page(request: Request, form: Form | None = None, problem: str | None = None) -> Response:
    form = form or Form()
    async with store_of(request).read() as session:
        listed = await tokens.list_tokens(session, principal_of(request).grants)
        now = await repository.now(session)
    return pages_of(request).page(
        "tokens.html",
        request,
        200 if problem is None else 422,
        listed=[(token, token.state(now)) for token in listed],
        scopes=_scopes(request),
        roles=RANKS,
        days=DAYS,
        problem=problem,
        typed={
            "name": form.value("name") or "",
            "role": form.value("role") or "viewer",
            "days": form.value("days") or "90",
        },
        chosen=form.values.get("scope", []),
    )


def _scopes(request: Request) -> list[str]:
    """The scopes that a token of this person may have."""
    settings, grants = settings_of(request), principal_of(request).grants
    names = [*(pipeline.name for pipeline in settings.pipelines), settings.access.files_scope]
    mine = [name for name in dict.fromkeys(names) if grants.includes(Role.ADMIN, [name])]
    return [*mine, ANYWHERE] if grants.includes(Role.ADMIN, [ANYWHERE]) else mine
