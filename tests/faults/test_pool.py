"""Whatever is killed in the middle of a run: the run is lost and can be retried, or it is done, and recorded once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from app.demo.postgres import APPLICATION, EmbeddedPostgres
from app.incidents import pool, schema, service
from app.incidents.service import Run, Store
from tests.faults.fleet import BUILDS, Fleet, ask, confined, descendants, fleet_at, happens, until
from tests.fixtures.postgres import Database
from tests.waiting import PATIENCE_S, ended, until_async

TOKEN = "a-token-for-tests-alone"


@pytest.fixture
def fleet(tmp_path: Path, database: Database) -> Iterator[Fleet]:
    with fleet_at(tmp_path / "fleet", database.app) as made:
        yield made


async def running(store: Store, fleet: Fleet, worker: int) -> tuple[Run, set[int]]:
    """Have the patient agent's run begin; returns it and the process that was made for it."""

    async def alive() -> bool:
        async with store.read() as session:
            return bool((await pool.pool_status(session)).alive)

    await until_async(alive, lambda: (fleet.folder / "worker.log").read_text())
    run = await until(store, await ask(store, "patient"), "running")

    async def at_work() -> set[int]:
        # What compiles the agent's files is shut in as well, but begins later and ends by itself.
        first = confined(worker)[:1]
        await asyncio.sleep(0.3)
        return set(first) & set(confined(worker)[:1])

    return run, await until_async(at_work, "the run's process")


async def retried(store: Store, fleet: Fleet, run: Run) -> None:
    """Retry a lost run, and see that it is recorded once and whole."""
    fleet.go()
    async with store.write() as session:
        await service.retry_run(session, run.id, who="ada", known=BUILDS)
    done = await until(store, run, "done", "failed")
    assert (done.state, done.outcome, done.attempt) == ("done", "reproduced", 2)
    async with store.read() as session:
        rows = await service.rows_of(session, done)
    assert rows.total == done.counts["equal"] + done.counts["normalised"]


async def test_a_killed_child_and_a_killed_zygote_are_lost_runs(fleet: Fleet, store: Store) -> None:  # row 25
    worker = fleet.start("worker", "--builds", "patient", "--jobs", "1")
    run, made = await running(store, fleet, worker.pid)
    for pid in made:
        os.kill(pid, signal.SIGKILL)
    lost = await until(store, run, "lost", "done", "failed")
    assert lost.state == "lost"
    assert "retry it" in lost.error
    await retried(store, fleet, run)
    fleet.hold()
    run, made = await running(store, fleet, worker.pid)
    for pid in descendants(worker.pid) - made:
        os.kill(pid, signal.SIGKILL)
    assert (await until(store, run, "lost", "done", "failed")).state == "lost"
    await retried(store, fleet, run)
    assert worker.poll() is None


async def test_the_console_finds_the_run_of_the_only_worker_that_was_killed(fleet: Fleet, store: Store) -> None:
    """Row 25: no other worker is there to notice it."""
    worker = fleet.start("worker", "--builds", "patient")
    run, made = await running(store, fleet, worker.pid)
    console = fleet.start("serve", "--port", "0", HINDCAST_TOKEN=TOKEN)
    assert console.stdout is not None
    address = (await asyncio.to_thread(console.stdout.readline)).partition("/enter")[0]
    worker.kill()
    lost = await until(store, run, "lost")
    assert "no sign of life" in lost.error
    await happens(lambda: not any(Path(f"/proc/{pid}").exists() for pid in made), "the end of the run's process")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=PATIENCE_S) as client:
        answer = (await client.get("/api/v1/workers")).json()
    assert [one["name"].rpartition(":")[2] for one in answer["workers"]] == [str(worker.pid)]
    again = fleet.start("worker", "--builds", "patient")
    await retried(store, fleet, run)
    # A console that is killed takes nothing with it: the page is the database's.
    fleet.hold()
    run, _ = await running(store, fleet, again.pid)
    console.kill()
    await asyncio.to_thread(console.wait)
    fleet.go()
    assert (await until(store, run, "done", "lost", "failed")).attempt == 1


async def test_each_build_has_its_queue_and_what_nobody_serves_says_so(fleet: Fleet, store: Store) -> None:
    first, second = fleet.start("worker", "--builds", "patient"), fleet.start("worker", "--builds", "swift")
    fleet.go()
    runs = [await ask(store, build) for build in ("patient", "swift", "patient", "swift")]
    unserved = await ask(store, "elsewhere")
    done = [await until(store, run, "done") for run in runs]
    for run, worker in zip(done, (first, second, first, second), strict=True):
        assert run.worker.endswith(f":{worker.pid}")
    async with store.read() as session:
        status = await pool.pool_status(session, BUILDS)
        why = await pool.why_waiting(session, await service.get_run(session, unserved.id))
    assert {queue.build: (queue.waiting, queue.workers) for queue in status.queues} == {
        "elsewhere": (1, 0), "patient": (0, 1), "swift": (0, 1),
    }  # fmt: skip
    assert list(status.unserved) == ["elsewhere"]
    assert why == (
        "No running worker serves the build elsewhere; those that run serve patient, swift."
        " Name it in their hindcast.toml, or start one: hindcast worker --builds elsewhere"
    )


async def test_a_worker_that_must_go_gives_its_run_to_another(fleet: Fleet, store: Store) -> None:
    first = fleet.start("worker", "--builds", "patient")
    run, _ = await running(store, fleet, first.pid)
    first.send_signal(signal.SIGTERM)

    async def draining() -> bool:
        async with store.read() as session:
            return (await pool.pool_status(session)).workers[0].state == "draining"

    await until_async(draining)
    first.send_signal(signal.SIGTERM)  # the second time: do not wait
    back = await until(store, run, "queued")
    assert (back.attempt, back.worker, back.error) == (1, None, None)
    assert await asyncio.to_thread(ended, first) == 0
    fleet.go()
    second = fleet.start("worker", "--builds", "patient")
    done = await until(store, run, "done", "lost", "failed")
    assert (done.outcome, done.attempt) == ("reproduced", 2)
    assert done.worker.endswith(f":{second.pid}")


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that the server's own user may pass through."""
    made = Path(tempfile.mkdtemp(prefix="hindcast-fault-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def test_a_database_that_dies_in_the_middle_leaves_nothing_stuck_and_nothing_twice(home: Path) -> None:
    """Row 25."""
    server = EmbeddedPostgres(home / "state")
    try:
        urls = server.start()
        schema.upgrade(urls.owner, application=APPLICATION)
        store = Store(urls.app)
        with fleet_at(home / "fleet", urls.app) as fleet:
            worker = fleet.start("worker", "--builds", "patient")
            run, _ = await running(store, fleet, worker.pid)
            os.kill(server.pid, signal.SIGKILL)
            fleet.go()  # its verdict is there while the database is not
            await happens(lambda: not server.alive(), "the database's death")
            server.stop()
            server = EmbeddedPostgres(home / "state")
            assert server.start().app == urls.app
            over = await until(store, run, "done", "lost", "failed")
            if over.state == "lost":
                await retried(store, fleet, run)
            else:
                assert (over.state, over.attempt) == ("done", 1)
            assert (await until(store, await ask(store, "patient"), "done")).attempt == 1
            assert worker.poll() is None
            with psycopg.connect(urls.app) as connection:
                left = connection.execute("SELECT count(*) FROM runs WHERE state <> 'done'").fetchone()
            assert left == (0,)
        await store.close()
    finally:
        server.stop()
