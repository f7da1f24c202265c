"""Workers as the tests need them: real queue, real database; a replayer of the test's making, or the sandbox."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from app.incidents import service
from app.incidents.service import Incident, Report, Run, Store
from app.jobs.replayer import Case, Replayer
from app.jobs.worker import Worker
from tests.fixtures.postgres import Database
from tests.incidents.evidence import recording, report
from tests.waiting import PATIENCE_S, until_async

KNOWN = ("v1", "v2")


@dataclass
class ScriptedReplayer:
    """Does what the test says instead of replaying, in the worker's threads like the real one."""

    behaviour: Callable[[threading.Event], Report] = lambda stop: report(3)
    seen: list[tuple[str, Case]] = field(default_factory=list)

    def digest_of(self, build: str) -> str:
        return "sha256:" + "0" * 64

    def replay(self, build: str, case: Case, stop: threading.Event) -> Report:
        self.seen.append((build, case))
        return self.behaviour(stop)


Working = Callable[..., "asyncio.Timeout"]


@pytest.fixture
def working(database: Database) -> Callable[..., object]:
    """Run a worker for the length of a block; it is stopped, not killed, at the end."""

    @asynccontextmanager
    async def work(replayer: Replayer, **options: object) -> AsyncIterator[Worker]:
        worker = Worker(database.app, replayer, **options)  # type: ignore[arg-type]
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            async with asyncio.timeout(PATIENCE_S):
                await running

    return work


@pytest.fixture
async def incident(store: Store) -> Incident:
    async with store.write() as session:
        return await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")


@pytest.fixture
def request_run(store: Store, incident: Incident) -> Callable[..., Awaitable[Run]]:
    async def ask(build: str = "v1") -> Run:
        async with store.write() as session:
            return await service.request_replay(session, incident, build, who="ada", known=KNOWN)

    return ask


@pytest.fixture
def until(store: Store) -> Callable[..., Awaitable[Run]]:
    """Wait until a run is in one of some states."""

    async def wait(run: Run, *states: str) -> Run:
        found = run

        async def reached() -> Run | None:
            nonlocal found
            async with store.read() as session:
                found = await service.get_run(session, run.id)
            return found if found.state in states else None

        there = await until_async(reached, lambda: f"{' or '.join(states)}: it is {found.state}, {found.error}")
        assert there is not None
        return there

    return wait
