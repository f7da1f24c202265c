"""All SQL of the domain but that of timelines (`rows`): statements in, rows out; nothing is decided or committed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import ARRAY, BigInteger, ColumnElement, Text, and_, cast, delete, func, or_, select, text, true, update
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.orm import undefer

from app.incidents.columns import EpochMs, dumps, members, unveiled
from app.incidents.intake import Packed
from app.incidents.models import NOW, Blob, Draft, DraftFile, Evidence, Incident, Run, RunState
from app.incidents.roles import Scopes
from app.incidents.store import ReadSession, WriteSession

# The task that a worker registers under this name runs one replay; its only argument is the run's id.
REPLAY_TASK: Final = "hindcast.replay"

_WHOLE: Final = (undefer(Run.verdict), undefer(Run.tool_answers))


def queue_of(build: str) -> str:
    """Name the queue of a build, so that a worker may serve some builds only."""
    return f"replay.{build}"


# Evidence ------------------------------------------------------------------------------------------------------------


async def keep_blobs(session: WriteSession, blobs: Iterable[Packed]) -> None:
    """Store bytes that are not there yet; in the order of their digests, so that two imports never deadlock."""
    for blob in sorted({blob.sha256: blob for blob in blobs}.values(), key=lambda blob: blob.sha256):
        values = {"sha256": blob.sha256, "size": blob.size, "codec": blob.codec, "data": blob.data}
        await session.execute(insert(Blob).values(values).on_conflict_do_nothing())


async def blob(session: ReadSession, sha256: str) -> tuple[str, bytes] | None:
    """Read the codec and stored bytes of a blob."""
    found = (await session.execute(select(Blob.codec, Blob.data).where(Blob.sha256 == sha256))).one_or_none()
    return None if found is None else (found[0], found[1])


async def evidence_of(session: ReadSession, incident_id: str, ids: Sequence[int] | None = None) -> list[Evidence]:
    """List an incident's files in order; `ids` picks some."""
    query = select(Evidence).where(Evidence.incident_id == incident_id).order_by(Evidence.position)
    if ids is not None:
        query = query.where(Evidence.id.in_(ids))
    return list(await session.scalars(query))


async def evidence_and_blobs(
    session: ReadSession, incident_id: str, ids: Sequence[int], largest: int
) -> list[tuple[Evidence, str | None, bytes | None]]:
    """List some of an incident's files in order, with codec and stored bytes of those up to `largest` bytes."""
    query = (
        select(Evidence, Blob.codec, Blob.data)
        .outerjoin(Blob, and_(Blob.sha256 == Evidence.sha256, Blob.size <= largest))
        .where(Evidence.incident_id == incident_id, Evidence.id.in_(ids))
        .order_by(Evidence.position)
    )
    return [(file, codec, data) for file, codec, data in await session.execute(query)]


async def evidence(session: ReadSession, incident_id: str, evidence_id: int) -> Evidence | None:
    """Load one file's description."""
    query = select(Evidence).where(Evidence.incident_id == incident_id, Evidence.id == evidence_id)
    return (await session.scalars(query)).one_or_none()


# Incidents -----------------------------------------------------------------------------------------------------------


async def incident(session: ReadSession, incident_id: str, *, lock: bool = False) -> Incident | None:
    """Load one incident; `lock` holds it until the unit of work ends, so that its runs are numbered one by one."""
    query = select(Incident).where(Incident.id == incident_id)
    return (await session.scalars(query.with_for_update() if lock else query)).one_or_none()


def within(scopes: Scopes) -> ColumnElement[bool]:
    """A condition on `incidents`: of these pipelines, or from files."""
    if scopes.everything:
        return true()
    of_files = Incident.pipeline.is_(None)
    of_pipelines = ~of_files if scopes.pipelines is None else Incident.pipeline.in_(scopes.pipelines)
    return or_(of_files, of_pipelines) if scopes.files else of_pipelines


async def latest_runs(session: ReadSession, incident_ids: Sequence[str]) -> list[Run]:
    """Find the run with the highest number of each incident."""
    query = (
        select(Run)
        .where(Run.incident_id.in_(incident_ids))
        .ext(distinct_on(Run.incident_id))
        .order_by(Run.incident_id, Run.number.desc())
    )
    return list(await session.scalars(query))


# Runs ----------------------------------------------------------------------------------------------------------------


async def run(session: ReadSession, *which: ColumnElement[bool], lock: bool = False) -> Run | None:
    """Load the one run that fits, with its verdict and tool answers."""
    query = select(Run).where(*which).options(*_WHOLE).execution_options(populate_existing=True)
    return (await session.scalars(query.with_for_update() if lock else query)).one_or_none()


async def runs_of(session: ReadSession, incident_id: str) -> list[Run]:
    """List an incident's runs, newest first."""
    return list(await session.scalars(select(Run).where(Run.incident_id == incident_id).order_by(Run.number.desc())))


async def incident_and_run(session: ReadSession, incident_id: str, number: int) -> tuple[Incident, Run | None] | None:
    """Load an incident and its n-th run, with its verdict and tool answers."""
    query = (
        select(Incident, Run)
        .outerjoin(Run, and_(Run.incident_id == Incident.id, Run.number == number))
        .where(Incident.id == incident_id)
        .options(*_WHOLE)
        .execution_options(populate_existing=True)
    )
    found = (await session.execute(query)).one_or_none()
    return None if found is None else (found[0], found[1])


async def standing(session: ReadSession, run_id: str) -> tuple[int, str] | None:
    """Read a run's version and state, and nothing else of it."""
    found = (await session.execute(select(Run.version, Run.state).where(Run.id == run_id))).one_or_none()
    return None if found is None else (found[0], found[1])


async def add_run(session: WriteSession, incident_id: str, **values: Any) -> Run:
    """Add the next run of an incident over all evidence that it has; correct while the incident is locked."""
    number = select(func.coalesce(func.max(Run.number), 0) + 1).where(Run.incident_id == incident_id)
    evidence = select(Evidence.id).where(Evidence.incident_id == incident_id).order_by(Evidence.position)
    statement = insert(Run).values(
        incident_id=incident_id,
        number=number.scalar_subquery(),
        evidence_ids=func.array(evidence.scalar_subquery(), type_=ARRAY(BigInteger)),
        **values,
    )
    return (await session.scalars(statement.returning(Run))).one()


async def enqueue(session: WriteSession, run_id: str, build: str) -> None:
    """Put a run's id into the queue, in the same transaction as its row: both are there, or neither."""
    statement = text(
        "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW(:queue, :task, 0, NULL, NULL, CAST(:args AS jsonb), NULL)"
        "::procrastinate_job_to_defer_v1])"
    )
    arguments = {"queue": queue_of(build), "task": REPLAY_TASK, "args": dumps({"run_id": run_id})}
    await session.execute(statement, arguments)


async def claim(session: WriteSession, run_id: str, worker: str, lease_s: float) -> Run | None:
    """Take a queued run, if it still is."""
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.state == RunState.QUEUED)
        .values(
            state=RunState.RUNNING,
            attempt=Run.attempt + 1,
            version=Run.version + 1,
            worker=worker,
            started_at=NOW,
            finished_at=None,
            error=None,
            lease_until=_lease(lease_s),
        )
        .returning(Run)
        .options(undefer(Run.tool_answers))
    )
    return (await session.scalars(statement, execution_options={"populate_existing": True})).one_or_none()


async def extend_lease(session: WriteSession, run_id: str, attempt: int, lease_s: float) -> bool:
    """Push the end of the lease back, if that attempt still holds it."""
    return await _change(session, run_id, attempt, {"lease_until": _lease(lease_s)})


async def end(session: WriteSession, run_id: str, attempt: int, values: dict[str, Any]) -> bool:
    """Write how a run ended, if that attempt still holds it."""
    ended = {"version": Run.version + 1, "lease_until": None, "finished_at": NOW}
    return await _change(session, run_id, attempt, ended | values)


async def give_back(session: WriteSession, run_id: str, attempt: int) -> str | None:
    """Make a running run a waiting one again, if that attempt still holds it; the name of its build then."""
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.attempt == attempt, Run.state == RunState.RUNNING)
        .values(state=RunState.QUEUED, version=Run.version + 1, lease_until=None, started_at=None, worker=None)
        .returning(Run.build)
        .execution_options(synchronize_session=False)
    )
    return (await session.scalars(statement)).one_or_none()


async def reproduced_reads(
    session: ReadSession, incident_id: str, evidence_ids: Sequence[int]
) -> list[tuple[int, str, list[dict[str, Any]]]]:
    """Read number, build and `Verdict.reads` of an incident's runs over exactly this evidence that reproduced.

    Oldest first, and only those that read something doubtful: of the rest of their verdicts nothing is loaded.
    """
    reads = cast(members(Run.verdict)["reads"], Text)
    query = (
        select(Run.number, Run.build, reads)
        .where(Run.incident_id == incident_id, Run.outcome == "reproduced", Run.evidence_ids == list(evidence_ids))
        .where(reads != "[]")
        .order_by(Run.number)
    )
    return [(number, build, unveiled(told)) for number, build, told in await session.execute(query)]


async def unfinished_before(session: ReadSession, run: Run) -> bool:
    """Whether an earlier run over the same evidence still waits or works."""
    query = select(Run.id).where(
        Run.incident_id == run.incident_id,
        Run.number < run.number,
        Run.evidence_ids == list(run.evidence_ids),
        Run.state.in_((RunState.QUEUED, RunState.RUNNING)),
    )
    return (await session.scalars(query.limit(1))).first() is not None


async def sweep(session: WriteSession, error: str) -> list[str]:
    """Turn runs with an expired lease into lost ones; rows that somebody works on at this moment are left to them."""
    expired = (
        select(Run.id)
        .where(Run.state == RunState.RUNNING, Run.lease_until < func.clock_timestamp())
        .with_for_update(skip_locked=True)
    )
    statement = (
        update(Run)
        .where(Run.id.in_(expired.scalar_subquery()))
        .values(state=RunState.LOST, version=Run.version + 1, lease_until=None, finished_at=NOW, error=error)
        .returning(Run.id)
        .execution_options(synchronize_session=False)
    )
    return list(await session.scalars(statement))


async def forgotten(session: ReadSession, older_s: float, stalled_s: float) -> list[tuple[str, str]]:
    """Find queued runs (id, build) that no job will bring to a worker any more: a worker died just after taking it."""
    statement = text(
        "SELECT r.id, r.build FROM runs r WHERE r.state = 'queued'"
        " AND r.created_at < clock_timestamp() - make_interval(secs => :older) AND NOT EXISTS ("
        "SELECT 1 FROM procrastinate_jobs j LEFT JOIN procrastinate_workers w ON w.id = j.worker_id"
        " WHERE j.args->>'run_id' = r.id AND (j.status = 'todo' OR (j.status = 'doing'"
        " AND w.last_heartbeat > clock_timestamp() - make_interval(secs => :stalled))))"
    )
    found = await session.execute(statement, {"older": older_s, "stalled": stalled_s})
    return [(run_id, build) for run_id, build in found]


async def _change(session: WriteSession, run_id: str, attempt: int, values: dict[str, Any]) -> bool:
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.attempt == attempt, Run.state == RunState.RUNNING)
        .values(values)
        .returning(Run.id)
        .execution_options(synchronize_session=False)
    )
    return (await session.scalars(statement)).one_or_none() is not None


def _lease(seconds: float) -> Any:
    return text(f"clock_timestamp() + make_interval(secs => {float(seconds)!r})")


# Drafts --------------------------------------------------------------------------------------------------------------


async def draft(session: ReadSession, draft_id: str) -> Draft | None:
    """Load a draft that has not expired."""
    query = select(Draft).where(Draft.id == draft_id, Draft.expires_at > func.clock_timestamp())
    return (await session.scalars(query)).one_or_none()


async def draft_files(session: ReadSession, draft_id: str, *, bodies: bool = False) -> Sequence[DraftFile]:
    """List a draft's files in the order of arrival, with their bytes or without."""
    query = select(DraftFile).where(DraftFile.draft_id == draft_id).order_by(DraftFile.id)
    if bodies:
        query = query.options(undefer(DraftFile.data)).execution_options(populate_existing=True)
    return (await session.scalars(query)).all()


async def drop_draft_files(session: WriteSession, draft_id: str, file_ids: Collection[int]) -> None:
    """Delete some files of a draft."""
    await session.execute(delete(DraftFile).where(DraftFile.draft_id == draft_id, DraftFile.id.in_(file_ids)))


async def drop_draft(session: WriteSession, draft_id: str) -> None:
    """Delete a draft and its files."""
    await session.execute(delete(Draft).where(Draft.id == draft_id))


async def drop_expired_drafts(session: WriteSession) -> int:
    """Delete all drafts whose time is over; returns how many."""
    expired = delete(Draft).where(Draft.expires_at < func.clock_timestamp()).returning(Draft.id)
    return len((await session.scalars(expired)).all())


async def now(session: ReadSession) -> int:
    """Read the database's clock, the one that all processes share, in epoch milliseconds."""
    return (await session.scalars(select(func.clock_timestamp(type_=EpochMs())))).one()
