"""Tokens of scripts: one role in some scopes, shown once, dead when they expire or are revoked.

Of a token's 256 random bits only the sha256 is kept. Functions take the caller's session and never commit.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Final

from sqlalchemy import func, or_, select, update

from app.incidents import repository as db
from app.incidents.access_models import ApiToken
from app.incidents.audit import Action, record_event
from app.incidents.errors import IncidentError, found
from app.incidents.logins import TOKEN_BYTES, hashed
from app.incidents.roles import Grants, Role
from app.incidents.store import ReadSession, WriteSession

PREFIX: Final = "hct_"  # so that scanners of repositories know one when they see it
DEFAULT_DAYS: Final = 90
MOST_DAYS: Final = 366
LISTED: Final = 500
_DAY_MS: Final = 24 * 3600 * 1000
_USED_EVERY_MS: Final = 60_000  # how exact `last_used_at` is: not every request writes
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,80}")


async def create_token(
    session: WriteSession,
    *,
    name: str,
    role: Role,
    scopes: Sequence[str],
    who: str,
    days: int = DEFAULT_DAYS,
    now_ms: int | None = None,
) -> tuple[ApiToken, str]:
    """Make a token; returns its row and itself, which nobody can be told again. Raises `IncidentError`."""
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise IncidentError("a token needs a name of 1 to 80 characters, that says which script holds it")
    if not 1 <= days <= MOST_DAYS:
        raise IncidentError(f"a token lives from 1 to {MOST_DAYS} days, not {days}")
    if not scopes:
        raise IncidentError('a token needs at least one pipeline, or "*" for all')
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    now = await db.now(session) if now_ms is None else now_ms
    made = ApiToken(
        token_sha256=hashed(token),
        name=name,
        role=str(role),
        scopes=sorted(set(scopes)),
        created_at=now,
        created_by=who,
        expires_at=now + days * _DAY_MS,
    )
    session.add(made)
    await session.flush()
    detail = {"name": name, "role": made.role, "scopes": made.scopes, "expires_at_ms": made.expires_at}
    record_event(session, Action.TOKEN_CREATED, who=who, subject=made.id, detail=detail)
    return made, token


async def find_token(session: ReadSession, token: str) -> ApiToken | None:
    """Find a token that lives, by the database's clock."""
    if not token.startswith(PREFIX):
        return None
    offered = hashed(token)
    query = select(ApiToken).where(
        ApiToken.token_sha256 == offered,
        ApiToken.revoked_at.is_(None),
        ApiToken.expires_at > func.clock_timestamp(),
    )
    made = (await session.scalars(query)).one_or_none()
    return made if made is not None and hmac.compare_digest(made.token_sha256, offered) else None


def is_stale(token: ApiToken, now_ms: int) -> bool:
    """Whether a use now should be noted."""
    return token.last_used_at is None or token.last_used_at <= now_ms - _USED_EVERY_MS


async def note_use(session: WriteSession, token_id: str) -> None:
    """Note that a token was used, unless somebody just has."""
    now = await db.now(session)
    stale = or_(ApiToken.last_used_at.is_(None), ApiToken.last_used_at <= now - _USED_EVERY_MS)
    noted = update(ApiToken).where(ApiToken.id == token_id, stale).values(last_used_at=now)
    await session.execute(noted, execution_options={"synchronize_session": False})


async def list_tokens(session: ReadSession, grants: Grants | None = None) -> list[ApiToken]:
    """List tokens, newest first; `grants` leaves those that its holder could end (None: all)."""
    query = select(ApiToken).order_by(ApiToken.created_at.desc(), ApiToken.id).limit(LISTED)
    return [one for one in await session.scalars(query) if grants is None or grants.includes(Role.ADMIN, one.scopes)]


async def get_token(session: ReadSession, token_id: str) -> ApiToken:
    """Load one. Raises `NotFound`."""
    return found(
        (await session.scalars(select(ApiToken).where(ApiToken.id == token_id))).one_or_none(), "token", token_id
    )


async def revoke_token(session: WriteSession, token_id: str, *, who: str, now_ms: int | None = None) -> ApiToken:
    """End a token at once; ending it again changes nothing. Raises `NotFound`."""
    query = select(ApiToken).where(ApiToken.id == token_id).with_for_update()
    made = (await session.scalars(query, execution_options={"populate_existing": True})).one_or_none()
    token = found(made, "token", token_id)
    if token.revoked_at is None:
        token.revoked_at = await db.now(session) if now_ms is None else now_ms
        token.revoked_by = who
        await session.flush()
        record_event(session, Action.TOKEN_REVOKED, who=who, subject=token.id, detail={"name": token.name})
    return token
