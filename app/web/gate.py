"""Stands before every route: checks the host, finds out who is asking, and lets nobody else see anything.

It is plain ASGI and outermost, so that not even a 404 or a static file escapes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.incidents.audit import ORIGIN
from app.web.access import SAFE_METHODS, forbidden
from app.web.identity import Identities
from app.web.limits import RateLimits, address_of, too_many
from app.web.pages import Pages
from app.web.peers import Proxies
from app.web.problems import Problem, Refused, not_found

log = logging.getLogger(__name__)

# The door, and what its page is drawn with.
OPEN_PATHS: Final = frozenset(
    {
        "/enter",
        "/login",
        "/login/callback",
        "/static/hindcast.css",
        "/static/vendor/missing.min.css",
        "/static/icon.svg",
    }
)

# What watches over processes asks by address, and learns nothing that is secret.
PROBES: Final = frozenset({"/healthz", "/readyz"})

# Below it the link alone counts: who asks is not even looked at, so that a link shows the same to everybody.
SHARED_PREFIX: Final = "/s/"

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Robots-Tag": "noindex",
}


class Gate:
    """The outermost layer. `allowed_hosts` are names without port; `broken` words an error that nobody foresaw."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        identities: Identities,
        proxies: Proxies,
        allowed_hosts: Sequence[str],
        pages: Pages,
        rates: RateLimits,
        broken: Callable[[Exception], Problem],
    ) -> None:
        self._app = app
        self._identities = identities
        self._proxies = proxies
        self._hosts = frozenset(_host_name(host) for host in allowed_hosts)
        self._pages = pages
        self._rates = rates
        self._broken = broken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        outgoing = _Outgoing(send)
        proxied = self._proxies.place(scope, headers)
        origin = ORIGIN.set(scope["client"][0] if scope.get("client") else None)
        try:
            await (await self._refuse(scope, headers, proxied=proxied) or self._app)(scope, receive, outgoing)
        except Refused as refused:
            await self._pages.problem(Request(scope), refused.problem)(scope, receive, outgoing)
        except Exception as error:
            problem = self._broken(error)
            if outgoing.started:  # too late for an answer: the connection has to break
                raise
            await self._pages.problem(Request(scope), problem)(scope, receive, outgoing)
        finally:
            ORIGIN.reset(origin)

    async def _refuse(self, scope: Scope, headers: Headers, *, proxied: bool) -> Response | None:
        if scope["path"] in PROBES:
            scope["hindcast.principal"] = None
            return None
        host = headers.get("host", "")
        if _host_name(host) not in self._hosts:
            log.warning("refused a request for host %r, which is not in console.allowed_hosts", host)
            return PlainTextResponse(_wrong_host(host), 400)
        shared = scope["path"].startswith(SHARED_PREFIX)
        scope["hindcast.principal"] = None
        principal = None if shared else await self._identities.of(scope, headers, proxied=proxied)
        scope["hindcast.principal"] = principal
        if principal is None and not shared and scope["path"] not in OPEN_PATHS:
            return await self._stranger(Request(scope), offered="authorization" in headers)
        if "\0" in scope["path"]:  # nothing is called so, and the database could not even be asked
            return self._pages.problem(Request(scope), not_found("There is nothing at this address."))
        browser = principal is None or principal.csrf is not None
        if browser and scope["method"] not in SAFE_METHODS and not _same_origin(headers, host):
            return self._pages.problem(Request(scope), forbidden("The request comes from another site."))
        return None

    async def _stranger(self, request: Request, *, offered: bool) -> Response:
        """Show the door; who comes with wrong tokens again and again has to wait."""
        address = address_of(request)
        if offered and (wait := self._rates.entering.wait_s(address)):
            return self._pages.problem(request, too_many(wait))
        if offered:
            self._rates.entering.note(address)
            await self._identities.note_stranger("token")
        return self._pages.problem(request, stranger(self._identities.mode))


def _same_origin(headers: Headers, host: str) -> bool:
    """Whether the page that sends this lives at the address it talks to; a proxy may change the scheme alone."""
    origin = urlsplit(headers.get("origin", ""))
    return origin.scheme in ("http", "https") and origin.netloc.lower() == host.lower()


def _host_name(host: str) -> str:
    """`[::1]:8000`, `::1`, `Localhost:8000` → `::1`, `::1`, `localhost`."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


class _Outgoing:
    """Adds the headers that every response carries, and remembers whether one has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


def _wrong_host(host: str) -> str:
    return (
        f"This console does not answer to the host {host!r}.\n"
        "Expected: one of the names in console.allowed_hosts.\n"
        "Remedy: use the address that the console printed, or add the name to [console] allowed_hosts in"
        " hindcast.toml.\n"
    )


def stranger(mode: str) -> Problem:
    """What somebody reads who is not known: how to become known."""
    title, expected, remedy = _WAYS_IN[mode]
    what = (
        "The console shows nothing without its token." if mode == "token" else "The console shows nothing to strangers."
    )
    return Problem(401, title, what, expected, remedy, headers={"WWW-Authenticate": "Bearer"})


_WAYS_IN: Final = {
    "token": (
        "The token is missing",
        "the address with ?token=… that the console printed at its start, or an Authorization: Bearer header",
        "Open that address once in this browser, or paste the token below.",
    ),
    "oidc": (
        "Log in first",
        "somebody who has logged in, or a script with an API token as Authorization: Bearer",
        "Log in; or make a token on the page Tokens, or with `hindcast token create`.",
    ),
    "proxy": (
        "Log in first",
        "a request by way of the proxy that says who somebody is, or an API token as Authorization: Bearer",
        "Use the address of the proxy; or make a token on the page Tokens, or with `hindcast token create`.",
    ),
}
