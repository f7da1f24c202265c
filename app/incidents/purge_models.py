"""The table of tombstones: what was removed for good, by whom and why, without any of it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Identity, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.incidents.columns import EpochMs, Json, PlainText
from app.incidents.models import NOW, Base


class Tombstone(Base):
    """One incident, or everything of one key, that is gone.

    `subject` is the incident's id, or `key`; `key_sha256` the digest of the key that was erased. `detail` counts what
    went, by kind, and lists the sha256 of every file of evidence.
    """

    __tablename__ = "tombstones"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    who: Mapped[str] = mapped_column(PlainText)
    what: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text, index=True)
    reason: Mapped[str] = mapped_column(PlainText)
    key_sha256: Mapped[str | None] = mapped_column(Text)
    detail: Mapped[dict[str, Any]] = mapped_column(Json)

    __table_args__ = (
        CheckConstraint("what IN ('purged', 'erased')", name="what"),
        CheckConstraint("length(key_sha256) = 64", name="key"),
    )
