"""Who did what, when, to what: one function adds to the trail, so that every entry has the same form."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from app.incidents.models import AuditEvent
from app.incidents.store import WriteSession


class Action(StrEnum):
    """What can be done, in the past tense, subject first."""

    INCIDENT_IMPORTED = "incident.imported"
    INCIDENT_EXPORTED = "incident.exported"
    EVIDENCE_READ = "evidence.read"
    RUN_REQUESTED = "run.requested"
    RUN_RETRIED = "run.retried"
    RUN_CANCELLED = "run.cancelled"


def record_event(
    session: WriteSession, action: Action, *, who: str, subject: str, detail: Mapping[str, Any] | None = None
) -> None:
    """Add an entry in the caller's unit of work: it is kept exactly when what it tells of is."""
    session.add(AuditEvent(who=who, what=str(action), subject=subject, detail=dict(detail or {})))
