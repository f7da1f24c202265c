"""Reads the audit trail for people: newest first, by filter, and only what is about incidents that they answer for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, or_, select

from app.incidents import repository as db
from app.incidents.live_models import Export, Gathering
from app.incidents.models import AuditEvent, Incident, Run
from app.incidents.roles import EVERYWHERE, Scopes
from app.incidents.share_models import Share
from app.incidents.store import ReadSession

PAGE: Final = 80  # rows of about 14 elements each: a page stays below 1,500


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries to list; what is empty does not matter. Times are epoch milliseconds, `until_ms` is not included.

    `who` and `subject` are parts of what stands there, `what` an action or the first word of several (`share`).
    """

    who: str = ""
    what: str = ""
    subject: str = ""
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """One page, newest first; `next` is the `before` of the following page, None on the last one."""

    entries: Sequence[AuditEvent]
    next: int | None


async def read_trail(
    session: ReadSession,
    chosen: AuditFilter,
    *,
    scopes: Scopes = EVERYWHERE,
    before: int | None = None,
    limit: int = PAGE,
) -> AuditPage:
    """Read entries that pass a filter. Whoever answers for some scopes only sees what is about their incidents."""
    query = select(AuditEvent).order_by(AuditEvent.id.desc()).limit(limit + 1)
    if before is not None:
        query = query.where(AuditEvent.id < before)
    rows = list(await session.scalars(query.where(*_conditions(chosen), *_about(scopes))))
    return AuditPage(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)


def _conditions(chosen: AuditFilter) -> list[ColumnElement[bool]]:
    made: list[ColumnElement[bool]] = []
    if chosen.who:
        made.append(AuditEvent.who.icontains(chosen.who, autoescape=True))
    if chosen.what:
        made.append(or_(AuditEvent.what == chosen.what, AuditEvent.what.startswith(f"{chosen.what}.", autoescape=True)))
    if chosen.subject:
        made.append(AuditEvent.subject.contains(chosen.subject, autoescape=True))
    if chosen.since_ms is not None:
        made.append(AuditEvent.at >= chosen.since_ms)
    if chosen.until_ms is not None:
        made.append(AuditEvent.at < chosen.until_ms)
    return made


def _about(scopes: Scopes) -> list[ColumnElement[bool]]:
    """That an entry's subject is an incident of these scopes, or something that belongs to one."""
    if scopes.everything:
        return []
    incidents = select(Incident.id).where(db.within(scopes))
    parts: list[Select[Any]] = [incidents]
    parts += [select(table.id).where(table.incident_id.in_(incidents)) for table in (Run, Share, Export, Gathering)]
    return [or_(*(AuditEvent.subject.in_(part) for part in parts))]
