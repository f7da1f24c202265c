"""The worker: every run ends in a state that says what happened, whatever happened to it."""

import asyncio
import signal
import subprocess
import sys
import threading
from asyncio.subprocess import Process
from typing import Any

import psycopg
import pytest
from procrastinate import PsycopgConnector, sql
from procrastinate.exceptions import ConnectorException
from sqlalchemy.exc import OperationalError

from app.incidents import service
from app.incidents.changes import Changes
from app.incidents.service import Report, Run, Store
from app.jobs.replayer import Case
from app.jobs.tasks import ReplayTask
from tests.fixtures.postgres import Database
from tests.incidents.evidence import recording, report
from tests.jobs.conftest import ScriptedReplayer
from tests.waiting import PATIENCE_S, until_async


async def test_a_run_is_taken_and_its_verdict_recorded(
    working: Any, request_run: Any, until: Any, store: Store
) -> None:
    replayer = ScriptedReplayer(lambda stop: report(250, different=frozenset({7})))
    async with working(replayer, name="w1"):
        run = await until(await request_run("v2"), "done")
    assert (run.outcome, run.first_divergence, run.attempt, run.worker) == ("diverged", 7, 1, "w1")
    assert run.build_digest == "sha256:" + "0" * 64
    files = recording("a01_fraud_completed")
    sources = [{"kind": "upload", "file": file.name} for file in files]
    assert replayer.seen == [("v2", Case(files, key=b"card-4242", sources=sources))]
    async with store.read() as session:
        assert (await service.rows_of(session, run)).total == 250


async def test_what_was_queued_before_the_worker_came_is_taken(working: Any, request_run: Any, until: Any) -> None:
    runs = [await request_run() for _ in range(5)]
    async with working(ScriptedReplayer()):
        for run in runs:
            await until(run, "done")


async def test_the_queue_keeps_nothing_of_a_finished_run(
    working: Any, request_run: Any, until: Any, database: Database
) -> None:
    async with working(ScriptedReplayer()):
        await until(await request_run(), "done")
    with psycopg.connect(database.app) as connection:
        assert connection.execute("SELECT count(*) FROM procrastinate_jobs").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM procrastinate_workers").fetchone() == (0,)


async def test_a_crash_of_ours_is_a_failed_run_with_a_report(working: Any, request_run: Any, until: Any) -> None:
    def crash(stop: threading.Event) -> Report:
        raise ZeroDivisionError("at night")

    async with working(ScriptedReplayer(crash)):
        failed = await until(await request_run(), "failed")
    assert "ZeroDivisionError: at night" in failed.error
    assert failed.id in failed.error
    assert failed.error.startswith("Hindcast ")


async def test_a_failed_run_can_be_tried_again(working: Any, request_run: Any, until: Any, store: Store) -> None:
    replayer = ScriptedReplayer(lambda stop: 1 // 0)  # type: ignore[arg-type,return-value]
    async with working(replayer):
        run = await until(await request_run(), "failed")
        replayer.behaviour = lambda stop: report(1)
        async with store.write() as session:
            await service.retry_run(session, run.id, who="ada", known=["v1"])
        done = await until(run, "done")
    assert (done.attempt, done.error) == (2, None)


async def test_a_run_that_takes_too_long_is_timed_out_and_its_work_stopped(
    working: Any, request_run: Any, until: Any
) -> None:
    stopped = threading.Event()

    def hang(stop: threading.Event) -> Report:
        assert stop.wait(PATIENCE_S)
        stopped.set()
        return report(1)

    replayer = ScriptedReplayer(hang)
    async with working(replayer, limit_s=4.0):
        run = await until(await request_run(), "timed_out")
        # Where the time was over before the work could begin, there is none to stop.
        assert not replayer.seen or await asyncio.to_thread(stopped.wait, PATIENCE_S)
    assert run.error == "not finished after 4 s (worker.limit_s)"


async def test_cancelling_stops_the_work(working: Any, request_run: Any, until: Any, store: Store) -> None:
    began, stopped = threading.Event(), threading.Event()

    def hang(stop: threading.Event) -> Report:
        began.set()
        assert stop.wait(PATIENCE_S)
        stopped.set()
        return report(1)

    async with working(ScriptedReplayer(hang)):
        run = await until(await request_run(), "running")
        assert await asyncio.to_thread(began.wait, PATIENCE_S)
        async with store.write() as session:
            await service.cancel_run(session, run.id, who="ada")
        assert await asyncio.to_thread(stopped.wait, PATIENCE_S)
    assert (await until(run, "cancelled")).verdict is None


async def test_a_run_that_is_cancelled_just_after_it_was_taken_is_stopped(
    working: Any, request_run: Any, until: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the claim and the work nobody may be deaf: the next heartbeat is far away."""
    end, stopped = ReplayTask._end, threading.Event()

    async def cancelled_first(self: ReplayTask, run: Any, changed: Any) -> str:
        async with store.write() as session:
            await service.cancel_run(session, run.id, who="ada")
        await asyncio.sleep(0.3)  # by now everybody who listens has been told
        return await end(self, run, changed)

    def hang(stop: threading.Event) -> Report:
        if stop.wait(60):
            stopped.set()
        return report(1)

    monkeypatch.setattr(ReplayTask, "_end", cancelled_first)
    async with working(ScriptedReplayer(hang), lease_s=600.0):
        run = await until(await request_run(), "cancelled")
        assert await asyncio.to_thread(stopped.wait, 30)
    assert (await until(run, "cancelled")).verdict is None


async def test_taking_a_run_is_no_reason_for_a_heartbeat(
    working: Any, request_run: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim begins a lease; a second write of it, just when the run begins, is paid for by whoever waits."""
    beats, beat, go = [], service.heartbeat, threading.Event()

    async def counted(session: Any, run_id: str, attempt: int, *, lease_s: float) -> bool:
        beats.append(run_id)
        return await beat(session, run_id, attempt, lease_s=lease_s)

    monkeypatch.setattr(service, "heartbeat", counted)
    async with working(ScriptedReplayer(lambda stop: (go.wait(60), report(1))[1]), lease_s=600.0):
        run = await until(await request_run(), "running")
        await asyncio.sleep(0.5)
        assert beats == []
        go.set()
        await until(run, "done")


async def test_stopping_finishes_what_was_taken_and_takes_no_more(working: Any, request_run: Any, until: Any) -> None:
    go = threading.Event()

    def slow(stop: threading.Event) -> Report:
        assert go.wait(PATIENCE_S)
        return report(1)

    async with working(ScriptedReplayer(slow), jobs=1) as worker:
        taken = await until(await request_run(), "running")
        waiting = await request_run()
        worker.stop()
        await asyncio.sleep(0.3)
        go.set()
    assert (await until(taken, "done")).attempt == 1
    assert (await until(waiting, "queued")).attempt == 0


async def test_as_many_at_once_as_it_may(working: Any, request_run: Any, until: Any) -> None:
    together = threading.Barrier(3)

    def meet(stop: threading.Event) -> Report:
        together.wait(PATIENCE_S)
        return report(1)

    runs = [await request_run() for _ in range(3)]
    async with working(ScriptedReplayer(meet), jobs=3):
        for run in runs:
            await until(run, "done")


async def test_a_long_replay_keeps_its_lease(working: Any, request_run: Any, until: Any, store: Store) -> None:
    enough = threading.Event()

    def slow(stop: threading.Event) -> Report:
        assert enough.wait(PATIENCE_S)
        return report(1)

    async with working(ScriptedReplayer(slow), lease_s=15.0):
        run = await until(await request_run(), "running")

        async def renewed() -> Run | None:
            found: Run = await until(run, "running", "lost")
            return found if found.lease_until != run.lease_until else None

        now = await until_async(renewed)
        assert now is not None
        assert now.state == "running"
        assert now.lease_until > run.lease_until
        enough.set()
        done = await until(run, "done", "lost")
    assert (done.state, done.attempt) == ("done", 1)


async def test_it_serves_only_the_builds_it_was_told_to(working: Any, request_run: Any, until: Any) -> None:
    ours, other = await request_run("v2"), await request_run("v1")
    async with working(ScriptedReplayer(), only=("v2",)):
        await until(ours, "done")
        await asyncio.sleep(0.5)
        assert (await until(other, "queued")).attempt == 0


async def test_the_page_is_told_of_every_step(working: Any, request_run: Any, until: Any, database: Database) -> None:
    run, seen = await request_run(), threading.Event()
    async with Changes(database.app) as changes, changes.subscribe(run.id) as subscription:
        await subscription.wait(PATIENCE_S)  # begins with a wake-up: look, whatever happened before you came
        assert changes.listening
        async with working(ScriptedReplayer(lambda stop: (seen.wait(PATIENCE_S), report(1))[1])):
            assert await subscription.wait(PATIENCE_S)
            assert (await until(run, "running")).version == 2
            seen.set()
            assert await subscription.wait(PATIENCE_S)
            assert (await until(run, "done")).version == 3


async def test_the_worker_outlives_a_lost_connection(
    working: Any, request_run: Any, until: Any, database: Database
) -> None:
    async with working(ScriptedReplayer()):
        await until(await request_run(), "done")
        with psycopg.connect(database.superuser, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        await until(await request_run(), "done")


@pytest.mark.parametrize("committed", [False, True])
async def test_a_connection_that_is_lost_while_a_job_ends_leaves_nothing_behind(
    working: Any, request_run: Any, until: Any, database: Database, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """The worker lives on, so nobody would take its job for stalled."""
    execute, lost = PsycopgConnector.execute_query_async, []

    async def lose(self: PsycopgConnector, query: Any, **arguments: Any) -> None:
        if query != sql.queries["finish_job"] or lost:
            return await execute(self, query, **arguments)
        lost.append(arguments)
        if committed:
            await execute(self, query, **arguments)
        raise ConnectorException from psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(PsycopgConnector, "execute_query_async", lose)
    async with working(ScriptedReplayer()):
        await until(await request_run(), "done")
        with psycopg.connect(database.app, autocommit=True) as connection:

            async def gone() -> bool:
                jobs = "SELECT count(*) FROM procrastinate_jobs"
                return bool(lost) and connection.execute(jobs).fetchone() == (0,)

            await until_async(gone)
        await until(await request_run(), "done")


async def test_runs_asked_for_one_after_the_other_are_all_done(working: Any, request_run: Any, until: Any) -> None:
    async with working(ScriptedReplayer()):
        for _ in range(20):
            run = await until(await request_run(), "done")
            assert run.created_at <= run.started_at <= run.finished_at


SCRIPT = """
import asyncio, sys, time
from app.jobs.worker import Worker
from tests.jobs.conftest import ScriptedReplayer
from tests.incidents.evidence import report

def slow(stop):
    print("began", flush=True)
    time.sleep(600)
    return report(1)

asyncio.run(Worker(sys.argv[1], ScriptedReplayer(slow), lease_s=1.0).run())
"""


async def start(script: str, database: Database) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", script, database.app, stdout=subprocess.PIPE)


async def began(worker: Process) -> bool:
    assert worker.stdout is not None
    return await worker.stdout.readline() == b"began\n"


async def test_a_killed_worker_leaves_a_lost_run_that_another_finishes(  # complaint 25
    working: Any, request_run: Any, until: Any, database: Database, store: Store
) -> None:
    killed = await start(SCRIPT, database)
    run = await request_run()
    assert await began(killed)
    killed.kill()
    await killed.wait()
    async with working(ScriptedReplayer()):
        lost = await until(run, "lost")
        assert "no sign of life" in lost.error
        async with store.write() as session:
            await service.retry_run(session, run.id, who="ada", known=["v1"])
        done = await until(run, "done")
    assert done.attempt == 2
    async with store.read() as session:
        assert (await service.rows_of(session, done)).total == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(request_run: Any, until: Any, database: Database, number: int) -> None:
    script = SCRIPT.replace("time.sleep(600)", "time.sleep(1)").replace("lease_s=1.0", "lease_s=20.0")
    worker = await start(script, database)
    run = await request_run()
    assert await began(worker)
    worker.send_signal(number)
    async with asyncio.timeout(PATIENCE_S):
        assert await worker.wait() == 0
    assert (await until(run, "done")).attempt == 1


async def test_a_database_that_is_away_for_a_moment_makes_no_run_fail(  # row 25
    working: Any, request_run: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a soak: the evidence could not be read while the server was starting again."""
    read, times = service.evidence_read, 0

    async def away(*args: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            raise OperationalError("SELECT", None, Exception("connection refused"))
        return await read(*args)

    monkeypatch.setattr(service, "evidence_read", away)
    async with working(ScriptedReplayer()):
        done = await until(await request_run(), "done", "failed", "lost")
    assert (done.state, done.attempt) == ("done", 2)
