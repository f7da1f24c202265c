"""Links that show an incident to somebody without a token: shown once, dead when they expire or are revoked.

A link's token has 192 random bits, of which only the sha256 is kept. Whatever is wrong with a link, the answer is the
same `NotFound`, so that a dead link tells nothing. Functions take the caller's session and never commit.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from app.incidents import repository as db
from app.incidents import share_repository as share_db
from app.incidents.audit import Action, record_event
from app.incidents.errors import IncidentError, NotFound, found
from app.incidents.models import Incident, Run
from app.incidents.redaction import EVERYTHING, NO_RULES, Redactor, Reveal, Rules, chosen
from app.incidents.share_models import Share
from app.incidents.store import ReadSession, WriteSession

TOKEN_BYTES: Final = 24
DEFAULT_EXPIRY_S: Final = 7 * 24 * 3600
LONGEST_EXPIRY_S: Final = 365 * 24 * 3600
LISTED: Final = 200

_TOKEN: Final = re.compile(r"[\w-]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Listed:
    """A share in the list of all, with the incident's title and the number of its one run (None: the whole)."""

    share: Share
    title: str
    run: int | None
    state: str


@dataclass(frozen=True, slots=True)
class Opened:
    """What a live link shows: the incident, or of it one run alone."""

    share: Share
    incident: Incident
    run: Run | None

    def redactor(self, rules: Rules = NO_RULES) -> Redactor:
        """What hides everything that this share does not open."""
        return Redactor(self.share.digest_key, chosen(self.share.reveal), rules)


async def create_share(
    session: WriteSession,
    incident: Incident,
    *,
    who: str,
    run: Run | None = None,
    reveal: frozenset[Reveal] = frozenset(),
    expires_in_s: int = DEFAULT_EXPIRY_S,
    now_ms: int | None = None,
) -> tuple[Share, str]:
    """Make a link; returns it and its token, which nobody can be told again. Raises `IncidentError` for odd times."""
    if not 1 <= expires_in_s <= LONGEST_EXPIRY_S:
        raise IncidentError(f"a share lives from one second to {LONGEST_EXPIRY_S} seconds (a year), not {expires_in_s}")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    now = await _now(session, now_ms)
    share = Share(
        token_sha256=_hash(token),
        incident_id=incident.id,
        run_id=None if run is None else run.id,
        reveal=sorted(map(str, reveal)),
        created_at=now,
        created_by=who,
        expires_at=now + expires_in_s * 1000,
    )
    session.add(share)
    await session.flush()
    detail = {"incident": incident.id, "run": share.run_id, "reveal": share.reveal, "expires_at_ms": share.expires_at}
    record_event(session, Action.SHARE_CREATED, who=who, subject=share.id, detail=detail)
    return share, token


async def open_share(session: WriteSession, token: str, *, count: bool = True, now_ms: int | None = None) -> Opened:
    """Find what a link shows, count the access and record it. Raises `NotFound`, the same for every dead link."""
    offered = _hash(token)
    share = await share_db.by_hash(session, offered) if _TOKEN.fullmatch(token) else None
    if share is None or not hmac.compare_digest(share.token_sha256, offered):
        raise NotFound("share", "link")
    now = await _now(session, now_ms)
    if share.state(now) != "live":
        raise NotFound("share", "link")
    incident = found(await db.incident(session, share.incident_id), "share", "link")
    run = None
    if share.run_id is not None:
        run = found(await db.run(session, Run.id == share.run_id), "share", "link")
    if count:
        await share_db.count_access(session, share.id, now)
        record_event(
            session, Action.SHARE_OPENED, who=f"share {share.id}", subject=share.id, detail={"incident": incident.id}
        )
    return Opened(share, incident, run)


async def revoke_share(session: WriteSession, share_id: str, *, who: str, now_ms: int | None = None) -> Share:
    """End a link at once; ending it again changes nothing. Raises `NotFound`."""
    share = found(await share_db.locked(session, share_id), "share", share_id)
    if share.revoked_at is None:
        share.revoked_at = await _now(session, now_ms)
        share.revoked_by = who
        await session.flush()
        record_event(session, Action.SHARE_REVOKED, who=who, subject=share.id, detail={"incident": share.incident_id})
    return share


async def get_share(session: ReadSession, share_id: str) -> tuple[Share, str | None]:
    """Load one share, and the pipeline of its incident. Raises `NotFound`."""
    return found(await share_db.found(session, share_id), "share", share_id)


async def list_shares(
    session: ReadSession,
    *,
    incident: Incident | None = None,
    now_ms: int | None = None,
    shown: Callable[[Share, str | None], bool] = lambda share, pipeline: True,
) -> Sequence[Listed]:
    """List all live shares and the newest dead ones, live ones first, then newest first.

    `shown` is asked of each share and its incident's pipeline.
    """
    now = await _now(session, now_ms)
    rows = await share_db.listed(session, None if incident is None else incident.id)
    listed = [
        Listed(share, title, number, share.state(now))
        for share, title, number, pipeline in rows
        if shown(share, pipeline)
    ]
    live = [item for item in listed if item.state == "live"]
    dead = [item for item in listed if item.state != "live"]
    return [*live, *dead[:LISTED]]


def revealed(names: Sequence[str], *, redact: bool = True) -> frozenset[Reveal]:
    """What an owner opens. Raises `IncidentError` naming what cannot be opened."""
    if not redact:
        return EVERYTHING
    try:
        return chosen(names)
    except ValueError as error:
        raise IncidentError(str(error)) from error


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


async def _now(session: ReadSession, told_ms: int | None) -> int:
    """The database's clock, which all processes share, unless a test stops it."""
    return await db.now(session) if told_ms is None else told_ms
