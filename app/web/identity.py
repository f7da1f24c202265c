"""Finds out who is behind a request: a script by its token, or a person in the one way that the configuration names."""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from app.incidents import logins, tokens
from app.incidents.audit import Action, record_event
from app.incidents.roles import Grants, Role
from app.incidents.store import Store
from app.web.access import Principal
from app.web.config import Access
from app.web.keeper import Keeper
from app.web.keys import Keys
from app.web.limits import Limiter
from app.web.problems import Problem, Refused

log = logging.getLogger(__name__)

_PERSON: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
# Names that stand for something else in the audit trail and in lists of who made what.
_TAKEN: Final = re.compile(
    r"(operator|script|the demo|command line)\Z|(token|share|rule|command line)[ :]", re.IGNORECASE
)
_REMEMBERED: Final = 10_000
_STRANGERS: Final = 60


class Recent:
    """What was noted in the last `seconds`; in memory, so that what repeats does not fill the audit trail."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: OrderedDict[tuple[str, ...], float] = OrderedDict()

    @contextmanager
    def news(self, *what: str) -> Iterator[bool]:
        """Tell the block whether this was not noted lately. From now on it was, unless the block cannot note it."""
        fresh = self._is_news(what)
        try:
            yield fresh
        except BaseException:
            if fresh:
                self._seen.pop(what, None)
            raise

    def _is_news(self, what: tuple[str, ...]) -> bool:
        now = time.monotonic()
        last = self._seen.pop(what, None)
        fresh = last is None or now - last >= self._seconds
        self._seen[what] = now if fresh or last is None else last
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return fresh


class Identities:
    """Who is who; `keeper` knows the start-up token where that opens this console, `secure` tells cookies from http."""

    def __init__(self, access: Access, store: Store, keys: Keys, keeper: Keeper | None, *, secure: bool) -> None:
        self.access = access
        self.keeper = keeper
        self.mode = access.mode or "token"
        # The prefix makes browsers refuse the cookie from a neighbouring host.
        self.cookie = "__Host-hindcast" if secure else "hindcast_session"
        self.login_cookie = "__Host-hindcast_login" if secure else "hindcast_login"
        self._store = store
        self._keys = keys
        self._entered = Recent(access.session_hours * 3600)
        self._refused = Recent(600)
        self._strangers = Limiter(_STRANGERS, 60)

    async def of(self, scope: Scope, headers: Headers, *, proxied: bool) -> Principal | None:
        """The principal of a request, None for a stranger; `proxied`: a proxy that is believed sent it.

        Raises `Refused` for somebody who is known and may not enter.
        """
        authorization = headers.get("authorization")
        if self.mode == "proxy":
            offered = _bearer(authorization)
            if offered is None or not offered.startswith(tokens.PREFIX):
                return await self._by_headers(scope, headers, proxied=proxied)
        if authorization is not None:  # who offers a token is judged by it, whatever cookie comes along
            return await self._script(_bearer(authorization))
        cookies = cookie_parser(headers.get("cookie", ""))
        if self.keeper is not None:
            return self.keeper.principal(cookies[self.keeper.cookie]) if self.keeper.cookie in cookies else None
        return await self._by_session(cookies.get(self.cookie))

    def token_of(self, cookie: str | None) -> str | None:
        """The token of the session that a browser keeps; None for a cookie that is not ours."""
        return None if not cookie else self._keys.unsealed("session", cookie)

    def grants(self, person: str, groups: Sequence[str]) -> Grants:
        """What the rules give to somebody."""
        mine = set(groups)
        rules = [rule for rule in self.access.roles if person in rule.users or mine & set(rule.groups)]
        return Grants.of((rule.role, rule.pipelines) for rule in rules)

    async def refuse(self, person: str, groups: Sequence[str], why: str) -> Refused:
        """Record that somebody who is known may not enter, and word it."""
        log.warning("refused %r: %s", person, why)
        with self._refused.news(person, why) as news:
            if news:
                detail = {"why": why, "groups": list(groups)[:100]}
                async with self._store.write() as session:
                    record_event(session, Action.SESSION_REFUSED, who=person, subject=person, detail=detail)
        return Refused(
            Problem(
                403,
                "You may not enter",
                f"You are known as {person!r}, and {why}.",
                "somebody to whom access.roles gives a role",
                "Ask whoever keeps the configuration of this console; then log in again.",
            )
        )

    async def note_stranger(self, tried: str) -> None:
        """Record that somebody unknown tried something; no more in a minute than the trail can bear, whoever does."""
        if not self._strangers.wait_s(""):
            self._strangers.note("")
            async with self._store.write() as session:
                record_event(session, Action.SESSION_REFUSED, who="stranger", subject=tried)

    async def _script(self, offered: str | None) -> Principal | None:
        if offered is None:
            return None
        if self.keeper is not None and (principal := self.keeper.bearer(offered)) is not None:
            return principal
        async with self._store.read() as session:
            token = await tokens.find_token(session, offered)
        if token is None:
            return None
        if tokens.is_stale(token, round(time.time() * 1000)):
            async with self._store.write() as session:
                await tokens.note_use(session, token.id)
        grants = Grants.of([(Role(token.role), token.scopes)])
        name = f"token {token.name} ({token.id})"
        return Principal(name, grants, None, self.access.files_scope, shown_as=token.name, by_token=True)

    async def _by_session(self, cookie: str | None) -> Principal | None:
        token = self.token_of(cookie)
        if token is None:
            return None
        async with self._store.read() as session:
            found = await logins.find_session(session, token)
        if found is None:
            return None
        grants = self.grants(found.person, found.groups)
        if not grants.roles:  # the rules changed since
            raise await self.refuse(found.person, found.groups, "no rule gives you a role any more")
        csrf = self._keys.csrf(found.id)
        return Principal(found.person, grants, csrf, self.access.files_scope, shown_as=found.shown_as)

    async def _by_headers(self, scope: Scope, headers: Headers, *, proxied: bool) -> Principal | None:
        told = self.access.proxy
        users, groups = headers.getlist(told.user_header), headers.getlist(told.groups_header)
        if not proxied:
            if not users and not groups:
                return None
            peer = scope["client"][0] if scope.get("client") else "an unknown address"
            log.warning(
                "refused a request from %s with the header %s: it is not one of console.proxies, so what it says of"
                " anybody is not believed", peer, told.user_header if users else told.groups_header,
            )  # fmt: skip
            await self.note_stranger("proxy header")
            raise Refused(_not_the_proxy(told.user_header))
        if not users:
            return None
        person = _text(users[0]).strip()
        if len(users) > 1 or not is_name(person):
            log.warning("refused a request whose header %s names nobody, or several", told.user_header)
            raise Refused(_not_a_name(told.user_header))
        found = [part.strip() for value in groups for part in _text(value).split(told.separator) if part.strip()]
        grants = self.grants(person, found)
        if not grants.roles:
            raise await self.refuse(person, found, "no rule gives you a role")
        with self._entered.news(person, *sorted(found)) as news:
            if news:
                async with self._store.write() as session:
                    record_event(session, Action.SESSION_OPENED, who=person, subject=person, detail={"groups": found})
        return Principal(person, grants, self._keys.csrf(f"proxy {person}"), self.access.files_scope, shown_as=person)


def is_name(person: str) -> bool:
    """Whether somebody may be called this: nothing that reads as another, or as one of ours."""
    return _PERSON.fullmatch(person) is not None and _TAKEN.match(person) is None


def _bearer(authorization: str | None) -> str | None:
    scheme, _, offered = (authorization or "").partition(" ")
    return offered.strip() if scheme.lower() == "bearer" else None


def _text(value: str) -> str:
    """A header's value, which arrives as bytes of one character each, as the UTF-8 that proxies send."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return value


def _not_the_proxy(header: str) -> Problem:
    return Problem(
        403,
        "Refused",
        f"The request carries {header}, and does not come from the proxy.",
        "requests by way of the proxy that says who somebody is",
        "Use the address of the proxy; whoever runs it adds its address to console.proxies.",
    )


def _not_a_name(header: str) -> Problem:
    return Problem(400, "Refused", f"{header} names nobody, or more than one.", "one name", "Look at the proxy.")
