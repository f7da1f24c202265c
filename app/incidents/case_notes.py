"""Notes on an incident, with everything they ever said, and links between incidents of one key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.incidents import case_repository as case_db
from app.incidents import repository as db
from app.incidents.audit import Action, record_event
from app.incidents.case_models import IncidentLink, LinkKind, Note, NoteVersion
from app.incidents.errors import IncidentError, Outdated, found
from app.incidents.inputs import InputRefused
from app.incidents.models import Incident
from app.incidents.roles import EVERYWHERE, Scopes
from app.incidents.store import ReadSession, WriteSession

NOTE_LENGTH: Final = 20_000


@dataclass(frozen=True, slots=True)
class Linked:
    """Another incident as one sees it from here; `words` say what it is to this one, None where none did."""

    incident: Incident
    words: str | None
    link: IncidentLink | None


_FORWARD: Final = {
    LinkKind.RELATED: "related", LinkKind.DUPLICATE: "this duplicates it", LinkKind.FOLLOWS: "this follows from it",
}  # fmt: skip
_BACKWARD: Final = {
    LinkKind.RELATED: "related", LinkKind.DUPLICATE: "a duplicate of this", LinkKind.FOLLOWS: "follows from this",
}  # fmt: skip


# Notes ---------------------------------------------------------------------------------------------------------------


async def notes_of(session: ReadSession, incident: Incident) -> Sequence[Note]:
    """List an incident's notes in the order in which they were written, as they read now."""
    return await case_db.notes_of(session, incident.id)


async def get_note(session: ReadSession, incident: Incident, number: int) -> Note:
    """Load one note by its number. Raises `NotFound`."""
    return found(await case_db.note(session, incident.id, number), "note", number)


async def versions_of(session: ReadSession, note: Note) -> Sequence[NoteVersion]:
    """List everything that a note ever said, oldest first; the last one is how it reads now."""
    return await case_db.versions_of(session, note.id)


async def add_note(session: WriteSession, incident: Incident, text: str, *, who: str) -> Note:
    """Write a note. Raises `InputRefused` for one that is empty or too long, `NotFound`."""
    words = _words(text)
    found(await db.incident(session, incident.id, lock=True), "incident", incident.id)
    number = await case_db.next_number(session, incident.id)
    note = Note(incident_id=incident.id, number=number, version=1, text=words, created_by=who)
    session.add(note)
    await session.flush()
    session.add(NoteVersion(note_id=note.id, version=1, at=note.created_at, who=who, text=words))
    await case_db.touch(session, incident.id)
    record_event(session, Action.NOTE_ADDED, who=who, subject=incident.id, detail={"note": number})
    await session.flush()
    return note


async def edit_note(
    session: WriteSession, incident: Incident, number: int, text: str, *, version: int, who: str
) -> Note:
    """Let a note say something else; what it said stays in its history.

    Raises `Outdated` when the note is no longer at `version`, `InputRefused`, `NotFound`.
    """
    words = _words(text)
    found(await db.incident(session, incident.id, lock=True), "incident", incident.id)
    note = found(await case_db.note(session, incident.id, number), "note", number)
    if note.version != version:
        told = f"{note.edited_by or note.created_by} edited note {number} meanwhile"
        raise Outdated(f"{told}. Nothing of yours was saved", note.version)
    if note.text == words:
        return note
    kept = NoteVersion(note_id=note.id, version=version + 1, who=who, text=words)
    session.add(kept)
    await session.flush()
    note.text, note.version, note.edited_at, note.edited_by = words, version + 1, kept.at, who
    await case_db.touch(session, incident.id)
    detail = {"note": number, "version": note.version}
    record_event(session, Action.NOTE_EDITED, who=who, subject=incident.id, detail=detail)
    await session.flush()
    return note


def _words(text: str) -> str:
    words = text.replace("\r\n", "\n").strip()
    if not words or len(words) > NOTE_LENGTH:
        problem = "the note is empty" if not words else f"the note has {len(words)} characters"
        raise InputRefused("text", problem, f"1 to {NOTE_LENGTH} characters of Markdown", "Write it, or leave it.")
    return words


# Links ---------------------------------------------------------------------------------------------------------------


async def incidents_on_key(
    session: ReadSession, incident: Incident, limit: int = 50, scopes: Scopes = EVERYWHERE
) -> Sequence[Linked]:
    """List the other incidents of the same key that are of some scopes, linked ones first, then the newest."""
    if incident.entity_key is None:
        return ()
    others = await case_db.on_key(session, incident, limit, scopes)
    links = {one.other_id: (one, _FORWARD) for one in await case_db.links_from(session, incident.id)}
    links |= {one.incident_id: (one, _BACKWARD) for one in await case_db.links_to(session, incident.id)}
    listed = []
    for other in others:
        link, words = links.get(other.id, (None, _FORWARD))
        listed.append(Linked(other, None if link is None else words[LinkKind(link.kind)], link))
    return sorted(listed, key=lambda one: one.link is None)


async def link_incidents(session: WriteSession, incident: Incident, other_id: str, kind: str, *, who: str) -> None:
    """Link an incident to another of its key; of two there is one link, and the newest word about it holds.

    Raises `NotFound`, `InputRefused` for a kind that there is none of, `IncidentError` for another key.
    """
    if kind not in set(LinkKind):
        raise InputRefused("kind", f"{kind!r} is no kind of link", f"one of {', '.join(LinkKind)}", "Choose one.")
    other = found(await db.incident(session, other_id), "incident", other_id)
    if other.id == incident.id:
        raise IncidentError("an incident cannot be linked to itself; name another one of its key")
    if incident.entity_key is None or other.entity_key != incident.entity_key:
        raise IncidentError("only incidents of one key are linked, and these two are of different keys")
    await case_db.drop_link(session, incident.id, other.id)
    session.add(IncidentLink(incident_id=incident.id, other_id=other.id, kind=kind, created_by=who))
    await _linked(session, Action.INCIDENTS_LINKED, incident.id, other.id, who, {"kind": kind})


async def unlink_incidents(session: WriteSession, incident: Incident, other_id: str, *, who: str) -> None:
    """Take a link away, whichever of the two it was made from. Raises `NotFound`."""
    found(await case_db.drop_link(session, incident.id, other_id) or None, "link to incident", other_id)
    await _linked(session, Action.INCIDENTS_UNLINKED, incident.id, other_id, who, {})


async def _linked(
    session: WriteSession, action: Action, one: str, other: str, who: str, detail: dict[str, str]
) -> None:
    for ident in sorted((one, other)):
        await case_db.touch(session, ident)
    record_event(session, action, who=who, subject=one, detail={"other": other, **detail})
    await session.flush()


__all__ = [
    "NOTE_LENGTH", "Linked", "add_note", "edit_note", "get_note", "incidents_on_key", "link_incidents",
    "notes_of", "unlink_incidents", "versions_of",
]  # fmt: skip
