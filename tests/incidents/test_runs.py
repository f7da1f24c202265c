"""The life of a run in the database: one worker at a time, a result once, and nothing lost when a worker dies."""

import asyncio

import pytest

from app.incidents import service
from app.incidents.columns import dumps
from app.incidents.models import RunState
from app.incidents.service import Filters, Incident, Report, Run, Store
from app.replay.verdict import Outcome, Verdict
from tests.incidents.evidence import recording, report
from tests.waiting import PATIENCE_S

KNOWN = ("v1", "v2")
DIFFERENCES = Filters(only_differences=True)


@pytest.fixture
async def incident(store: Store) -> Incident:
    async with store.write() as session:
        return await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")


async def request(store: Store, incident: Incident, build: str = "v1") -> Run:
    async with store.write() as session:
        return await service.request_replay(session, incident, build, who="ada", known=KNOWN)


async def claim(store: Store, run: Run, lease_s: float = 30) -> Run | None:
    async with store.write() as session:
        return await service.claim_run(session, run.id, worker="w1", lease_s=lease_s)


async def finish(store: Store, run: Run, attempt: int, rows: int = 3) -> bool:
    async with store.write() as session:
        return await service.finish_run(session, run.id, attempt, report(rows, different=frozenset({1})))


async def load(store: Store, run: Run) -> Run:
    async with store.read() as session:
        return await service.get_run(session, run.id)


async def jobs(store: Store) -> list[str]:
    from sqlalchemy import text

    async with store.read() as session:
        return list(await session.scalars(text("SELECT args->>'run_id' FROM procrastinate_jobs ORDER BY id")))


async def test_a_run_goes_from_queued_to_done(store: Store, incident: Incident) -> None:
    run = await request(store, incident)
    assert (run.state, run.number, run.attempt, run.version) == ("queued", 1, 0, 1)
    assert await jobs(store) == [run.id]
    taken = await claim(store, run)
    assert taken is not None
    assert (taken.state, taken.attempt, taken.worker) == ("running", 1, "w1")
    assert taken.lease_until is not None
    assert await finish(store, run, 1)
    done = await load(store, run)
    assert (done.state, done.outcome, done.exit_code, done.first_divergence) == ("done", "diverged", 1, 1)
    assert done.verdict == report(3, different=frozenset({1})).verdict.as_json()
    assert (done.lease_until, done.version) == (None, 3)
    assert done.created_at <= (done.started_at or 0) <= (done.finished_at or 0)


async def test_runs_are_numbered_per_incident_even_when_asked_for_at_once(store: Store, incident: Incident) -> None:
    made = await asyncio.gather(*(request(store, incident) for _ in range(6)))
    assert sorted(run.number for run in made) == [1, 2, 3, 4, 5, 6]
    async with store.read() as session:
        assert [run.number for run in await service.runs_of(session, incident)] == [6, 5, 4, 3, 2, 1]
        latest = await service.latest_runs(session, [incident])
        assert latest[incident.id].number == 6
        assert (await service.get_run_by_number(session, incident, 4)).number == 4


async def test_an_unknown_build_leaves_no_run_and_no_job(store: Store, incident: Incident) -> None:
    with pytest.raises(service.UnknownBuild, match="names no build 'v3'; known builds: v1, v2"):
        await request(store, incident, "v3")
    async with store.read() as session:
        assert await service.runs_of(session, incident) == []
    assert await jobs(store) == []


async def test_row_and_job_are_one_transaction(store: Store, incident: Incident) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with store.write() as session:
            await service.request_replay(session, incident, "v1", who="ada", known=KNOWN)
            raise ZeroDivisionError
    async with store.read() as session:
        assert await service.runs_of(session, incident) == []
    assert await jobs(store) == []


async def test_of_many_workers_one_takes_a_run(store: Store, incident: Incident) -> None:
    run = await request(store, incident)
    taken = await asyncio.gather(*(claim(store, run) for _ in range(5)))
    assert sum(run is not None for run in taken) == 1


async def test_a_late_worker_writes_nothing(store: Store, incident: Incident) -> None:  # complaint 25
    run = await request(store, incident)
    assert await claim(store, run, lease_s=0.05)
    await asyncio.sleep(0.1)
    async with store.write() as session:
        assert await service.sweep_lost(session) == [run.id]
    lost = await load(store, run)
    assert (lost.state, lost.lease_until) == ("lost", None)
    assert "retry" in (lost.error or "")
    async with store.write() as session:
        retried = await service.retry_run(session, run.id, who="ada", known=KNOWN)
    assert (retried.state, retried.error) == ("queued", None)
    assert await jobs(store) == [run.id, run.id]
    again = await claim(store, run)
    assert again is not None
    assert again.attempt == 2
    # The first worker was not dead, only slow: it comes back now.
    async with store.write() as session:
        assert not await service.heartbeat(session, run.id, 1, lease_s=30)
        assert not await service.fail_run(session, run.id, 1, "late")
    assert not await finish(store, run, 1)
    async with store.read() as session:
        assert (await service.rows_of(session, run)).total == 0
    assert await finish(store, run, 2)
    assert not await finish(store, run, 2)  # nothing twice


async def test_heartbeats_keep_a_run_alive_and_tell_no_page(store: Store, incident: Incident) -> None:
    run = await request(store, incident)
    await claim(store, run, lease_s=0.05)
    async with store.write() as session:
        assert await service.heartbeat(session, run.id, 1, lease_s=30)
    await asyncio.sleep(0.1)
    async with store.write() as session:
        assert await service.sweep_lost(session) == []
    assert (await load(store, run)).version == 2


async def test_sweeping_waits_for_nobody(store: Store, incident: Incident) -> None:  # complaint 25
    first, second = await request(store, incident), await request(store, incident)
    await claim(store, first, lease_s=0.01)
    await claim(store, second, lease_s=0.01)
    await asyncio.sleep(0.05)
    async with store.write() as holder:
        await service.heartbeat(holder, first.id, 1, lease_s=30)  # its row stays locked until this block ends
        async with asyncio.timeout(PATIENCE_S), store.write() as session:
            assert await service.sweep_lost(session) == [second.id]


@pytest.mark.parametrize(("end", "state"), [(service.fail_run, "failed"), (service.time_out_run, "timed_out")])
async def test_a_run_that_ends_without_a_verdict_may_be_tried_again(
    store: Store, incident: Incident, end: object, state: str
) -> None:
    run = await request(store, incident)
    await claim(store, run)
    async with store.write() as session:
        assert await end(session, run.id, 1, "Traceback: \0 boom")  # type: ignore[operator]
    ended = await load(store, run)
    assert (ended.state, ended.error, ended.verdict) == (state, "Traceback: \u2400 boom", None)
    async with store.write() as session:
        await service.retry_run(session, run.id, who="ada", known=KNOWN)
    assert (await load(store, run)).state == "queued"


async def test_a_cancelled_run_records_nothing(store: Store, incident: Incident) -> None:
    waiting, running = await request(store, incident), await request(store, incident)
    await claim(store, running)
    for run in (waiting, running):
        async with store.write() as session:
            cancelled = await service.cancel_run(session, run.id, who="ada")
        assert cancelled.state == "cancelled"
        assert cancelled.finished_at is not None
    assert await claim(store, waiting) is None
    assert not await finish(store, running, 1)
    with pytest.raises(service.WrongState, match="cannot cancel a run that is cancelled"):
        async with store.write() as session:
            await service.cancel_run(session, waiting.id, who="ada")


async def test_what_is_done_is_done(store: Store, incident: Incident) -> None:
    run = await request(store, incident)
    await claim(store, run)
    await finish(store, run, 1)
    with pytest.raises(service.WrongState, match="cannot retry a run that is done"):
        async with store.write() as session:
            await service.retry_run(session, run.id, who="ada", known=KNOWN)


async def test_a_run_that_the_queue_forgot_is_queued_again(store: Store, incident: Incident) -> None:
    from sqlalchemy import text

    kept, lost = await request(store, incident), await request(store, incident)
    async with store.write() as session:
        await session.execute(text("DELETE FROM procrastinate_jobs WHERE args->>'run_id' = :run"), {"run": lost.id})
        assert await service.requeue_forgotten(session, older_s=60) == []
        assert await service.requeue_forgotten(session, older_s=0) == [lost.id]
    assert sorted(await jobs(store)) == sorted([kept.id, lost.id])


async def test_a_reproduced_run_vouches_for_what_it_read(store: Store, incident: Incident) -> None:
    key = "get 'sc\0re' \ud800 \\u0000 \\ \U0001f600"  # agents name their memory as they like
    doubtful = {"read": key, "why": "overwritten later", "vindicated": False, "proven": True}

    async def run_with(outcome: Outcome, *reads: dict[str, object]) -> Run:
        run = await request(store, incident)
        await claim(store, run)
        async with store.write() as session:
            told = Verdict(outcome, "made up", reads=reads, notes=(key,))
            await service.finish_run(session, run.id, 1, Report(told))
        return run

    await run_with(Outcome.DIVERGED, {**doubtful, "read": "keys"})  # a run that differs vouches for nothing
    await run_with(Outcome.REPRODUCED)  # nothing that it read was in doubt
    await run_with(Outcome.REPRODUCED, doubtful)
    await run_with(Outcome.REPRODUCED, doubtful, {**doubtful, "read": "unproven", "proven": False})
    async with store.write() as session:
        other = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
        elsewhere = await service.request_replay(session, other, "v1", who="ada", known=KNOWN)
    here = await request(store, incident)
    async with store.read() as session:
        assert await service.vindicated_reads(session, here) == {key}
        assert {name: voucher.number for name, voucher in (await service.vouchers(session, here)).items()} == {key: 3}
        assert await service.vindicated_reads(session, elsewhere) == frozenset()


def test_every_state_says_whether_it_is_an_end() -> None:
    assert [state.value for state in RunState if not state.finished] == ["queued", "running"]
    assert [state.value for state in RunState if state.retryable] == ["failed", "lost", "cancelled", "timed_out"]


# Windows on the timeline ---------------------------------------------------------------------------------------------


@pytest.fixture
async def long_run(store: Store, incident: Incident) -> Run:
    """A run of 10,000 rows, of which every thousandth differs."""
    run = await request(store, incident)
    await claim(store, run)
    async with store.write() as session:
        assert await service.finish_run(
            session, run.id, 1, report(10_000, different=frozenset(range(500, 10_000, 1000)))
        )
    return await load(store, run)


async def test_windows_cover_the_timeline_without_gap_or_overlap(store: Store, long_run: Run) -> None:
    async with store.read() as session:
        window = await service.rows_of(session, long_run, limit=999)
        assert (window.total, window.previous, window.next) == (10_000, None, 999)
        seen = [row.ordinal for row in window.rows]
        while window.next is not None:
            before = window
            window = await service.rows_of(session, long_run, start=window.next, limit=999)
            assert window.previous == before.rows[0].ordinal
            seen += [row.ordinal for row in window.rows]
        assert seen == list(range(10_000))


async def test_a_link_to_an_event_finds_it_in_its_window(store: Store, long_run: Run) -> None:
    async with store.read() as session:
        for at in (0, 1, 150, 5_000, 9_998, 9_999):
            for limit in (1, 2, 3, 200):
                window = await service.rows_around(session, long_run, at=at, limit=limit)
                assert at in [row.ordinal for row in window.rows]
                assert len(window.rows) <= limit
        far = await service.rows_around(session, long_run, at=123_456)
        assert [row.ordinal for row in far.rows][-1] == 9_999


async def test_differences_alone_and_their_neighbours(store: Store, long_run: Run) -> None:
    async with store.read() as session:
        window = await service.rows_of(session, long_run, filters=DIFFERENCES, limit=4)
        assert ([row.ordinal for row in window.rows], window.total) == ([500, 1500, 2500, 3500], 10)
        assert all(row.differs for row in window.rows)
        found = await service.neighbours(session, long_run, 1500)
        assert (found.previous, found.next) == (500, 2500)
        found = await service.neighbours(session, long_run, 9_999)
        assert (found.previous, found.next) == (9_500, None)
        around = await service.rows_around(session, long_run, at=2600, filters=DIFFERENCES, limit=5)
        assert [row.ordinal for row in around.rows] == [1500, 2500, 3500, 4500, 5500]


async def test_a_window_that_is_whole_answers_as_the_database_does(store: Store, incident: Incident) -> None:
    """Whatever the window: what is read off it, where it holds all rows, is what a query finds."""
    whole = 0
    for rows, different in ((0, ()), (1, (0,)), (12, ()), (12, (0, 5, 6, 11)), (200, (7,)), (201, (7, 200))):
        run = await request(store, incident)
        await claim(store, run)
        async with store.write() as session:
            await service.finish_run(session, run.id, 1, report(rows, different=frozenset(different)))
        async with store.read() as session:
            for window in (
                await service.rows_of(session, run),
                await service.rows_of(session, run, start=3),
                await service.rows_of(session, run, limit=5),
                await service.rows_of(session, run, filters=DIFFERENCES),
                await service.rows_of(session, run, filters=Filters(text="nowhere")),
                await service.rows_around(session, run, at=6),
                await service.rows_around(session, run, at=6, limit=4),
                await service.rows_before(session, run, end=6),
                await service.rows_before(session, run, end=201),
            ):
                whole += window.whole
                assert window.whole <= (len(window.rows) == rows)
                assert await service.facets_of(session, run, window=window) == await service.facets_of(session, run)
                for first, last in ((0, rows), (5, 5), (3, 6), (rows, rows)):
                    found = await service.neighbours(session, run, first, last, window=window)
                    assert found == await service.neighbours(session, run, first, last)
    assert whole > 10


async def test_the_bodies_of_what_differs_are_loaded_and_no_others(store: Store, long_run: Run) -> None:
    async with store.read() as session:
        window = await service.rows_of(session, long_run, start=400, limit=200)
        bodies = await service.with_bodies(session, long_run, window.rows)
        assert list(bodies) == [500]
        assert bodies[500].fields
        equal = await service.rows_of(session, long_run, start=0, limit=200)
        assert await service.with_bodies(session, long_run, equal.rows) == {}


async def test_bodies_load_only_when_asked_for(store: Store, long_run: Run) -> None:  # complaint 38
    async with store.read() as session:
        light = (await service.rows_of(session, long_run, limit=1)).rows[0]
        with pytest.raises(Exception, match="recorded"):
            _ = light.recorded
    async with store.read() as session:
        full = (await service.rows_of(session, long_run, start=500, limit=1, bodies=True)).rows[0]
        assert full.recorded == (await service.get_row(session, long_run, 500)).recorded
        assert full.recorded is not None
        assert full.recorded["attributes"]["prompt"].startswith("hello \0 \ud800 \t\\N \n")  # exactly as it was
        assert full.fields == [{"name": "prompt", "recorded": "a", "replayed": None, "state": "changed"}]
        with pytest.raises(service.NotFound, match="row '10000'"):
            await service.get_row(session, long_run, 10_000)


async def test_a_window_of_ten_thousand_rows_is_a_window(store: Store, incident: Incident) -> None:  # complaint 37
    run = await request(store, incident)
    await claim(store, run)
    async with store.write() as session:
        await service.finish_run(session, run.id, 1, report(10_000, different=frozenset({7})))
    async with store.read() as session:
        window = await service.rows_of(session, run, start=5000, limit=200)
    assert [row.ordinal for row in window.rows] == list(range(5000, 5200))


def test_json_is_pure_ascii() -> None:
    assert dumps({"a": "\0\ud800é"}) == '{"a":"\\u0000\\ud800\\u00e9"}'
