"""The tables of an incident as a case: notes with their history, what was changed about it, links between incidents."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index, Integer, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from app.incidents.columns import EpochMs, PlainText
from app.incidents.models import NOW, Base


class CaseStatus(StrEnum):
    """How far people are with an incident; only one that is closed may ever be purged."""

    OPEN = "open"
    CONTAINED = "contained"  # it does no more harm, and nobody knows yet why it did
    EXPLAINED = "explained"
    CLOSED = "closed"


class Severity(StrEnum):
    """How bad it is, worst first; an incident that nobody has judged has none."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class LinkKind(StrEnum):
    """What one incident is to another of the same key, read from the first to the second."""

    RELATED = "related"
    DUPLICATE = "duplicate"
    FOLLOWS = "follows"


class Note(Base):
    """What a person wrote on an incident, as it reads now; `version` counts its edits from 1."""

    __tablename__ = "notes"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"))
    number: Mapped[int] = mapped_column(Integer)
    version: Mapped[int] = mapped_column(Integer, default=1)
    text: Mapped[str] = mapped_column(PlainText)
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    created_by: Mapped[str] = mapped_column(PlainText)
    edited_at: Mapped[int | None] = mapped_column(EpochMs)
    edited_by: Mapped[str | None] = mapped_column(PlainText)

    __table_args__ = (UniqueConstraint("incident_id", "number"),)


class NoteVersion(Base):
    """A note as it once read; rows are only ever added."""

    __tablename__ = "note_versions"

    note_id: Mapped[int] = mapped_column(ForeignKey("notes.id"), primary_key=True, autoincrement=False)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    who: Mapped[str] = mapped_column(PlainText)
    text: Mapped[str] = mapped_column(PlainText)


class CaseChange(Base):
    """One thing that somebody changed about a case: `field` from `old` to `new`, both as people read them.

    The audit trail says that it happened; the words themselves stand here, so that they can be erased.
    """

    __tablename__ = "case_changes"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"))
    revision: Mapped[int] = mapped_column(Integer)
    at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    who: Mapped[str] = mapped_column(PlainText)
    field: Mapped[str] = mapped_column(Text)
    old: Mapped[str | None] = mapped_column(PlainText)
    new: Mapped[str | None] = mapped_column(PlainText)

    __table_args__ = (Index(None, "incident_id", "revision"),)


class IncidentLink(Base):
    """A link from one incident to another of the same key; at most one between two."""

    __tablename__ = "incident_links"

    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"), primary_key=True)
    other_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"), primary_key=True, index=True)
    kind: Mapped[str] = mapped_column(Text)
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    created_by: Mapped[str] = mapped_column(PlainText)

    __table_args__ = (
        CheckConstraint("kind IN ('related', 'duplicate', 'follows')", name="kind"),
        CheckConstraint("incident_id <> other_id", name="other"),
        Index(
            "uq_incident_links_pair",
            text("least(incident_id, other_id)"),
            text("greatest(incident_id, other_id)"),
            unique=True,
        ),
    )
