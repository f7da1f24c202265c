"""One listening connection serves any number of waiting pages, and its loss is only a delay."""

import asyncio

import psycopg
import pytest

from app.incidents import service
from app.incidents.changes import Changes
from app.incidents.service import Incident, Run, Store
from tests.fixtures.postgres import Database
from tests.incidents.evidence import recording
from tests.waiting import PATIENCE_S, until_async


@pytest.fixture
async def incident(store: Store) -> Incident:
    async with store.write() as session:
        return await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")


async def request(store: Store, incident: Incident) -> Run:
    async with store.write() as session:
        return await service.request_replay(session, incident, "v1", who="ada", known=["v1"])


async def cancel(store: Store, run: Run) -> None:
    async with store.write() as session:
        await service.cancel_run(session, run.id, who="ada")


async def listening(changes: Changes) -> None:
    """Wait until the listener is up, by the wake-up that it gives everybody then."""
    async with changes.subscribe("anything") as subscription:

        async def up() -> bool:
            return changes.listening or (await subscription.wait(0.5) and changes.listening)

        await until_async(up)


async def test_a_change_wakes_those_who_follow_its_run_or_incident(
    store: Store, incident: Incident, database: Database
) -> None:
    run = await request(store, incident)
    async with Changes(database.app) as changes:
        await listening(changes)
        async with (
            changes.subscribe(run.id) as of_run,
            changes.subscribe(incident.id) as of_incident,
            changes.subscribe("run_other") as of_other,
        ):
            await cancel(store, run)
            assert await of_run.wait(PATIENCE_S)
            assert await of_incident.wait(PATIENCE_S)
            assert not await of_other.wait(0.1)
            assert not await of_run.wait(0.1)  # told once


async def test_a_change_before_the_wait_is_not_missed(store: Store, incident: Incident, database: Database) -> None:
    run = await request(store, incident)
    async with Changes(database.app) as changes:
        await listening(changes)
        async with changes.subscribe(run.id) as subscription:
            await cancel(store, run)

            async def told() -> bool:
                return subscription._changed.is_set()

            await until_async(told)  # while the page is being written
            assert await subscription.wait(0)


async def test_states_that_a_follower_leaves_out_do_not_wake_it(
    store: Store, incident: Incident, database: Database
) -> None:
    run = await request(store, incident)
    async with Changes(database.app) as changes:
        await listening(changes)
        async with (
            changes.subscribe(run.id) as every,
            changes.subscribe(run.id, but=("queued", "running")) as ends,
        ):
            async with store.write() as session:
                await service.claim_run(session, run.id, worker="w1", lease_s=60)
            assert await every.wait(60)
            assert not await ends.wait(0.1)
            await cancel(store, run)
            assert await ends.wait(60)


async def test_who_leaves_states_out_looks_all_the_same_when_changes_may_be_missed(database: Database) -> None:
    async with Changes(database.app) as changes, changes.subscribe("run_x", but=("running",)) as subscription:
        assert await subscription.wait(60)  # the listener has just come: what was said before, nobody heard


async def test_what_was_rolled_back_wakes_nobody(store: Store, incident: Incident, database: Database) -> None:
    run = await request(store, incident)
    async with Changes(database.app) as changes:
        await listening(changes)
        async with changes.subscribe(run.id) as subscription:
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with store.write() as session:
                    await service.cancel_run(session, run.id, who="ada")
                    raise ZeroDivisionError
            assert not await subscription.wait(0.3)


async def test_fifty_pages_take_one_connection(
    store: Store, incident: Incident, database: Database
) -> None:  # complaint 43
    run = await request(store, incident)
    async with Changes(database.app) as changes:
        await listening(changes)

        async def follow() -> bool:
            async with changes.subscribe(run.id) as subscription:
                return await subscription.wait(PATIENCE_S)

        pages = [asyncio.create_task(follow()) for _ in range(50)]

        async def all_follow() -> bool:
            return changes.subscribers == 50

        await until_async(all_follow)
        with psycopg.connect(database.superuser) as connection:
            listeners = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND query LIKE 'LISTEN%%'"
            assert connection.execute(listeners, (database.name,)).fetchone() == (1,)
        await cancel(store, run)
        assert all(await asyncio.gather(*pages))
        assert changes.subscribers == 0


async def test_a_lost_connection_comes_back_and_everybody_looks(
    store: Store, incident: Incident, database: Database
) -> None:
    run = await request(store, incident)
    async with Changes(database.app) as changes:
        await listening(changes)
        async with changes.subscribe(run.id) as subscription:
            with psycopg.connect(database.superuser, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
                )
            assert await subscription.wait(PATIENCE_S)  # nobody was told of anything; they look all the same
            await listening(changes)
            await subscription.wait(0.1)
            await cancel(store, run)
            assert await subscription.wait(PATIENCE_S)


async def test_without_a_database_waiting_is_polling() -> None:
    async with Changes("postgresql://nobody@127.0.0.1:1/none") as changes:
        async with changes.subscribe("run_x") as subscription:
            await asyncio.sleep(0.2)
            await subscription.wait(0.1)
            assert await subscription.wait(PATIENCE_S)  # after a second: look for yourself
        assert not changes.listening


async def test_stopping_wakes_everybody(database: Database) -> None:
    changes = Changes(database.app)
    await changes.start()
    await listening(changes)
    async with changes.subscribe("run_x") as subscription:
        waiting = asyncio.create_task(subscription.wait(PATIENCE_S))
        await asyncio.sleep(0.05)
        await changes.stop()
        assert await waiting
