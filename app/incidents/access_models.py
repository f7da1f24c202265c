"""The tables of who may come in; imported wherever the whole schema is looked at."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, LargeBinary, SmallInteger, Text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from app.incidents.columns import EpochMs, PlainText
from app.incidents.models import NOW, Base, new_id


def _session_id() -> str:
    return new_id("ses")


def _token_id() -> str:
    return new_id("tok")


class ConsoleKey(Base):
    """The one key of this installation: signs cookies, and makes the digests that viewers see. Never leaves it."""

    __tablename__ = "console_keys"

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    key: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)

    __table_args__ = (CheckConstraint("id = 1 AND length(key) = 32", name="only"),)


class Session(Base):
    """Somebody who logged in, until they leave or the time is over; of the cookie only the sha256 is kept.

    `person` is who it is to rules and the audit trail, `shown_as` what pages call them. `id_token` is kept for the
    provider's own log-out, and goes with the row.
    """

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(Text, primary_key=True, default=_session_id)
    token_sha256: Mapped[str] = mapped_column(Text, unique=True)
    person: Mapped[str] = mapped_column(PlainText)
    shown_as: Mapped[str] = mapped_column(PlainText)
    groups: Mapped[list[str]] = mapped_column(ARRAY(PlainText))
    id_token: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    expires_at: Mapped[int] = mapped_column(EpochMs, index=True)

    __table_args__ = (CheckConstraint("length(token_sha256) = 64", name="token"),)


class ApiToken(Base):
    """A script's way in: one role, in some scopes, until it expires or is revoked; only its sha256 is kept."""

    __tablename__ = "api_tokens"

    id: Mapped[str] = mapped_column(Text, primary_key=True, default=_token_id)
    token_sha256: Mapped[str] = mapped_column(Text, unique=True)
    name: Mapped[str] = mapped_column(PlainText)
    role: Mapped[str] = mapped_column(Text)
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    created_by: Mapped[str] = mapped_column(PlainText)
    expires_at: Mapped[int] = mapped_column(EpochMs)
    revoked_at: Mapped[int | None] = mapped_column(EpochMs)
    revoked_by: Mapped[str | None] = mapped_column(PlainText)
    last_used_at: Mapped[int | None] = mapped_column(EpochMs)

    def state(self, now_ms: int) -> str:
        """`live`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "live" if now_ms < self.expires_at else "expired"

    __table_args__ = (
        CheckConstraint("length(token_sha256) = 64", name="token"),
        CheckConstraint("role IN ('viewer', 'responder', 'admin')", name="role"),
        CheckConstraint("cardinality(scopes) > 0", name="scopes"),
        CheckConstraint("expires_at > created_at", name="expiry"),
    )
