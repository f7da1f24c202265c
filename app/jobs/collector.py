"""The collector process: follows every pipeline into the database, and does what only it can, for it has the brokers'
credentials. It never runs agent code.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import psycopg
from sqlalchemy.exc import DBAPIError

from app.incidents import live_repository as live
from app.incidents.collecting import Outcome
from app.incidents.freeze import Rule
from app.incidents.live_models import COLLECTOR_CHANNEL
from app.incidents.models import NOW
from app.incidents.service import Store
from app.incidents.store import driver_url
from app.jobs.desk import Desk, Keeping, drop_old_days, time_out
from app.jobs.follow import Follow
from app.kafka.config import Pipeline
from app.kafka.intake import Start
from app.operations import health, metrics
from app.operations.health import Check, Word
from app.operations.listener import listening

_LOG: Final = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_BEAT_S: Final = 2.0
# How soon a pipeline that was taken up is said to be followed.
_LOOK_S: Final = 0.1
_TIDY_S: Final = 60.0
_AGAIN_S: Final = 1.0
_QUIET_S: Final = 30.0


@dataclass
class Collector:
    """One collector of some pipelines over one database; several may run, of which one works and others stand by."""

    url: str
    pipelines: Sequence[Pipeline]
    rules: Sequence[Rule] = ()
    keeping: Keeping = field(default_factory=Keeping)
    start: Start = Start.BEGINNING
    # All pipelines of the configuration, where this collector follows only some.
    known: Sequence[str] = ()
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    watch: tuple[str, int] | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Collect until `stop` is called (or SIGTERM or SIGINT comes); what was read is stored first."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError, NotImplementedError):  # not in the main thread: somebody else stops us
                loop.add_signal_handler(number, self.stop)
        store = Store(self.url, pool_size=4)
        known = self.known or [pipeline.name for pipeline in self.pipelines]
        desks = {one.name: Desk(store, one, known, self.keeping, wake=self._woken.set) for one in self.pipelines}

        def told(pipeline: str, outcome: Outcome) -> None:
            metrics.COLLECTED.labels(pipeline).inc(outcome.records)
            metrics.UNDECODABLE.labels(pipeline).inc(outcome.undecodable)
            with suppress(RuntimeError):  # the loop has ended, and so shall we
                loop.call_soon_threadsafe(self._hear, desks[pipeline], outcome)

        follows = [Follow(self.url, one, self.rules, self.start, told) for one in self.pipelines]
        for follow in follows:
            follow.begin()
        chores = [
            asyncio.create_task(self._listen(), name="listen"),
            asyncio.create_task(self._beat(store, follows), name="signs of life"),
            asyncio.create_task(self._tidy(store), name="tidy"),
        ]
        try:
            async with self._watched(store, follows):
                while not self._stopping.is_set():
                    for follow in follows:
                        # Whoever only stands by leaves the chores to the one that works.
                        if follow.condition.holding:
                            await desks[follow.pipeline.name].work()
                    await self._wait()
        finally:
            for follow in follows:
                follow.stop()
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            for desk in desks.values():
                await desk.close()
            for follow in follows:
                await asyncio.to_thread(follow.join)
            await store.close()

    def stop(self) -> None:
        """End after what is being stored."""
        _LOG.info("collector %s stops", self.name)
        self._stopping.set()
        self._woken.set()

    @asynccontextmanager
    async def _watched(self, store: Store, follows: Sequence[Follow]) -> AsyncIterator[None]:
        """Answer those who watch over the process. One that stands by is ready: the other one works."""

        async def ready() -> Sequence[Check]:
            troubled = sum(follow.condition.trouble is not None for follow in follows)
            values = {
                "pipelines": len(follows),
                "followed": sum(follow.condition.holding for follow in follows),
                "lag_records": sum(sum(follow.condition.lags.values()) for follow in follows),
            }
            word, told = (Word.WARNING, "trouble with a broker") if troubled else (Word.OK, "no trouble")
            return [*await health.database(store), Check("broker", word, told, values)]

        async def measured() -> bytes:
            for follow in follows:
                metrics.FOLLOWING.labels(follow.pipeline.name).set(follow.condition.holding)
                metrics.TROUBLE.labels(follow.pipeline.name).set(follow.condition.trouble is not None)
                metrics.LAG.labels(follow.pipeline.name).set(sum(follow.condition.lags.values()))
            return metrics.text()

        async with listening(self.watch, ready, measured):
            yield

    def _hear(self, desk: Desk, outcome: Outcome) -> None:
        desk.note(outcome)
        self._woken.set()

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), _POLL_S)
        self._woken.clear()

    async def _listen(self) -> None:
        """Be woken by requests; where that is not possible, the poll finds them a second later."""
        url = driver_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        while True:
            with suppress(psycopg.Error, OSError):
                async with await psycopg.AsyncConnection.connect(
                    url, autocommit=True, connect_timeout=10
                ) as connection:
                    await connection.execute(f"LISTEN {COLLECTOR_CHANNEL}".encode())
                    while True:
                        async for _ in connection.notifies(timeout=_QUIET_S):
                            self._woken.set()
                        await connection.execute(b"SELECT 1")
            await asyncio.sleep(_AGAIN_S)

    async def _beat(self, store: Store, follows: Sequence[Follow]) -> None:
        """Leave signs of life, so that pages can say whether a pipeline is being followed."""
        begun: set[str] = set()
        last: dict[str, float] = {}
        while True:
            for follow in follows:
                name, condition = follow.pipeline.name, follow.condition
                if not condition.holding:
                    last.pop(name, None)
                    continue  # whoever stands by must not speak for the one that works
                if time.monotonic() - last.get(name, -_BEAT_S) < _BEAT_S:
                    continue
                last[name] = time.monotonic()
                values = {
                    "trouble": condition.trouble,
                    "detail": {"lags": dict(condition.lags), "missing": dict(condition.missing)},
                    "caught_up_at": NOW if condition.caught_up else None,
                }
                with suppress(DBAPIError, OSError):
                    async with store.write() as session:
                        await live.beat(session, name, self.name, values)
                        if name not in begun:
                            await live.began(session, name)
                    begun.add(name)
            await asyncio.sleep(_LOOK_S)

    async def _tidy(self, store: Store) -> None:
        tidied = -_TIDY_S
        while True:
            try:
                await time_out(store)
                if time.monotonic() - tidied >= _TIDY_S:
                    tidied = time.monotonic()
                    await drop_old_days(store, self.keeping)
            except (DBAPIError, OSError) as error:
                _LOG.warning("cannot tidy up: %s", error)
            await asyncio.sleep(_POLL_S)
