"""Retention: closed incidents go after a time, whole, and leave a tombstone: who, what, when, which digests.

An incident that is pinned, or not closed, never goes. All of this works only over the database role that may delete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select, text

from app.incidents import purge_sql as sql
from app.incidents.audit import Action, record_event
from app.incidents.case_models import CaseStatus
from app.incidents.errors import IncidentError
from app.incidents.models import Incident, Run, RunState
from app.incidents.purge_models import Tombstone
from app.incidents.store import ReadSession, WriteSession

REASON_LENGTH: Final = 1000
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Doomed:
    """An incident that would go: what a list shows before it does."""

    id: str
    title: str
    closed_at: int
    files: int
    size: int
    runs: int


async def purgeable(session: ReadSession, *, closed_days: int, limit: int = 1000) -> list[Doomed]:
    """List the incidents that were closed at least so many days ago and are not pinned, the longest closed first."""
    before = text("clock_timestamp() - make_interval(days => :days)").bindparams(days=closed_days)
    busy = select(Run.id).where(Run.incident_id == Incident.id, Run.state.in_((RunState.QUEUED, RunState.RUNNING)))
    query = (
        select(Incident)
        .where(
            Incident.status == CaseStatus.CLOSED, Incident.pinned.is_(False), Incident.closed_at < before,
            ~busy.exists(),
        )
        .order_by(Incident.closed_at, Incident.id)
        .limit(limit)
    )  # fmt: skip
    found = list(await session.scalars(query))
    weights = {row[0]: row[1:] for row in await session.execute(_WEIGHTS, {"ids": [one.id for one in found]})}
    return [Doomed(one.id, one.title, one.closed_at or 0, *weights[one.id]) for one in found]


async def purge(session: WriteSession, ids: Sequence[str], *, closed_days: int, who: str, reason: str) -> list[str]:
    """Remove incidents, those among `ids` that may still go; returns which went."""
    await sql.lock(session)
    allowed = {one.id for one in await purgeable(session, closed_days=closed_days, limit=100_000)}
    going = [ident for ident in ids if ident in allowed]
    for ident in going:
        await remove(session, [ident], what="purged", who=who, reason=reason)
        record_event(session, Action.INCIDENT_PURGED, who=who, subject=ident, detail={"closed_days": closed_days})
    await session.flush()
    return going


async def remove(
    session: WriteSession, ids: Sequence[str], *, what: str, who: str, reason: str, key_sha256: str | None = None
) -> Counter[str]:
    """Delete incidents with all that hangs on them, and put a tombstone in the place of each; counts by table."""
    digests = await sql.digests_of(session, ids)
    rows = await session.execute(select(Incident.id, Incident.pipeline).where(Incident.id.in_(ids)))
    pipelines = {ident: pipeline for ident, pipeline in rows}  # noqa: C416  rows are no pairs to the type checker
    total: Counter[str] = Counter()
    for ident in ids:
        counts = await sql.delete_incidents(session, [ident])
        detail = {
            "removed": {table: count for table, count in counts.items() if count},
            "evidence": [sha256 for owner, sha256 in digests if owner == ident],
            "pipeline": pipelines.get(ident),  # who may be told that it was here
        }
        total.update(counts)
        session.add(tombstone(what, ident, who, reason, key_sha256, detail))
    total["blobs"] += await sql.delete_unused_blobs(session, {sha256 for _, sha256 in digests})
    await session.flush()
    return total


def tombstone(
    what: str, subject: str, who: str, reason: str, key_sha256: str | None, detail: dict[str, Any]
) -> Tombstone:
    return Tombstone(what=what, subject=subject, who=who, reason=reason, key_sha256=key_sha256, detail=detail)


def checked_reason(reason: str, forbidden: Collection[str] = ()) -> str:
    """A reason as it is kept. Raises `IncidentError` for none, and for one that quotes what is to be forgotten."""
    words = " ".join(reason.split())
    if not words or len(words) > REASON_LENGTH:
        raise IncidentError(f"a reason is needed, of at most {REASON_LENGTH} characters; it is kept for good")
    for quoted in forbidden:
        if quoted and quoted in words:
            raise IncidentError(
                "the reason quotes the key, and the reason is kept for good; name the request instead, as in"
                " `erasure request 4711`"
            )
    return words


async def tombstone_of(session: ReadSession, incident_id: str) -> Tombstone | None:
    """What is left of an incident that is gone."""
    query = select(Tombstone).where(Tombstone.subject == incident_id).order_by(Tombstone.id.desc()).limit(1)
    return (await session.scalars(query)).first()


async def tombstones(session: ReadSession, limit: int = 200) -> Sequence[Tombstone]:
    """List what is gone, newest first."""
    return (await session.scalars(select(Tombstone).order_by(Tombstone.id.desc()).limit(limit))).all()


async def may_remove(session: ReadSession) -> bool:
    """Whether this session's role may remove evidence."""
    return bool((await session.execute(_MAY)).scalar_one())


_MAY: Final = text(
    "SELECT has_table_privilege('evidence', 'DELETE') AND has_table_privilege('tombstones', 'INSERT')"
    " AND NOT has_table_privilege('evidence', 'TRUNCATE')"
)
_WEIGHTS: Final = text(
    "SELECT i.id, (SELECT count(*) FROM evidence e WHERE e.incident_id = i.id),"
    " (SELECT CAST(coalesce(sum(e.size), 0) AS bigint) FROM evidence e WHERE e.incident_id = i.id),"
    " (SELECT count(*) FROM runs r WHERE r.incident_id = i.id) FROM incidents i WHERE i.id = ANY(:ids)"
)
