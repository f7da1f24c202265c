"""Who may do what: the permission every route declares, the role it asks for, and the person behind a request.

A `Principal` has a role in some scopes (pipelines, and the one of incidents from files). A route about one incident
asks for its permission there (`loading`); one about no incident asks whether it is held anywhere, and shows what is.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fastapi import Request

from app.incidents.audit import Action, record_event
from app.incidents.roles import ANYWHERE, Grants, Role, Scopes
from app.incidents.store import Store
from app.web.forms import Form, read_form
from app.web.problems import Problem, Refused

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"


class Permission(StrEnum):
    """What a route asks of the person behind the request; every route names exactly one."""

    PUBLIC = "public"  # reachable by strangers: the door itself
    SHARED = "shared"  # see what a link shows: the link itself grants it, and nobody's session
    VIEW = "view"  # see incidents and runs, redacted for whoever may not read
    READ = "read"  # see evidence, and what agents did, as it is
    IMPORT = "import"
    SEE_LOGS = "see event logs"  # imported ones, which are of no pipeline; redacted for whoever may not read them
    LOGS = "read event logs"  # as they are
    REPLAY = "replay"
    OPEN = "open"  # open incidents of live pipelines, and search their topics
    EXPORT = "export"  # ask a running pipeline for a key's state, which discloses the key's memory
    ANNOTATE = "annotate"  # change what people say of an incident: its case, notes, links
    SHARE = "share"  # make links, list and end one's own
    SHARES = "manage all shares"
    TOKENS = "manage tokens"
    AUDIT = "read the audit trail"


ROLES: Final[Mapping[Permission, Role]] = {
    Permission.VIEW: Role.VIEWER,
    Permission.READ: Role.RESPONDER,
    Permission.IMPORT: Role.RESPONDER,
    Permission.SEE_LOGS: Role.VIEWER,
    Permission.LOGS: Role.RESPONDER,
    Permission.REPLAY: Role.RESPONDER,
    Permission.OPEN: Role.RESPONDER,
    Permission.EXPORT: Role.RESPONDER,
    Permission.ANNOTATE: Role.RESPONDER,
    Permission.SHARE: Role.RESPONDER,
    Permission.SHARES: Role.ADMIN,
    Permission.TOKENS: Role.ADMIN,
    Permission.AUDIT: Role.ADMIN,
}
ALL: Final = Grants({ANYWHERE: Role.ADMIN})


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking. `name` is who they are to the audit trail, `shown_as` what pages call them.

    `csrf` is what their forms must carry; None for scripts, which no site can make send a bearer. A script by a token
    of its own makes no other tokens, or it would outlive its end.
    """

    name: str
    grants: Grants
    csrf: str | None
    files_scope: str = "files"
    shown_as: str = ""
    by_token: bool = False

    def role(self, pipeline: str | None) -> Role | None:
        """The role in a pipeline; None as a pipeline stands for incidents from files."""
        return self.grants.role(self.files_scope if pipeline is None else pipeline)

    def may(self, permission: Permission, pipeline: str | None) -> bool:
        """Whether they may do this with an incident of a pipeline (None: from files)."""
        role = self.role(pipeline)
        return role is not None and role.includes(ROLES[permission]) and not self._barred(permission)

    def may_somewhere(self, permission: Permission) -> bool:
        """Whether there is any scope in which they may do this."""
        role = self.grants.highest()
        return role is not None and role.includes(ROLES[permission]) and not self._barred(permission)

    def scopes(self, permission: Permission) -> Scopes:
        """Where they may do this."""
        if self._barred(permission):
            return Scopes(frozenset(), files=False)
        return self.grants.scopes(ROLES[permission], self.files_scope)

    def _barred(self, permission: Permission) -> bool:
        return self.by_token and permission is Permission.TOKENS


class Requires:
    """The dependency by which a route that is about no incident declares its permission."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission

    async def __call__(self, request: Request) -> Principal:
        """Let the principal through who holds the permission anywhere, or raise `Refused`."""
        principal = await admitted(request)
        if not principal.may_somewhere(self.permission):
            await note_refusal(request, principal, self.permission)
            raise Refused(forbidden_to(self.permission))
        return principal


async def admitted(request: Request) -> Principal:
    """The person behind the request, whose form carries their CSRF token; else raises `Refused`."""
    principal: Principal | None = request.scope.get("hindcast.principal")
    if principal is None:
        raise Refused(forbidden("This needs somebody who has entered."))
    if principal.csrf is not None and request.method not in SAFE_METHODS:
        await _check_csrf(request, principal.csrf)
    return principal


async def note_refusal(
    request: Request, principal: Principal, permission: Permission, subject: str = "", *, foreign: bool = False
) -> None:
    """Record that somebody tried what their role does not let them do; `foreign`: where they have no role at all."""
    store: Store = request.app.state.store
    path = request.scope["route"].path if "route" in request.scope else ""
    detail = {"to": str(permission), "method": request.method, "route": path, "foreign": foreign}
    async with store.write() as session:
        record_event(session, Action.REQUEST_REFUSED, who=principal.name, subject=subject, detail=detail)


def public() -> None:
    """The dependency of the few routes that answer strangers."""


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


def forbidden_to(permission: Permission) -> Problem:
    """What somebody reads whose role is too low."""
    return Problem(
        status=403,
        title="Refused",
        what=f"Your role does not let you {permission}.",
        expected=f"the role {ROLES[permission]} or a higher one",
        remedy="Ask whoever keeps access.roles in the configuration.",
    )
