"""The SQL of cases: notes, changes, links, and lists of incidents by what people say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import and_, delete, func, or_, select, update

from app.incidents import repository as db
from app.incidents.case_models import CaseChange, IncidentLink, Note, NoteVersion
from app.incidents.models import NOW, Incident
from app.incidents.roles import Scopes
from app.incidents.store import ReadSession, WriteSession


async def change(session: WriteSession, incident_id: str, values: Mapping[str, Any]) -> None:
    """Write columns of a case; its revision rises, and pages that follow the incident hear of it."""
    moved = {"revision": Incident.revision + 1, "version": Incident.version + 1, "changed_at": NOW}
    statement = update(Incident).where(Incident.id == incident_id).values({**values, **moved})
    await session.execute(statement.execution_options(synchronize_session=False))


async def touch(session: WriteSession, incident_id: str) -> None:
    """Say that something around a case changed, but nothing that its form holds."""
    values = {"version": Incident.version + 1, "changed_at": NOW}
    statement = update(Incident).where(Incident.id == incident_id).values(values)
    await session.execute(statement.execution_options(synchronize_session=False))


async def changes_of(session: ReadSession, incident_id: str, after: int) -> Sequence[CaseChange]:
    query = select(CaseChange).where(CaseChange.incident_id == incident_id, CaseChange.revision > after)
    return (await session.scalars(query.order_by(CaseChange.id))).all()


async def notes_of(session: ReadSession, incident_id: str) -> Sequence[Note]:
    return (await session.scalars(select(Note).where(Note.incident_id == incident_id).order_by(Note.number))).all()


async def note(session: ReadSession, incident_id: str, number: int) -> Note | None:
    query = select(Note).where(Note.incident_id == incident_id, Note.number == number)
    return (await session.scalars(query)).one_or_none()


async def versions_of(session: ReadSession, note_id: int) -> Sequence[NoteVersion]:
    query = select(NoteVersion).where(NoteVersion.note_id == note_id).order_by(NoteVersion.version)
    return (await session.scalars(query)).all()


async def next_number(session: ReadSession, incident_id: str) -> int:
    """The number of the incident's next note; correct while the incident is locked."""
    query = select(func.coalesce(func.max(Note.number), 0) + 1).where(Note.incident_id == incident_id)
    return (await session.scalars(query)).one()


async def on_key(session: ReadSession, incident: Incident, limit: int, scopes: Scopes) -> Sequence[Incident]:
    """List the other incidents of an incident's key that are of some scopes, newest first."""
    query = select(Incident).where(
        Incident.entity_key == incident.entity_key, Incident.id != incident.id, db.within(scopes)
    )
    return (await session.scalars(query.order_by(Incident.created_at.desc(), Incident.id).limit(limit))).all()


async def links_from(session: ReadSession, incident_id: str) -> Sequence[IncidentLink]:
    return (await session.scalars(select(IncidentLink).where(IncidentLink.incident_id == incident_id))).all()


async def links_to(session: ReadSession, incident_id: str) -> Sequence[IncidentLink]:
    return (await session.scalars(select(IncidentLink).where(IncidentLink.other_id == incident_id))).all()


async def drop_link(session: WriteSession, one: str, other: str) -> bool:
    """Delete the link between two incidents, whichever way it points; False when there was none."""
    link = IncidentLink
    between = or_(
        and_(link.incident_id == one, link.other_id == other), and_(link.incident_id == other, link.other_id == one)
    )
    gone = await session.execute(delete(link).where(between).returning(link.incident_id))
    return gone.first() is not None
