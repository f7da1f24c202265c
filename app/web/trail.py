"""The page of the audit trail: who did what, when, to what, from where and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from app.incidents import audit_chain
from app.incidents.audit import Action, record_event
from app.incidents.audit_trail import AuditFilter, read_trail
from app.incidents.models import AuditEvent
from app.web.access import Permission, Requires
from app.web.identity import Recent
from app.web.loading import pages_of, principal_of, scopes_of, store_of

router = APIRouter(include_in_schema=False)

AUDIT = Depends(Requires(Permission.AUDIT))
ACTIONS: Final = tuple(str(action) for action in Action)
_MOST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Line:
    """An entry as the page shows it; `incident` is the page that its subject has."""

    id: int
    at: int
    who: str
    what: str
    subject: str
    incident: str | None
    origin: str | None
    reason: str | None
    detail: str

    @classmethod
    def of(cls, event: AuditEvent) -> Line:
        told = dict(event.detail)
        reason = told.pop("reason", None)
        about = event.subject if event.subject.startswith("inc_") else told.get("incident")
        return cls(
            event.id,
            event.at,
            event.who,
            event.what,
            event.subject,
            str(about) if about else None,
            event.origin,
            None if reason is None else str(reason),
            json.dumps(told, ensure_ascii=False) if told else "",
        )


@router.get("/audit", dependencies=[AUDIT])
async def trail(request: Request, before: Annotated[int | None, Query(ge=1, le=_MOST)] = None) -> Response:
    """The trail, newest first; the query of the address is the filter."""
    chosen, problems = _filter(request.query_params)
    scopes = scopes_of(request, Permission.AUDIT)
    views: Recent = request.app.state.run_views
    who = principal_of(request).name
    with views.news("audit", who) as news:
        if news:
            async with store_of(request).write() as session:
                record_event(session, Action.AUDIT_READ, who=who, subject="audit trail")
    async with store_of(request).read() as session:
        page = await read_trail(session, chosen, scopes=scopes, before=before)
        head = await audit_chain.head(session)
    return pages_of(request).page(
        "audit.html",
        request,
        lines=[Line.of(event) for event in page.entries],
        next=page.next,
        paged=before is not None,
        head=head,
        whole=scopes.everything,
        actions=ACTIONS,
        problems=problems,
        query=request.query_params,
        filtered=any(request.query_params.get(name) for name in ("who", "what", "subject", "since", "until")),
    )


def _filter(query: Mapping[str, str]) -> tuple[AuditFilter, dict[str, str]]:
    problems: dict[str, str] = {}

    def moment(name: str) -> int | None:
        text = query.get(name, "").strip()
        try:
            told = datetime.fromisoformat(text) if text else None
        except ValueError:
            problems[name] = f"{text!r} is no time: write 2026-05-01T12:00Z, or 2026-05-01 12:00 for UTC."
            return None
        if told is None:
            return None
        return round((told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp() * 1000)

    def word(name: str) -> str:
        return query.get(name, "").strip().replace("\0", "")

    return AuditFilter(word("who"), word("what"), word("subject"), moment("since"), moment("until")), problems
