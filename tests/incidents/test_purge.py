"""Only what was closed long enough ago goes, whole, over the one role that may, and leaves a tombstone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy import select

from app.incidents import cases, purge, service
from app.incidents.errors import Purged
from app.incidents.models import AuditEvent
from app.incidents.service import Incident, Store
from app.jobs.retention import Retention, keeping_house, purge_once
from tests.fixtures.postgres import Database
from tests.incidents.evidence import recording, report
from tests.waiting import until_async


@pytest.fixture
async def remover(database: Database) -> AsyncIterator[Store]:
    store = Store(database.purge)
    yield store
    await store.close()


async def made(
    store: Store, database: Database, *, status: str = "closed", days: int = 40, pinned: bool = False
) -> Incident:
    """An incident of that status, that was closed so many days ago."""
    async with store.write() as session:
        incident = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
        changes = {"status": status, "pinned": pinned}
        incident = await cases.change_case(session, incident, changes, revision=1, who="ada")
    with psycopg.connect(database.superuser) as connection:
        connection.execute(
            "UPDATE incidents SET closed_at = closed_at - make_interval(days => %s) WHERE id = %s", (days, incident.id)
        )
    return incident


async def ids(store: Store) -> set[str]:
    async with store.read() as session:
        return {one.id for one in (await service.list_incidents(session)).items}


# row 19: an open or pinned incident is never purged; purge lists what it will remove first
async def test_only_what_was_closed_and_is_not_pinned_goes(store: Store, remover: Store, database: Database) -> None:
    old = await made(store, database)
    kept = {(await made(store, database, status=status)).id for status in ("open", "contained", "explained")} | {
        (await made(store, database, pinned=True)).id,
        (await made(store, database, days=5)).id,
    }
    busy = await made(store, database)
    async with store.write() as session:
        run = await service.request_replay(session, old, "b", who="ada", known=["b"])
        await service.request_replay(session, busy, "b", who="ada", known=["b"])
    async with store.write() as session:
        claimed = await service.claim_run(session, run.id, worker="w", lease_s=60)
        assert claimed is not None
    async with store.write() as session:
        assert await service.finish_run(session, run.id, 1, report(5, different=frozenset({2})))
    async with remover.read() as session:
        (doomed,) = await purge.purgeable(session, closed_days=30)
    assert (doomed.id, doomed.title, doomed.files, doomed.runs) == (old.id, old.title, 3, 1)
    assert await ids(store) == {old.id, busy.id} | kept
    assert await purge_once(remover, 30) == [old.id]
    assert await ids(store) == {busy.id} | kept
    assert await purge_once(remover, 30) == []
    async with store.read() as session:
        with pytest.raises(Purged) as caught:
            await service.get_incident(session, old.id)
        assert caught.value.why == "purged: retention"
        (stone,) = await purge.tombstones(session)
        assert (stone.subject, stone.who, stone.what) == (old.id, "worker", "purged")
        assert stone.detail["removed"] == {"run_rows": 5, "case_changes": 1, "evidence": 3, "runs": 1, "incidents": 1}
        assert stone.detail["evidence"] == [file.sha256 for file in recording("a01_fraud_completed")]
        events = await session.scalars(select(AuditEvent).where(AuditEvent.what == "incident.purged"))
        assert [event.subject for event in events] == [old.id]
        # The files are those of the others, too: not one byte of theirs is gone.
        for file in await service.evidence_of(session, busy):
            assert await service.evidence_bytes(session, file)


async def test_files_go_with_the_last_incident_that_holds_them(
    store: Store, remover: Store, database: Database
) -> None:
    await made(store, database)
    await purge_once(remover, 30)
    with psycopg.connect(database.app) as connection:
        assert connection.execute("SELECT count(*) FROM blobs").fetchone() == (0,)


async def test_what_was_reopened_meanwhile_stays(store: Store, remover: Store, database: Database) -> None:
    incident = await made(store, database)
    async with store.write() as session:
        await cases.change_case(session, incident, {"status": "open"}, revision=2, who="ada")
    async with remover.write() as session:
        assert await purge.purge(session, [incident.id], closed_days=30, who="w", reason="r") == []
    assert await ids(store) == {incident.id}


def test_only_the_role_of_retention_removes_and_it_changes_nothing(database: Database) -> None:
    with psycopg.connect(database.purge, autocommit=True) as connection:
        for statement in ("DELETE FROM evidence", "DELETE FROM blobs", "DELETE FROM segments"):
            connection.execute(statement)
        for statement in (
            "UPDATE blobs SET size = 0", "UPDATE evidence SET name = ''", "DELETE FROM audit_events",
            "UPDATE audit_events SET who = ''", "DELETE FROM audit_links", "DELETE FROM tombstones",
            "UPDATE tombstones SET who = ''", "TRUNCATE evidence", "UPDATE incidents SET title = ''",
            "CREATE TABLE mine (id int)", "ALTER TABLE blobs DISABLE TRIGGER ALL", "SELECT 1 FROM procrastinate_jobs",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    for url in (database.app, database.owner, database.superuser):
        for table in ("evidence", "blobs", "tombstones", "audit_events"):
            with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match=r"permission|only ever added"):
                connection.execute(f"DELETE FROM {table}")  # type: ignore[call-overload]


async def test_a_role_says_whether_it_may(store: Store, remover: Store, database: Database) -> None:
    owner = Store(database.owner)
    for one, may in ((store, False), (remover, True), (owner, False)):
        async with one.read() as session:
            assert await purge.may_remove(session) is may
    await owner.close()


async def test_a_worker_keeps_house_only_where_it_is_told_to(store: Store, database: Database) -> None:
    incident = await made(store, database)
    async with keeping_house(None):
        assert await ids(store) == {incident.id}
    async with keeping_house(Retention(database.purge, 30)):

        async def gone() -> bool:
            return not await ids(store)

        await until_async(gone)
    assert await ids(store) == set()
