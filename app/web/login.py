"""Logging in at a provider, and coming back from it."""

from __future__ import annotations

import logging
import re
from typing import cast

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import logins
from app.web.access import public
from app.web.identity import Identities, is_name
from app.web.keys import Keys
from app.web.limits import RateLimits, address_of
from app.web.loading import settings_of, store_of
from app.web.oidc import Known, Provider, ProviderError
from app.web.problems import Problem, Refused, not_found

log = logging.getLogger(__name__)
router = APIRouter(include_in_schema=False)

_LOGIN_S = 600
# A path of ours: one slash, then nothing that a browser could read as another host.
_PATH = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*", re.ASCII)


@router.get("/login", dependencies=[Depends(public)])
async def login(request: Request) -> Response:
    """To the provider; `next` is the page that was asked for, and only ever a path of ours."""
    provider = _provider(request)
    limits: RateLimits = request.app.state.rates
    limits.login.check(address_of(request))
    limits.login.note(address_of(request))
    request.scope["session"] = {}
    try:
        answer = await provider.redirect(request)
    except ProviderError as error:
        raise Refused(_unreachable(error)) from error
    kept = {"state": request.scope["session"], "next": safe_path(request.query_params.get("next"))}
    identities = identities_of(request)
    answer.set_cookie(
        identities.login_cookie,
        _keys(request).packed(kept),
        max_age=_LOGIN_S,
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="lax",  # the way back is a navigation from the provider's site
    )
    return answer


@router.get("/login/callback", dependencies=[Depends(public)])
async def callback(request: Request) -> Response:
    """Back from the provider: a fresh session for whom it vouches and the rules know, then the page asked for."""
    provider, identities = _provider(request), identities_of(request)
    limits: RateLimits = request.app.state.rates
    limits.entering.check(address_of(request))
    kept = _keys(request).unpacked(request.cookies.get(identities.login_cookie, ""))
    request.scope["session"] = kept.get("state") or {}
    try:
        known = await provider.finish(request)
    except ProviderError as error:
        limits.entering.note(address_of(request))
        log.warning("a log-in failed: %s", error)
        await identities.note_stranger("log-in")
        raise Refused(_failed()) from error
    return await _admit(request, identities, known, safe_path(kept.get("next")))


async def _admit(request: Request, identities: Identities, known: Known, target: str) -> Response:
    if not is_name(known.person):
        raise await identities.refuse(known.person, known.groups, "that name means something else here")
    if not identities.grants(known.person, known.groups).roles:
        raise await identities.refuse(known.person, known.groups, "no rule gives you a role")
    async with store_of(request).write() as session:
        _, token = await logins.open_session(
            session,
            person=known.person,
            shown_as=known.shown_as,
            groups=known.groups,
            lives_s=identities.access.session_hours * 3600,
            id_token=known.id_token,
            # Whatever session this browser had ends: nobody can be made to go on with one that another knows.
            replaces=identities.token_of(request.cookies.get(identities.cookie)),
        )
    response = RedirectResponse(target, 303)
    secure = is_secure(request)
    response.set_cookie(
        identities.cookie,
        _keys(request).sealed("session", token),
        max_age=round(identities.access.session_hours * 3600),
        path="/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )
    response.delete_cookie(identities.login_cookie, path="/", secure=secure, httponly=True, samesite="lax")
    return response


def safe_path(told: object) -> str:
    """Where to go after logging in: a path of this console, else its front page."""
    if not isinstance(told, str) or len(told) > 500 or not _PATH.fullmatch(told):
        return "/"
    return "/" if told.startswith(("/login", "/enter", "/leave", "/s/")) else told


def identities_of(request: Request) -> Identities:
    return cast(Identities, request.app.state.identities)


def is_secure(request: Request) -> bool:
    """Whether browsers reach the console encrypted, so that a cookie may insist on it."""
    return request.url.scheme == "https" or (settings_of(request).public_url or "").startswith("https:")


def _provider(request: Request) -> Provider:
    provider: Provider | None = request.app.state.provider
    if provider is None:
        raise Refused(not_found("Nobody logs in here."))
    return provider


def _keys(request: Request) -> Keys:
    return cast(Keys, request.app.state.keys)


def _unreachable(error: ProviderError) -> Problem:
    log.error("nobody can log in: %s", error)
    return Problem(
        502,
        "The provider does not answer",
        "The console could not reach the provider that people log in at; its log says why.",
        "the provider that access.oidc.issuer names",
        "Try again in a minute; if it lasts, tell whoever keeps this console.",
    )


def _failed() -> Problem:
    return Problem(
        401,
        "The log-in failed",
        "It was refused, took longer than ten minutes, or was begun in another browser; the console's log says which.",
        "the answer to a log-in that this browser has just begun",
        "Log in again.",
    )
