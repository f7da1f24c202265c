"""The pool: which workers show signs of life, what waits for which build, and why a run that waits does.

Workers on any number of machines share one database and nothing else; what they say of themselves stands in a table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ARRAY, Boolean, Integer, Text, delete, func, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from app.incidents.columns import EpochMs, PlainText
from app.incidents.models import NOW, Base, Run
from app.incidents.store import ReadSession, WriteSession

# A worker speaks every `BEAT_S`; one that was not heard for `SILENT_S` counts as gone.
BEAT_S: Final = 2.0
SILENT_S: Final = 15.0
# How long pages go on showing a worker that is gone without having said good-bye.
_REMEMBERED_S: Final = 600.0


class Worker(Base):
    """One worker process as it last spoke of itself; `builds` is None for one that takes every run."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    name: Mapped[str] = mapped_column(PlainText)
    version: Mapped[str] = mapped_column(Text)
    builds: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    jobs: Mapped[int] = mapped_column(Integer)
    running: Mapped[int] = mapped_column(Integer)
    draining: Mapped[bool] = mapped_column(Boolean)
    started_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    beat_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker on the page; `silent_ms` is how long ago it spoke, `gone` whether that is too long."""

    name: str
    version: str
    builds: Sequence[str] | None
    jobs: int
    running: int
    draining: bool
    started_at: int
    silent_ms: int

    @property
    def gone(self) -> bool:
        return self.silent_ms > SILENT_S * 1000

    @property
    def state(self) -> str:
        """`gone`, `draining`, `busy` or `idle`."""
        if self.gone:
            return "gone"
        return "draining" if self.draining else "busy" if self.running >= self.jobs else "idle"

    def serves(self, build: str) -> bool:
        """Whether it would take a run of this build now or when it has a hand free."""
        return not self.gone and not self.draining and (self.builds is None or build in self.builds)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The runs of one build; `oldest_ms` is how long the first in line has waited, None where none waits."""

    build: str
    waiting: int
    running: int
    oldest_ms: int | None
    workers: int
    capacity: int


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """All workers, by name, and all queues, by build."""

    workers: Sequence[WorkerStatus]
    queues: Sequence[QueueStatus]

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in self.queues)

    @property
    def alive(self) -> Sequence[WorkerStatus]:
        return [worker for worker in self.workers if not worker.gone]

    @property
    def unserved(self) -> Sequence[str]:
        """Builds whose runs wait for a worker that is not there."""
        return [queue.build for queue in self.queues if queue.waiting and not queue.workers]

    def as_json(self) -> dict[str, Any]:
        return {
            "workers": [
                {
                    "name": one.name, "version": one.version, "state": one.state,
                    "builds": None if one.builds is None else list(one.builds),
                    "jobs": one.jobs, "running": one.running, "silent_ms": one.silent_ms,
                }
                for one in self.workers
            ],
            "queues": [
                {
                    "build": one.build, "waiting": one.waiting, "running": one.running, "oldest_ms": one.oldest_ms,
                    "workers": one.workers, "capacity": one.capacity,
                }
                for one in self.queues
            ],
        }  # fmt: skip


# The worker's side ---------------------------------------------------------------------------------------------------


async def beat(session: WriteSession, worker_id: str, **told: Any) -> None:
    """Show a sign of life; `told` are the columns of `Worker` beside its id and the times."""
    statement = insert(Worker).values(id=worker_id, **told)
    again = {**told, "beat_at": NOW}
    await session.execute(statement.on_conflict_do_update(index_elements=[Worker.id], set_=again))


async def leave(session: WriteSession, worker_id: str) -> None:
    """Say good-bye."""
    await session.execute(delete(Worker).where(Worker.id == worker_id))


async def forget_gone(session: WriteSession) -> None:
    """Drop workers that left long ago without a word."""
    limit = func.clock_timestamp() - text(f"make_interval(secs => {_REMEMBERED_S})")
    await session.execute(delete(Worker).where(Worker.beat_at < limit))


# What pages ask ------------------------------------------------------------------------------------------------------


async def pool_status(session: ReadSession, builds: Collection[str] = ()) -> PoolStatus:
    """Read the whole pool. `builds` are shown even where nothing waits for them and nobody serves them."""
    workers = [WorkerStatus(*row) for row in await session.execute(_WORKERS)]
    counted = {row.build: row for row in await session.execute(_QUEUES)}
    served = {build for worker in workers if not worker.gone for build in worker.builds or ()}
    queues = []
    for build in sorted({*builds, *counted, *served}):
        hands = [worker for worker in workers if worker.serves(build)]
        row = counted.get(build)
        queues.append(
            QueueStatus(
                build,
                row.waiting if row else 0,
                row.running if row else 0,
                row.oldest_ms if row else None,
                len(hands),
                sum(worker.jobs for worker in hands),
            )
        )
    return PoolStatus(workers, queues)


async def waiting_runs(session: ReadSession, most: int) -> int:
    """Count the runs that wait for a worker, but no further than `most`."""
    return int((await session.execute(_WAITING, {"most": most})).scalar_one())


async def why_waiting(session: ReadSession, run: Run, *, shown: Collection[str] | None = None) -> str | None:
    """Say in a sentence or two what a queued run waits for; None for one that does not wait.

    `shown` are the builds that may be named beside its own (None: all).
    """
    if run.state != "queued":
        return None
    workers = [WorkerStatus(*row) for row in await session.execute(_WORKERS)]
    if any(worker.serves(run.build) for worker in workers):
        ahead = int((await session.execute(_AHEAD, {"build": run.build, "id": run.id})).scalar_one())
        if ahead:
            return f"{ahead} {'run' if ahead == 1 else 'runs'} of this build wait before it."
        busy = all(worker.running >= worker.jobs for worker in workers if worker.serves(run.build))
        return "Every worker of this build is busy." if busy else "A worker is about to take it."
    command = f"hindcast worker --builds {run.build}"
    alive = [worker for worker in workers if not worker.gone and not worker.draining]
    if not alive:
        return f"No worker is running. Start one: {command}"
    served = {build for worker in alive for build in worker.builds or ()}
    others = sorted(served if shown is None else served & set(shown))
    return (
        f"No running worker serves the build {run.build}; those that run serve {', '.join(others) or 'none'}."
        f" Name it in their hindcast.toml, or start one: {command}"
    )


_WORKERS: Final = text(
    "SELECT name, version, builds, jobs, running, draining,"
    " CAST(extract(epoch FROM started_at) * 1000 AS bigint),"
    " CAST(greatest(extract(epoch FROM clock_timestamp() - beat_at), 0) * 1000 AS bigint)"
    " FROM workers ORDER BY name, id"
)
_QUEUES: Final = text(
    "SELECT build, CAST(count(*) FILTER (WHERE state = 'queued') AS integer) AS waiting,"
    " CAST(count(*) FILTER (WHERE state = 'running') AS integer) AS running,"
    " CAST(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE state = 'queued')) * 1000 AS bigint)"
    " AS oldest_ms FROM runs WHERE state IN ('queued', 'running') GROUP BY build"
)
_WAITING: Final = text("SELECT count(*) FROM (SELECT 1 FROM runs WHERE state = 'queued' LIMIT :most) AS waiting")
_AHEAD: Final = text(
    "SELECT count(*) FROM runs r, runs mine WHERE mine.id = :id AND r.state = 'queued' AND r.build = :build"
    " AND r.id <> mine.id AND r.created_at <= mine.created_at"
)
