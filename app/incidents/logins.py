"""People's sessions, and the key of the installation. Functions take the caller's session and never commit.

A session's token has 256 random bits, of which only the sha256 is kept: whoever reads the table cannot become anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert

from app.incidents import repository as db
from app.incidents.access_models import ConsoleKey, Session
from app.incidents.audit import Action, record_event
from app.incidents.store import ReadSession, WriteSession

TOKEN_BYTES: Final = 32
KEY_BYTES: Final = 32


async def console_key(session: WriteSession) -> bytes:
    """The one key of this installation, the same for all its processes; made when the first of them asks."""
    fresh = {"id": 1, "key": secrets.token_bytes(KEY_BYTES)}
    await session.execute(insert(ConsoleKey).values(fresh).on_conflict_do_nothing())
    return (await session.scalars(select(ConsoleKey.key).where(ConsoleKey.id == 1))).one()


async def open_session(
    session: WriteSession,
    *,
    person: str,
    shown_as: str,
    groups: Sequence[str],
    lives_s: float,
    id_token: str | None = None,
    replaces: str | None = None,
    now_ms: int | None = None,
) -> tuple[Session, str]:
    """Begin a session; returns it and its token. `replaces` is the token of one that ends with it."""
    now = await db.now(session) if now_ms is None else now_ms
    await session.execute(delete(Session).where(Session.expires_at <= now))
    if replaces is not None:
        await session.execute(delete(Session).where(Session.token_sha256 == hashed(replaces)))
    token = secrets.token_urlsafe(TOKEN_BYTES)
    made = Session(
        token_sha256=hashed(token),
        person=person,
        shown_as=shown_as,
        groups=list(groups),
        id_token=id_token,
        created_at=now,
        expires_at=now + round(lives_s * 1000),
    )
    session.add(made)
    await session.flush()
    detail = {"shown_as": shown_as, "groups": list(groups)}
    record_event(session, Action.SESSION_OPENED, who=person, subject=made.id, detail=detail)
    return made, token


async def find_session(session: ReadSession, token: str) -> Session | None:
    """Find a session that lives, by the database's clock."""
    offered = hashed(token)
    query = select(Session).where(Session.token_sha256 == offered, Session.expires_at > func.clock_timestamp())
    found = (await session.scalars(query)).one_or_none()
    return found if found is not None and hmac.compare_digest(found.token_sha256, offered) else None


async def end_session(session: WriteSession, token: str) -> Session | None:
    """End a session at once; returns it, None where there was none."""
    query = delete(Session).where(Session.token_sha256 == hashed(token)).returning(Session)
    ended = (await session.scalars(query)).one_or_none()
    if ended is not None:
        record_event(session, Action.SESSION_ENDED, who=ended.person, subject=ended.id)
    return ended


def hashed(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
