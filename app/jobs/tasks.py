"""Carries one run from the queue to its verdict, and leaves it in a state that says what happened, whatever happens.

The queue only says which run to look at. Everything that counts is in the run's row, and only the attempt that this
worker claimed is ever written.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from app import __version__
from app.incidents import service
from app.incidents.changes import Changes
from app.incidents.service import Run, Store
from app.jobs.replayer import BuildProblem, Case, Replayer

_LOG: Final = logging.getLogger(__name__)


@dataclass
class ReplayTask:
    """What a worker does with a run's id; one object serves all of a worker's runs.

    A running replay shows a sign of life three times in `lease_s`, and is timed out after `limit_s`.
    """

    store: Store
    changes: Changes
    replayer: Replayer
    worker: str
    jobs: int = 2
    lease_s: float = 20.0
    limit_s: float = 300.0
    _threads: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        # A run that was timed out may hold its thread a little longer; the next one does not wait for it.
        self._threads = ThreadPoolExecutor(self.jobs * 2, thread_name_prefix="replay")

    async def __call__(self, run_id: str) -> None:
        """Claim a run, replay it, record what came of it; returns quietly when there is nothing to claim."""
        async with self.store.write() as session:
            run = await service.claim_run(session, run_id, worker=self.worker, lease_s=self.lease_s)
        if run is None:
            return
        _LOG.info("run %s of incident %s: attempt %d with build %s", run.id, run.incident_id, run.attempt, run.build)
        try:
            await self._carry_out(run)
        except BuildProblem as error:
            await self._fail(run, str(error))
        except service.IncidentError as error:
            await self._fail(run, str(error))
        except Exception as error:  # noqa: BLE001  whatever it was, the run must not be left hanging
            _LOG.exception("run %s of incident %s failed", run.id, run.incident_id)
            await self._fail(run, _report(run, error))

    def close(self) -> None:
        """Wait for the threads of runs that were stopped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _carry_out(self, run: Run) -> None:
        stop = threading.Event()
        try:
            async with asyncio.timeout(self.limit_s), self._alive(run, stop):
                report, digest = await self._replay(run, stop)
        except TimeoutError:
            message = f"not finished after {self.limit_s:g} s (worker.limit_s)"
            async with self.store.write() as session:
                await service.time_out_run(session, run.id, run.attempt, message)
            return
        finally:
            stop.set()
        async with self.store.write() as session:
            ours = await service.finish_run(session, run.id, run.attempt, report, build_digest=digest)
        if ours:
            _LOG.info("run %s: %s", run.id, report.verdict.outcome)
        else:
            _LOG.info("run %s is not ours any more; its result was dropped", run.id)

    async def _replay(self, run: Run, stop: threading.Event) -> tuple[service.Report, str]:
        async with self.store.read() as session:
            incident = await service.get_incident(session, run.incident_id)
            files = await service.evidence_files(session, incident, run.evidence_ids)
            case = Case(files, incident.wanted_seq, await service.vindicated_reads(session, run))

        def work() -> tuple[service.Report, str]:
            digest = self.replayer.digest_of(run.build)
            return self.replayer.replay(run.build, case, stop), digest

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @asynccontextmanager
    async def _alive(self, run: Run, stop: threading.Event) -> AsyncIterator[None]:
        """Keep the lease while the block runs; where the run is taken from us (cancelled, lost), set `stop`."""
        async with self.changes.subscribe(run.id) as subscription:
            beats = asyncio.create_task(self._beat(run, stop, subscription.wait), name=f"heartbeat of {run.id}")
            try:
                yield
            finally:
                beats.cancel()
                await asyncio.gather(beats, return_exceptions=True)

    async def _beat(self, run: Run, stop: threading.Event, wait: Callable[[float], Awaitable[bool]]) -> None:
        while True:
            await wait(self.lease_s / 3)
            try:
                async with self.store.write() as session:
                    ours = await service.heartbeat(session, run.id, run.attempt, lease_s=self.lease_s)
            except Exception as error:  # noqa: BLE001  the database may be away; the lease decides, not this beat
                _LOG.warning("no heartbeat for run %s: %s", run.id, error)
                continue
            if not ours:
                stop.set()
                return

    async def _fail(self, run: Run, error: str) -> None:
        async with self.store.write() as session:
            await service.fail_run(session, run.id, run.attempt, error)


def _report(run: Run, error: Exception) -> str:
    """Write what a person can send us: versions, the run, and the traceback."""
    head = f"Hindcast {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    trace = "".join(traceback.format_exception(error))
    return f"{head}\nrun {run.id}, attempt {run.attempt}, build {run.build}\n\n{trace}"
