"""The door: turns the start-up token into a session cookie, so that the token does not stay in the address bar."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from app.web.access import SESSION_S, Keeper, public
from app.web.forms import read_form
from app.web.limits import RateLimits, address_of
from app.web.loading import READ, pages_of
from app.web.problems import Problem

router = APIRouter(include_in_schema=False)


@router.get("/enter", dependencies=[Depends(public)])
async def enter(request: Request) -> Response:
    """The printed address: `?token=…`; without a token, a form to paste it into."""
    offered = request.query_params.get("token")
    return _refuse(request, asked=False) if offered is None else _answer(request, offered)


@router.post("/enter", dependencies=[Depends(public)])
async def enter_by_form(request: Request) -> Response:
    form = await read_form(request)
    return _answer(request, form.value("token") or "")


@router.post("/leave", dependencies=[READ])
async def leave(request: Request) -> Response:
    response = RedirectResponse("/enter", 303)
    response.delete_cookie(_keeper(request).cookie, path="/")
    return response


def _answer(request: Request, offered: str) -> Response:
    keeper = _keeper(request)
    rates: RateLimits = request.app.state.rates
    rates.entering.check(address_of(request))
    if not keeper.is_token(offered.strip()):
        rates.entering.note(address_of(request))
        return _refuse(request, asked=True)
    response = RedirectResponse("/", 303)
    response.set_cookie(
        keeper.cookie,
        keeper.open_session(),
        max_age=SESSION_S,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    return response


def _refuse(request: Request, *, asked: bool) -> Response:
    problem = Problem(
        status=401,
        title="The token is wrong" if asked else "The token is missing",
        what="This is not the token of this console." if asked else "The console shows nothing without its token.",
        expected="the token that the console printed when it started (HINDCAST_TOKEN presets it)",
        remedy="A restart makes a new one, and ends all sessions.",
    )
    return pages_of(request).problem(request, problem)


def _keeper(request: Request) -> Keeper:
    return cast(Keeper, request.app.state.keeper)
