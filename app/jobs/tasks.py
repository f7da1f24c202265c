"""Carries one run from the queue to its verdict, and leaves it in a state that says what happened, whatever happens.

The queue only says which run to look at. Everything that counts is in the run's row, and only the attempt that this
worker claimed is ever written.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import platform
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as SqlTimeout

from app import __version__
from app.incidents import service
from app.incidents.changes import Changes, Subscription
from app.incidents.service import Run, RunState, Store, WriteSession
from app.jobs.replayer import BuildProblem, Case, KilledFromOutside, Replayer
from app.operations import logs, metrics, tracing

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)
_IRREPRODUCIBLE: Final = 3
# What came of a run is kept this long while the database is away; by then the run is lost, and may be retried.
_PATIENCE_S: Final = 60.0
_AGAIN_S: Final = 0.5
# Where the database goes away before a run has its verdict, the run begins anew, but not for ever.
_AWAY: Final = (OperationalError, InterfaceError, SqlTimeout)
_ATTEMPTS: Final = 5
# What comes before an end, and what we write ourselves: nobody takes a running run from us but by way of an end.
_OURS: Final = (RunState.QUEUED, RunState.RUNNING)


class _GivenBack(Exception):
    """The worker ends before the run has; another one shall begin it anew."""


@dataclass
class ReplayTask:
    """What a worker does with a run's id; one object serves all of a worker's runs.

    A running replay shows a sign of life three times in `lease_s`, and is timed out after `limit_s`. One that is in
    doubt waits up to `patience_s` for earlier runs that may settle it.
    """

    store: Store
    changes: Changes
    replayer: Replayer
    worker: str
    jobs: int = 2
    lease_s: float = 20.0
    limit_s: float = 300.0
    patience_s: float = 15.0
    running: int = field(default=0, init=False)
    _threads: ThreadPoolExecutor = field(init=False)
    _giving_back: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        # A run that was timed out may hold its thread a little longer; the next one does not wait for it.
        self._threads = ThreadPoolExecutor(self.jobs * 2, thread_name_prefix="replay")

    async def __call__(self, run_id: str) -> None:
        """Claim a run, replay it, record what came of it; returns quietly when there is nothing to claim."""
        # Listened to from before the claim, so that no change after it is missed.
        async with self.changes.subscribe(run_id, but=_OURS) as changed:
            async with self.store.write() as session:
                run = await service.claim_run(session, run_id, worker=self.worker, lease_s=self.lease_s)
            if run is not None:
                await self._take(run, changed)

    async def _take(self, run: Run, changed: Subscription) -> None:
        begun = time.monotonic()
        self.running += 1
        metrics.RUNNING.set(self.running)
        if run.attempt == 1 and run.started_at is not None:
            metrics.QUEUE_SECONDS.observe(max(0, run.started_at - run.created_at) / 1000)
            tracing.past_span("wait for a worker", run.created_at, run.started_at, of=run.trace_parent, run=run.id)
        ids = {"incident": run.incident_id, "run": run.id}
        with (
            logs.about(**ids, attempt=run.attempt),
            tracing.span("replay", of=run.trace_parent, build=run.build, attempt=run.attempt, **ids),
        ):
            ending = await self._end(run, changed)
        metrics.RUNS.labels(run.build, ending).inc()
        metrics.RUN_SECONDS.labels(run.build).observe(time.monotonic() - begun)

    async def _end(self, run: Run, changed: Subscription) -> str:
        """Bring a run to its end, whatever that is; the word that metrics have for it."""
        _LOG.info("run %s of incident %s: attempt %d with build %s", run.id, run.incident_id, run.attempt, run.build)
        try:
            return await self._carry_out(run, changed)
        except (BuildProblem, service.IncidentError) as error:
            await self._fail(run, str(error))
            return "refused"
        except KilledFromOutside as error:
            _LOG.warning("run %s of incident %s is lost: %s", run.id, run.incident_id, error)
            lost = str(error)
            await self._settle(run, lambda session: service.lose_run(session, run.id, run.attempt, lost))
            return "lost"
        except (_GivenBack, *_AWAY) as error:
            if run.attempt >= _ATTEMPTS and not isinstance(error, _GivenBack):
                await self._fail(run, _report(run, error))
                return "failed"
            _LOG.info("run %s of incident %s goes back into the queue %s", run.id, run.incident_id, error)
            await self._settle(run, lambda session: service.give_back_run(session, run.id, run.attempt))
            return "given-back"
        except Exception as error:  # noqa: BLE001  whatever it was, the run must not be left hanging
            _LOG.exception("run %s of incident %s failed", run.id, run.incident_id)
            await self._fail(run, _report(run, error))
            return "failed"
        finally:
            self.running -= 1
            metrics.RUNNING.set(self.running)

    def give_back(self) -> None:
        """Stop the runs that still work, and put them back into the queue."""
        self._giving_back.set()

    def close(self) -> None:
        """Wait for the threads of runs that were stopped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _carry_out(self, run: Run, changed: Subscription) -> str:
        stop = threading.Event()
        try:
            async with asyncio.timeout(self.limit_s), self._alive(run, stop, changed):
                report, digest = await self._unless_given_back(self._replay(run, stop))
        except TimeoutError:
            message = f"not finished after {self.limit_s:g} s (worker.limit_s)"
            await self._settle(run, lambda session: service.time_out_run(session, run.id, run.attempt, message))
            return "timed-out"
        finally:
            stop.set()
        ours = await self._settle(
            run, lambda session: service.finish_run(session, run.id, run.attempt, report, build_digest=digest)
        )
        if ours:
            _LOG.info("run %s: %s", run.id, report.verdict.outcome)
            return str(report.verdict.outcome)
        _LOG.info("run %s is not ours any more; its result was dropped", run.id)
        return "dropped"

    async def _unless_given_back(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work; where the worker must end before it has, raise `_GivenBack`."""
        working = asyncio.create_task(work)
        ending = asyncio.create_task(self._giving_back.wait())
        try:
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise _GivenBack
            return working.result()
        finally:
            for task in (working, ending):
                task.cancel()
            await asyncio.gather(working, ending, return_exceptions=True)

    async def _settle(self, run: Run, write: Callable[[WriteSession], Awaitable[bool]]) -> bool:
        """Write how a run ended, again and again while the database is away; False when the run is not ours any more.

        A write that did arrive, although we did not hear of it, is refused the second time: the run is not running.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_S
        while True:
            try:
                async with self.store.write() as session:
                    return await write(session)
            except (*_AWAY, OSError) as error:
                if loop.time() > deadline:
                    _LOG.error("run %s: what came of it cannot be written: %s", run.id, error)
                    return False
                _LOG.warning("run %s waits for the database: %s", run.id, error)
            await asyncio.sleep(_AGAIN_S)

    async def _replay(self, run: Run, stop: threading.Event) -> tuple[service.Report, str]:
        async with self.store.read() as session:
            incident = await service.get_incident(session, run.incident_id)
            read = await service.evidence_read(session, incident, run.evidence_ids)
            vindicated = await service.vindicated_reads(session, run)
        inputs = service.inputs_of(run)
        case = Case(
            [file for _, file in read],
            incident.wanted_seq,
            vindicated,
            inputs,
            killed_before=run.attempt > 1,
            key=incident.entity_key,
            sources=[kept.source for kept, _ in read],
        )
        report, digest = await self._work(run, case, stop)
        if in_doubt(report):
            vouched = await self._vouched(run)
            if vouched > vindicated:
                _LOG.info("run %s is judged again: another run has vouched for what it read", run.id)
                report, digest = await self._work(run, replace(case, vindicated=vouched), stop)
        return report, digest

    async def _work(self, run: Run, case: Case, stop: threading.Event) -> tuple[service.Report, str]:
        def work() -> tuple[service.Report, str]:
            digest = self.replayer.digest_of(run.build)
            with tracing.span("re-run and compare"):
                return self.replayer.replay(run.build, case, stop), digest

        here = contextvars.copy_context()  # log lines and spans of the thread belong to the run
        return await asyncio.get_running_loop().run_in_executor(self._threads, here.run, work)

    async def _vouched(self, run: Run) -> frozenset[str]:
        """The reads that are known to be right, once earlier runs over the same evidence have had their time to end.

        Builds that are compared are asked for at once; the verdict on the second must not hang on who was faster.
        """
        deadline = asyncio.get_running_loop().time() + self.patience_s
        async with self.changes.subscribe(run.incident_id) as subscription:
            while True:
                async with self.store.read() as session:
                    waits = await service.awaits_others(session, run)
                    vouched = await service.vindicated_reads(session, run)
                left = deadline - asyncio.get_running_loop().time()
                if not waits or left <= 0:
                    return vouched
                await subscription.wait(left)

    @asynccontextmanager
    async def _alive(self, run: Run, stop: threading.Event, changed: Subscription) -> AsyncIterator[None]:
        """Keep the lease while the block runs; where the run is taken from us (cancelled, lost), set `stop`."""
        beats = asyncio.create_task(self._beat(run, stop, changed), name=f"heartbeat of {run.id}")
        try:
            yield
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def _beat(self, run: Run, stop: threading.Event, changed: Subscription) -> None:
        while True:
            await changed.wait(self.lease_s / 3)
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
        await self._settle(run, lambda session: service.fail_run(session, run.id, run.attempt, error))


def in_doubt(report: service.Report) -> bool:
    """Whether a verdict rests on nothing but reads that nobody has vouched for yet."""
    unvouched = any(not read["vindicated"] for read in report.verdict.reads)
    return report.verdict.exit_code == _IRREPRODUCIBLE and unvouched


def _report(run: Run, error: Exception) -> str:
    """Write what a person can send us: versions, the run, and the traceback."""
    head = f"Hindcast {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    trace = "".join(traceback.format_exception(error))
    return f"{head}\nrun {run.id}, attempt {run.attempt}, build {run.build}\n\n{trace}"
