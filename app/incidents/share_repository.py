"""The SQL of shares: statements in, rows out; no rule is decided here, and nothing commits."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update

from app.incidents.models import Incident, Run
from app.incidents.share_models import Share
from app.incidents.store import ReadSession, WriteSession


async def by_hash(session: ReadSession, token_sha256: str) -> Share | None:
    """Find a share by the hash of its token."""
    query = select(Share).where(Share.token_sha256 == token_sha256)
    return (await session.scalars(query, execution_options={"populate_existing": True})).one_or_none()


async def locked(session: WriteSession, share_id: str) -> Share | None:
    """Load one share and hold it until the unit of work ends."""
    query = select(Share).where(Share.id == share_id).with_for_update()
    return (await session.scalars(query, execution_options={"populate_existing": True})).one_or_none()


async def count_access(session: WriteSession, share_id: str, now_ms: int) -> None:
    """Count one access, also while others are counted at the same time."""
    counted = update(Share).where(Share.id == share_id).values(accesses=Share.accesses + 1, last_access_at=now_ms)
    await session.execute(counted, execution_options={"synchronize_session": False})


async def found(session: ReadSession, share_id: str) -> tuple[Share, str | None] | None:
    """Load one share, and the pipeline of its incident."""
    query = select(Share, Incident.pipeline).join(Incident, Incident.id == Share.incident_id)
    row = (await session.execute(query.where(Share.id == share_id))).one_or_none()
    return None if row is None else (row[0], row[1])


async def listed(session: ReadSession, incident_id: str | None) -> Sequence[tuple[Share, str, int | None, str | None]]:
    """List shares (of one incident), newest first, each with the incident's title, its run's number, its pipeline."""
    query = (
        select(Share, Incident.title, Run.number, Incident.pipeline)
        .join(Incident, Incident.id == Share.incident_id)
        .outerjoin(Run, Run.id == Share.run_id)
        .order_by(Share.created_at.desc(), Share.id)
    )
    if incident_id is not None:
        query = query.where(Share.incident_id == incident_id)
    return [(share, title, run, pipeline) for share, title, run, pipeline in (await session.execute(query)).all()]
