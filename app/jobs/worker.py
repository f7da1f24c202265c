"""The worker process: takes runs from the queue, sweeps up after dead workers, finishes what it took before it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import procrastinate
import psycopg
from procrastinate.exceptions import ConnectorException
from sqlalchemy.exc import DBAPIError

from app.incidents import drafts, service
from app.incidents.changes import Changes
from app.incidents.exports import time_out_exports
from app.incidents.repository import queue_of
from app.incidents.service import Store
from app.jobs.decoding import DecodeTask, HookRunner
from app.jobs.queue import HEARTBEAT_S, POLL_S, STALLED_S, drop_stalled, open_queue
from app.jobs.replayer import Replayer
from app.jobs.tasks import ReplayTask

_LOG: Final = logging.getLogger(__name__)
_SWEEP_S: Final = 2.0
_AGAIN_S: Final = 1.0


@dataclass
class Worker:
    """One worker over one database. `only` limits it to some builds; without it, it takes every run there is."""

    url: str
    replayer: Replayer
    jobs: int = 2
    lease_s: float = 20.0
    limit_s: float = 300.0
    only: Collection[str] = ()
    hooks: HookRunner | None = None
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Work until `stop` is called (or SIGTERM or SIGINT comes); runs that were taken are finished first."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError, NotImplementedError):  # not in the main thread: somebody else stops us
                loop.add_signal_handler(number, self.stop)
        store = Store(self.url, pool_size=self.jobs + 2)
        async with Changes(self.url) as changes:
            task = ReplayTask(store, changes, self.replayer, self.name, self.jobs, self.lease_s, self.limit_s)
            sweeper = asyncio.create_task(self._sweep(store), name="sweep")
            try:
                while not self._stopping.is_set():
                    await self._work(task, DecodeTask(store, self.hooks))
            finally:
                sweeper.cancel()
                await asyncio.gather(sweeper, return_exceptions=True)
                await asyncio.to_thread(task.close)
                await store.close()

    def stop(self) -> None:
        """Take no more runs, and end when those that were taken are done."""
        _LOG.info("worker %s stops after its running replays", self.name)
        self._stopping.set()

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
                with suppress(asyncio.CancelledError):
                    await working
        except (ConnectorException, psycopg.Error, OSError) as error:
            _LOG.warning("worker %s lost the queue, and tries again: %s", self.name, error)
            await self._pause(_AGAIN_S)

    async def _take_jobs(self, queue: procrastinate.App) -> None:
        only: dict[str, Any] = {"queues": [queue_of(build) for build in self.only]} if self.only else {}
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

    async def _sweep(self, store: Store) -> None:
        """Look after runs that no worker looks after, whichever worker that was."""
        while True:
            try:
                async with store.write() as session:
                    lost = await service.sweep_lost(session)
                async with store.write() as session:
                    forgotten = await service.requeue_forgotten(session, stalled_s=STALLED_S)
                    await drafts.sweep_drafts(session)
                    await time_out_exports(session)  # where no collector runs, nobody else would
            except (DBAPIError, OSError) as error:
                _LOG.warning("cannot sweep: %s", error)
            else:
                for run in lost:
                    _LOG.warning("run %s is lost: its worker gave no sign of life", run)
                for run in forgotten:
                    _LOG.warning("run %s was queued again: its job had been lost", run)
            await asyncio.sleep(_SWEEP_S)

    async def _clean(self, queue: procrastinate.App) -> None:
        while True:
            with suppress(ConnectorException, psycopg.Error):
                await drop_stalled(queue)
            await asyncio.sleep(STALLED_S / 3)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
