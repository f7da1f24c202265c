"""The worker process: takes runs from the queue, sweeps up after dead workers, finishes what it took before it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import procrastinate
import psycopg
from procrastinate.exceptions import ConnectorException
from sqlalchemy.exc import SQLAlchemyError

from app import __version__
from app.incidents import pool
from app.incidents.changes import Changes
from app.incidents.models import new_id
from app.incidents.repository import queue_of
from app.incidents.service import Store
from app.incidents.tending import tending
from app.jobs.decoding import DecodeTask, HookRunner
from app.jobs.queue import HEARTBEAT_S, POLL_S, STALLED_S, drop_stalled, open_queue
from app.jobs.replayer import Replayer
from app.jobs.retention import Retention, keeping_house
from app.jobs.tasks import ReplayTask
from app.operations import health, metrics, tracing
from app.operations.health import Check, Word
from app.operations.listener import listening

_LOG: Final = logging.getLogger(__name__)
_AGAIN_S: Final = 1.0
_TAKING: Final = Check("taking", Word.OK, "it takes runs")


@dataclass
class Worker:
    """One worker over one database; any number may run, anywhere.

    `only` limits it to some builds; without it, it takes every run there is. Once told to stop it takes no more, and
    what has not ended after `drain_s` goes back into the queue.
    """

    url: str
    replayer: Replayer
    jobs: int = 2
    lease_s: float = 20.0
    limit_s: float = 300.0
    drain_s: float = 25.0
    only: Collection[str] | None = None
    hooks: HookRunner | None = None
    watch: tuple[str, int] | None = None
    retention: Retention | None = None
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _hurried: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Work until `stop` is called (or SIGTERM or SIGINT comes); runs that were taken are finished first."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError, NotImplementedError):  # not in the main thread: somebody else stops us
                loop.add_signal_handler(number, self._signalled)
        store = Store(self.url, pool_size=self.jobs + 2)
        tracing.instrument_engine(store.engine)
        async with Changes(self.url) as changes:
            task = ReplayTask(store, changes, self.replayer, self.name, self.jobs, self.lease_s, self.limit_s)
            try:
                house = keeping_house(self.retention)
                async with tending(store), self._known(store, task), self._watched(store), house:
                    while not self._stopping.is_set():
                        await self._work(task, DecodeTask(store, self.hooks))
            finally:
                await asyncio.to_thread(task.close)
                await store.close()

    def stop(self) -> None:
        """Take no more runs, and end when those that were taken are done or have had their time."""
        _LOG.info("worker %s stops after its running replays, in %g s at most", self.name, self.drain_s)
        self._stopping.set()

    def hurry(self) -> None:
        """End at once: what still runs goes back into the queue."""
        _LOG.info("worker %s gives its running replays back", self.name)
        self._hurried.set()
        self._stopping.set()

    def _signalled(self) -> None:
        """The first signal stops, the second hurries."""
        (self.hurry if self._stopping.is_set() else self.stop)()

    async def _work(self, task: ReplayTask, decode: DecodeTask) -> None:
        """Work until told to stop, or until the database goes away; then return, to begin anew."""
        queue = open_queue(self.url, task, decode, connections=self.jobs + 3)
        try:
            async with queue.open_async():
                working = asyncio.create_task(self._take_jobs(queue), name="worker")
                cleaning = asyncio.create_task(self._clean(queue), name="clean the queue")
                stopping = asyncio.create_task(self._stopping.wait(), name="wait for the stop")
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                for other in (cleaning, stopping, working):
                    other.cancel()  # the worker itself takes this as the wish to finish what it has begun
                await asyncio.gather(cleaning, stopping, return_exceptions=True)
                await self._drain(working, task)
        except (ConnectorException, psycopg.Error, OSError) as error:
            _LOG.warning("worker %s lost the queue, and tries again: %s", self.name, error)
            await self._pause(_AGAIN_S)

    async def _take_jobs(self, queue: procrastinate.App) -> None:
        only: dict[str, Any] = {}
        if self.only is not None:
            # Whoever serves no build waits at a queue that nobody fills: without a name it would be all of them.
            only = {"queues": [queue_of(build) for build in self.only] or [queue_of("")]}
        await queue.run_worker_async(
            **only,
            name=self.name,
            concurrency=self.jobs,
            fetch_job_polling_interval=POLL_S,
            update_heartbeat_interval=HEARTBEAT_S,
            stalled_worker_timeout=STALLED_S,
            delete_jobs="always",  # the row of the run keeps what happened
            install_signal_handlers=False,
        )

    async def _drain(self, working: asyncio.Task[None], task: ReplayTask) -> None:
        """Wait for the runs that were begun; what takes too long is given back."""
        hurried = asyncio.create_task(self._hurried.wait(), name="wait for the second stop")
        await asyncio.wait({working, hurried}, timeout=self.drain_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not working.done():
            task.give_back()
        with suppress(asyncio.CancelledError):
            await working

    @asynccontextmanager
    async def _watched(self, store: Store) -> AsyncIterator[None]:
        """Answer those who watch over the process; one that takes no more runs is not ready."""

        async def ready() -> Sequence[Check]:
            taking = Check("taking", Word.FAILING, "it takes no more runs") if self._stopping.is_set() else _TAKING
            return [*await health.database(store), taking]

        async def measured() -> bytes:
            return metrics.text()

        async with listening(self.watch, ready, measured):
            yield

    @asynccontextmanager
    async def _known(self, store: Store, task: ReplayTask) -> AsyncIterator[None]:
        """Let pages know that this worker is there, for the length of the block."""
        ident = new_id("wrk")
        beats = asyncio.create_task(self._beat(store, ident, task), name="signs of life")
        try:
            yield
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            with suppress(SQLAlchemyError, OSError):
                async with store.write() as session:
                    await pool.leave(session, ident)

    async def _beat(self, store: Store, ident: str, task: ReplayTask) -> None:
        builds = None if self.only is None else sorted(self.only)
        while True:
            told = {"running": task.running, "draining": self._stopping.is_set(), "jobs": self.jobs, "builds": builds}
            metrics.RUNNING.set(task.running)
            metrics.DRAINING.set(self._stopping.is_set())
            with suppress(SQLAlchemyError, OSError):
                async with store.write() as session:
                    await pool.beat(session, ident, name=self.name, version=__version__, **told)
            with suppress(TimeoutError):
                # Said at once, so that nobody waits for a worker that takes no more.
                waiting = asyncio.Event() if told["draining"] else self._stopping
                await asyncio.wait_for(waiting.wait(), pool.BEAT_S)

    async def _clean(self, queue: procrastinate.App) -> None:
        while True:
            with suppress(ConnectorException, psycopg.Error):
                await drop_stalled(queue)
            await asyncio.sleep(STALLED_S / 3)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
