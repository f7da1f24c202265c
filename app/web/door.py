"""The door: turns the start-up token into a session cookie, shows the way to log in, and lets people out again."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import logins
from app.incidents.audit import Action, record_event
from app.web.access import Permission, Requires, public
from app.web.forms import read_form
from app.web.gate import stranger
from app.web.keeper import SESSION_S, Keeper
from app.web.limits import RateLimits, address_of
from app.web.loading import pages_of, principal_of, store_of
from app.web.login import identities_of, is_secure
from app.web.oidc import Provider
from app.web.problems import Problem, Refused, not_found

router = APIRouter(include_in_schema=False)


@router.get("/enter", dependencies=[Depends(public)])
async def enter(request: Request) -> Response:
    """The printed address: `?token=…`; without a token, a form to paste it into, or the way to log in."""
    offered = request.query_params.get("token")
    if offered is None or identities_of(request).keeper is None:
        return pages_of(request).problem(request, stranger(identities_of(request).mode))
    return await _answer(request, _keeper(request), offered)


@router.post("/enter", dependencies=[Depends(public)])
async def enter_by_form(request: Request) -> Response:
    keeper = _keeper(request)
    form = await read_form(request)
    return await _answer(request, keeper, form.value("token") or "")


@router.post("/leave", dependencies=[Depends(Requires(Permission.VIEW))])
async def leave(request: Request) -> Response:
    """End the session, here and on the server; where the provider has a place to end its own, lead there."""
    identities = identities_of(request)
    if identities.keeper is not None:
        async with store_of(request).write() as session:
            record_event(session, Action.SESSION_ENDED, who=principal_of(request).name, subject="start-up token")
        response: Response = RedirectResponse("/enter", 303)
        response.delete_cookie(identities.keeper.cookie, path="/")
        return response
    if identities.mode == "proxy":
        return _left(request, identities.access.proxy.logout_url)
    token = identities.token_of(request.cookies.get(identities.cookie))
    id_token = None
    if token is not None:
        async with store_of(request).write() as session:
            ended = await logins.end_session(session, token)
        id_token = None if ended is None else ended.id_token
    provider: Provider | None = request.app.state.provider
    response = _left(request, None if provider is None else await provider.logout_url(id_token))
    response.delete_cookie(identities.cookie, path="/", secure=is_secure(request), httponly=True, samesite="lax")
    return response


def _left(request: Request, onward: str | None) -> Response:
    """Say that the session is over. Forms may not lead to other sites, so the page itself goes on to the provider."""
    request.scope["hindcast.principal"] = None
    response = pages_of(request).page("left.html", request, onward=onward)
    if onward is not None:
        response.headers["Refresh"] = f"1; url={onward}"
    return response


async def _answer(request: Request, keeper: Keeper, offered: str) -> Response:
    rates: RateLimits = request.app.state.rates
    rates.entering.check(address_of(request))
    if not keeper.is_token(offered.strip()):
        rates.entering.note(address_of(request))
        await identities_of(request).note_stranger("start-up token")
        return _refuse(request)
    async with store_of(request).write() as session:
        record_event(session, Action.SESSION_OPENED, who="operator", subject="start-up token")
    response = RedirectResponse("/", 303)
    response.set_cookie(
        keeper.cookie,
        keeper.open_session(),
        max_age=SESSION_S,
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return response


def _refuse(request: Request) -> Response:
    problem = Problem(
        status=401,
        title="The token is wrong",
        what="This is not the token of this console.",
        expected="the token that the console printed when it started (HINDCAST_TOKEN presets it)",
        remedy="A restart makes a new one, and ends all sessions.",
    )
    return pages_of(request).problem(request, problem)


def _keeper(request: Request) -> Keeper:
    keeper = identities_of(request).keeper
    if keeper is None:
        raise Refused(not_found("No token opens this console."))
    return keeper
