"""Who did what, when, to what: one function adds to the trail, so that every entry has the same form."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Final

from app.incidents.models import AuditEvent
from app.incidents.store import WriteSession

# Where the request at hand comes from (its network address); whoever answers requests sets it for each of them.
ORIGIN: Final[ContextVar[str | None]] = ContextVar("hindcast_origin", default=None)


class Action(StrEnum):
    """What can be done, in the past tense, subject first."""

    INCIDENT_IMPORTED = "incident.imported"
    INCIDENT_EXPORTED = "incident.exported"
    INCIDENT_OPENED = "incident.opened"
    CASE_CHANGED = "case.changed"
    NOTE_ADDED = "note.added"
    NOTE_EDITED = "note.edited"
    INCIDENT_PURGED = "incident.purged"
    KEY_ERASED = "key.erased"
    INCIDENTS_LINKED = "incidents.linked"
    INCIDENTS_UNLINKED = "incidents.unlinked"
    LOG_IMPORTED = "event_log.imported"
    LOG_PURGED = "event_log.purged"
    STATE_REQUESTED = "state.requested"
    STATE_REQUESTED_AGAIN = "state.requested_again"
    SEARCH_REQUESTED = "search.requested"
    SEARCH_CANCELLED = "search.cancelled"
    EVIDENCE_READ = "evidence.read"
    RUN_READ = "run.read"
    RUN_REQUESTED = "run.requested"
    RUN_RETRIED = "run.retried"
    RUN_CANCELLED = "run.cancelled"
    SHARE_CREATED = "share.created"
    SHARE_OPENED = "share.opened"
    SHARE_REVOKED = "share.revoked"
    SESSION_OPENED = "session.opened"
    SESSION_REFUSED = "session.refused"
    SESSION_ENDED = "session.ended"
    TOKEN_CREATED = "token.created"  # noqa: S105  an action's name
    TOKEN_REVOKED = "token.revoked"  # noqa: S105
    REQUEST_REFUSED = "request.refused"
    AUDIT_READ = "audit.read"


def record_event(
    session: WriteSession, action: Action, *, who: str, subject: str, detail: Mapping[str, Any] | None = None
) -> None:
    """Add an entry in the caller's unit of work: it is kept exactly when what it tells of is."""
    session.add(AuditEvent(who=who, what=str(action), subject=subject, origin=ORIGIN.get(), detail=dict(detail or {})))
