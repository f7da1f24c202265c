"""What pages say of an incident as a case: its form, notes as they read and as they read once, links, filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from app.incidents import case_notes
from app.incidents.case_models import CaseStatus, LinkKind, Note, Severity
from app.incidents.case_notes import Linked
from app.incidents.cases import Case
from app.incidents.inputs import InputRefused
from app.incidents.roles import Scopes
from app.incidents.service import Incident, ReadSession
from app.web.markdown import markdown
from app.web.views import Status

CASE_STATUSES: Final[Mapping[str, Status]] = {
    CaseStatus.OPEN: Status("○", "open", "bad", "Somebody has to look at it."),
    CaseStatus.CONTAINED: Status("◐", "contained", "warn", "It does no more harm; nobody knows yet why it did."),
    CaseStatus.EXPLAINED: Status("◉", "explained", "live", "It is known why it happened."),
    CaseStatus.CLOSED: Status("●", "closed", "quiet", "Nothing is left to do."),
}
SEVERITIES: Final[Mapping[str, Status]] = {
    Severity.CRITICAL: Status("▲▲", "critical", "bad", "Money, safety or many customers, now."),
    Severity.HIGH: Status("▲", "high", "bad", "Customers feel it."),
    Severity.MEDIUM: Status("△", "medium", "warn", "It is wrong, and can wait for the morning."),
    Severity.LOW: Status("▽", "low", "quiet", "Good to know."),
}
LINK_WORDS: Final[Mapping[str, str]] = {
    LinkKind.RELATED: "related",
    LinkKind.DUPLICATE: "this duplicates it",
    LinkKind.FOLLOWS: "this follows from it",
}


@dataclass(frozen=True, slots=True)
class NoteView:
    """A note as HTML; `text` is what was typed, for its form."""

    number: int
    version: int
    html: Markup
    text: str
    created_at: int
    created_by: str
    edited_at: int | None
    edited_by: str | None

    @classmethod
    def of(cls, note: Note) -> NoteView:
        return cls(
            note.number, note.version, markdown(note.text), note.text, note.created_at, note.created_by,
            note.edited_at, note.edited_by,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a form of the case was refused. `field` is what it is about, `typed` what was in it; `now` is the version
    with which a second try would win."""

    field: str
    problem: str
    expected: str
    remedy: str
    typed: Mapping[str, Any]
    now: int | None = None

    @classmethod
    def of(cls, refused: InputRefused, typed: Mapping[str, Any]) -> Trouble:
        return cls(refused.field, refused.problem, refused.expected, refused.remedy, typed)


@dataclass(frozen=True, slots=True)
class CaseView:
    """Everything of the case that the incident's page draws; `form` is what its form holds."""

    status: Status
    severity: Status | None
    owner: str | None
    tags: Sequence[str]
    pinned: bool
    revision: int
    form: Mapping[str, Any]
    notes: Sequence[NoteView]
    on_key: Sequence[Linked]
    trouble: Trouble | None

    def troubled(self, *fields: str) -> bool:
        """Whether what was refused is about one of these fields."""
        return self.trouble is not None and self.trouble.field in fields


def status_of_case(status: str) -> Status:
    return CASE_STATUSES[CaseStatus(status)]


def severity_of(severity: str | None) -> Status | None:
    return None if severity is None else SEVERITIES[Severity(severity)]


async def case_view(session: ReadSession, incident: Incident, trouble: Trouble | None, scopes: Scopes) -> CaseView:
    """Read what belongs to the case; `trouble` brings back what somebody typed in vain.

    Other incidents of the key are told of as far as they are of `scopes`.
    """
    case = Case.of(incident)
    held: dict[str, Any] = {
        "title": case.title, "status": case.status, "severity": case.severity or "", "owner": case.owner or "",
        "tags": " ".join(case.tags), "pinned": case.pinned,
    }  # fmt: skip
    form_refused = trouble is not None and trouble.field not in ("text", "note", "kind")
    return CaseView(
        status=status_of_case(case.status),
        severity=severity_of(case.severity),
        owner=case.owner,
        tags=case.tags,
        pinned=case.pinned,
        revision=incident.revision,
        form={**held, **(trouble.typed if trouble is not None and form_refused else {})},
        notes=[NoteView.of(note) for note in await case_notes.notes_of(session, incident)],
        on_key=await case_notes.incidents_on_key(session, incident, scopes=scopes),
        trouble=trouble,
    )
