"""The tables of shares and of the audit trail's chain; imported wherever the whole schema is looked at."""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, LargeBinary, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from app.incidents.columns import EpochMs, PlainText
from app.incidents.models import NOW, Base, new_id

KEY_BYTES: Final = 32


def _share_id() -> str:
    return new_id("shr")


class Share(Base):
    """A link that shows one incident, or one run of it, to whoever holds it, until it expires or is revoked.

    Of the token only `token_sha256` is kept. `digest_key` makes the digests that stand for hidden values, so that they
    mean nothing in another share. `reveal` names what the owner opened (`redaction.Reveal`). `run_id` is None where the
    whole incident is shared.
    """

    __tablename__ = "shares"

    id: Mapped[str] = mapped_column(Text, primary_key=True, default=_share_id)
    token_sha256: Mapped[str] = mapped_column(Text, unique=True)
    digest_key: Mapped[bytes] = mapped_column(LargeBinary, default=lambda: secrets.token_bytes(KEY_BYTES))
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"), index=True)
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id"))
    reveal: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    created_by: Mapped[str] = mapped_column(PlainText)
    expires_at: Mapped[int] = mapped_column(EpochMs)
    revoked_at: Mapped[int | None] = mapped_column(EpochMs)
    revoked_by: Mapped[str | None] = mapped_column(PlainText)
    accesses: Mapped[int] = mapped_column(Integer, default=0, server_default=text("0"))
    last_access_at: Mapped[int | None] = mapped_column(EpochMs)

    def state(self, now_ms: int) -> str:
        """`live`, `expired` or `revoked`; the last millisecond of a share is the one before `expires_at`."""
        if self.revoked_at is not None:
            return "revoked"
        return "live" if now_ms < self.expires_at else "expired"

    __table_args__ = (
        CheckConstraint("length(token_sha256) = 64", name="token"),
        CheckConstraint("length(digest_key) = 32", name="digest_key"),
        CheckConstraint("expires_at > created_at", name="expiry"),
        Index(None, "created_at", "id"),
    )


class AuditLink(Base):
    """One link of the chain over the audit trail; only a trigger of the database adds them, one per event, at commit.

    `hash` is the sha256 (lowercase hex) of the link before and of the event, as `audit_chain` spells them.
    """

    __tablename__ = "audit_links"

    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    event_id: Mapped[int] = mapped_column(BigInteger, unique=True)
    hash: Mapped[str] = mapped_column(Text)
