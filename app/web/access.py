"""Who may do what: the start-up token, the cookie it turns into, and the permission every route declares.

One person holds the token today. Roles come later and change only which permissions a `Principal` has.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fastapi import Request

from app.web.forms import Form, read_form
from app.web.problems import Problem, Refused

SESSION_S: Final = 7 * 24 * 3600
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"


class Permission(StrEnum):
    """What a route asks of the person behind the request; every route names exactly one."""

    PUBLIC = "public"  # reachable without the token: the door itself
    READ = "read"
    IMPORT = "import"
    REPLAY = "replay"
    OPEN = "open"  # open incidents of live pipelines, and search their topics
    EXPORT = "export"  # ask a running pipeline for a key's state, which discloses the key's memory
    ANNOTATE = "annotate"  # change what people say of an incident: its case, notes, links
    SHARE = "share"  # make links, list and end them
    SHARED = "shared"  # see what a link shows: the link itself grants it, and nobody's session


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking. `csrf` is what their forms must carry; None for scripts, which no site can make send a bearer."""

    name: str
    permissions: frozenset[Permission]
    csrf: str | None


class Keeper:
    """Knows the token and signs sessions with a key made of it, so that a new token ends all old sessions."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ValueError("the console needs a start-up token: leave HINDCAST_TOKEN unset to get a random one")
        self._token = token.encode()
        self._key = hmac.digest(self._token, b"hindcast session", "sha256")
        # Consoles on one machine share the host name and so the cookie jar; each takes a name of its own.
        self.cookie = f"hindcast_{self._sign('cookie name')[:8]}"

    def is_token(self, offered: str) -> bool:
        """Compare in constant time; both sides are hashed first, so not even the length shows."""
        return hmac.compare_digest(hashlib.sha256(offered.encode()).digest(), hashlib.sha256(self._token).digest())

    def open_session(self, now_s: float | None = None) -> str:
        """Make the cookie value of a fresh session."""
        body = f"{int(time.time() if now_s is None else now_s)}.{secrets.token_urlsafe(16)}"
        return f"{body}.{self._sign('session', body)}"

    def principal(self, cookie: str, now_s: float | None = None) -> Principal | None:
        """The person behind a cookie; None when it is not ours, was changed, or is too old."""
        body, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", body).encode()):
            return None
        age = (time.time() if now_s is None else now_s) - int(body.partition(".")[0])
        if not -60 <= age <= SESSION_S:
            return None
        return Principal("operator", frozenset(Permission), self._sign("csrf", body))

    def bearer(self, authorization: str) -> Principal | None:
        """The script behind an `Authorization` header; None when the scheme or the token is another."""
        scheme, _, offered = authorization.partition(" ")
        if scheme.lower() != "bearer" or not self.is_token(offered.strip()):
            return None
        return Principal("script", frozenset(Permission), None)

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._key, "\0".join(parts).encode(), "sha256").hexdigest()


class Requires:
    """The dependency by which a route declares its permission, and which checks it and the form's CSRF token."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission

    async def __call__(self, request: Request) -> Principal:
        """Let the principal through, or raise `Refused`."""
        principal: Principal | None = request.scope.get("hindcast.principal")
        if principal is None or self.permission not in principal.permissions:
            raise Refused(forbidden(f"This needs the permission to {self.permission}."))
        if principal.csrf is not None and request.method not in SAFE_METHODS:
            await _check_csrf(request, principal.csrf)
        return principal


def public() -> None:
    """The dependency of the few routes that answer without the token."""


public.permission = Permission.PUBLIC  # type: ignore[attr-defined]


async def _check_csrf(request: Request, wanted: str) -> None:
    offered = request.headers.get(CSRF_HEADER)
    if offered is None:
        form: Form = await read_form(request)
        offered = form.value(CSRF_FIELD)
    if not hmac.compare_digest((offered or "").encode(), wanted.encode()):
        raise Refused(forbidden("The form's token is missing or belongs to an older session."))


def forbidden(what: str) -> Problem:
    """What a browser reads when a request may not be made from where it came."""
    return Problem(
        status=403,
        title="Refused",
        what=what,
        expected="a request from one of the console's own pages, or a script with a bearer token",
        remedy="Load the page again and repeat what you did.",
    )
