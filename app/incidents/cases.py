"""An incident as a case: what people say of it, changed only from the state that they have seen.

Each change names the revision that its author had before them. Where that is no longer the present one, nothing is
written and `Outdated` says who was faster with what. Words stand in tables that can be erased; the audit trail keeps
that they were changed, by whom, and the values of closed lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.incidents import case_repository as case_db
from app.incidents import repository as db
from app.incidents.audit import Action, record_event
from app.incidents.case_models import CaseChange, CaseStatus, Severity
from app.incidents.errors import Outdated, found
from app.incidents.inputs import InputRefused
from app.incidents.models import NOW, Incident
from app.incidents.store import ReadSession, WriteSession

TITLE_LENGTH: Final = 200
OWNER_LENGTH: Final = 80
MOST_TAGS: Final = 20
_TAG: Final = re.compile(r"[\w][\w.:/-]{0,39}")


@dataclass(frozen=True, slots=True)
class Case:
    """What people say of an incident, and what a form or a script may change of it."""

    title: str
    status: str
    severity: str | None
    owner: str | None
    tags: tuple[str, ...]
    pinned: bool

    @classmethod
    def of(cls, incident: Incident) -> Case:
        return cls(
            incident.title, incident.status, incident.severity, incident.owner, tuple(incident.tags), incident.pinned
        )


FIELDS: Final = ("title", "status", "severity", "owner", "tags", "pinned")
# Their values come from closed lists, so that the audit trail may keep them.
_PLAIN: Final = frozenset({"status", "severity", "pinned"})


def checked(case: Case, changes: Mapping[str, Any]) -> Case:
    """Apply changes to a case, each in the form in which it is kept. Raises `InputRefused` naming the field."""
    for name in changes:
        if name not in FIELDS:
            raise InputRefused(name, f"{name!r} is no part of a case", ", ".join(FIELDS), "Leave it out.")
    told: dict[str, Any] = {name: _CHECKS[name](value) for name, value in changes.items()}
    return replace(case, **told)


async def change_case(
    session: WriteSession, incident: Incident, changes: Mapping[str, Any], *, revision: int, who: str
) -> Incident:
    """Change what is named in `changes`; what already reads so is left alone, and nobody is told of it.

    Raises `Outdated` when the case is no longer at `revision`, `InputRefused`, `NotFound`.
    """
    now = found(await db.incident(session, incident.id, lock=True), "incident", incident.id)
    if now.revision != revision:
        raise Outdated(await _told(session, now, revision), now.revision)
    before = Case.of(now)
    after = checked(before, changes)
    changed = [name for name in FIELDS if getattr(before, name) != getattr(after, name)]
    if not changed:
        return now
    values = {name: getattr(after, name) for name in changed}
    if "tags" in values:
        values["tags"] = list(values["tags"])
    if "status" in values:
        values["closed_at"] = NOW if after.status == CaseStatus.CLOSED else None
    await case_db.change(session, incident.id, values)
    for name in changed:
        old, new = shown(getattr(before, name)), shown(getattr(after, name))
        session.add(CaseChange(incident_id=incident.id, revision=revision + 1, who=who, field=name, old=old, new=new))
    detail = {name: [getattr(before, name), getattr(after, name)] if name in _PLAIN else "changed" for name in changed}
    record_event(session, Action.CASE_CHANGED, who=who, subject=incident.id, detail=detail)
    await session.flush()
    await session.refresh(now)
    return now


async def changes_of(session: ReadSession, incident: Incident, *, after: int = 0) -> Sequence[CaseChange]:
    """List what was changed of a case since a revision, oldest first."""
    return await case_db.changes_of(session, incident.id, after)


async def _told(session: ReadSession, now: Incident, revision: int) -> str:
    """Say who changed what since the revision that somebody saw."""
    if revision > now.revision:
        return f"the case is at revision {now.revision}, and was never at {revision}; load it again"
    changes = await case_db.changes_of(session, now.id, revision)
    what = "; ".join(f"{one.who} set {one.field} to {one.new or 'nothing'}" for one in changes[-6:])
    return f"somebody else changed this case meanwhile: {what}. Nothing of yours was saved"


def shown(value: object) -> str | None:
    """A value of a case in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value) or None
    return None if value is None else str(value)


# What each field may hold --------------------------------------------------------------------------------------------


def _title(value: object) -> str:
    text = " ".join(str(value or "").split())
    if not text or len(text) > TITLE_LENGTH:
        problem = "the title is empty" if not text else f"the title has {len(text)} characters"
        raise InputRefused("title", problem, f"1 to {TITLE_LENGTH} characters", "Say in a few words what happened.")
    return text


def _status(value: object) -> str:
    if value not in set(CaseStatus):
        raise InputRefused("status", f"{value!r} is no status", f"one of {', '.join(CaseStatus)}", "Choose one.")
    return str(value)


def _severity(value: object) -> str | None:
    if value in (None, ""):
        return None
    if value not in set(Severity):
        raise InputRefused(
            "severity", f"{value!r} is no severity", f"one of {', '.join(Severity)}, or none", "Choose one."
        )
    return str(value)


def _owner(value: object) -> str | None:
    text = " ".join(str(value or "").split())
    if len(text) > OWNER_LENGTH:
        raise InputRefused(
            "owner", f"the owner has {len(text)} characters", f"at most {OWNER_LENGTH}", "Name one person or one team."
        )
    return text or None


def _tags(value: object) -> tuple[str, ...]:
    words = value.replace(",", " ").split() if isinstance(value, str) else list(value or ())  # type: ignore[call-overload]
    tags = tuple(dict.fromkeys(str(word).strip().lower() for word in words))
    for tag in tags:
        if not _TAG.fullmatch(tag):
            expected = "letters, digits and . : / - _, at most 40 of them, beginning with a letter or digit"
            raise InputRefused("tags", f"{tag!r} is no tag", expected, "Write words with blanks between them.")
    if len(tags) > MOST_TAGS:
        raise InputRefused("tags", f"{len(tags)} tags are too many", f"at most {MOST_TAGS}", "Leave some out.")
    return tags


def _pinned(value: object) -> bool:
    return bool(value)


_CHECKS: Final = {
    "title": _title, "status": _status, "severity": _severity, "owner": _owner, "tags": _tags, "pinned": _pinned,
}  # fmt: skip
