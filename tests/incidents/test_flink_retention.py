"""Imported event logs go by age and by size, runs whole; what an incident holds stays, and nothing comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from app.incidents import flink_retention, flink_runs, service
from app.incidents.audit_trail import AuditFilter, read_trail
from app.incidents.errors import IncidentError
from app.incidents.flink_opening import open_flink_incident
from app.incidents.flink_retention import Held, LogLimits, purge_logs, too_big
from app.incidents.flink_runs import RunFilter
from app.incidents.service import Store
from app.jobs.retention import Retention, keeping_house
from tests.fixtures.postgres import Database
from tests.flink.lines import traced_run
from tests.incidents.flink import bring_in
from tests.waiting import until_async

NOISE = b"no record"


@pytest.fixture
async def remover(database: Database) -> AsyncIterator[Store]:
    store = Store(database.purge)
    yield store
    await store.close()


@pytest.fixture
def logs(database: Database, tmp_path: Path) -> tuple[Path, Path]:
    """Two logs, and a run (`shared`) that goes on from the first into the second; both were imported just now."""
    shared = traced_run("shared", "k", 3_000, "s")
    first, second = tmp_path / "events-a.log", tmp_path / "events-b.log"
    first.write_bytes(b"\n".join([*traced_run("old", "k", 1_000, "o"), NOISE, *shared[:3]]) + b"\n")
    second.write_bytes(b"\n".join([*shared[3:], NOISE, *traced_run("new", "k", 9_000, "n"), NOISE]) + b"\n")
    bring_in(database.app, first, second)
    return first, second


def age(database: Database, *, runs: dict[str, int] | None = None, logs: dict[str, int] | None = None) -> None:
    """Let the last event of runs, and the import of logs, be so many days ago."""
    with psycopg.connect(database.superuser) as connection:
        connection.execute("UPDATE flink_runs SET last_ns = extract(epoch FROM now())::bigint * 1000000000")
        for ref, days in (runs or {}).items():
            connection.execute(
                "UPDATE flink_runs SET last_ns = last_ns - %s WHERE ref = %s", (days * 86_400 * 10**9, ref)
            )
        for name, days in (logs or {}).items():
            connection.execute(
                "UPDATE flink_logs SET created_at = created_at - make_interval(days => %(days)s),"
                " changed_at = changed_at - make_interval(days => %(days)s) WHERE name = %(name)s",
                {"days": days, "name": name},
            )


async def refs(store: Store) -> set[str]:
    async with store.read() as session:
        return {row.ref for row in (await flink_runs.list_runs(session, RunFilter())).items}


def lines(database: Database) -> list[tuple[int, bytes]]:
    with psycopg.connect(database.superuser) as connection:
        found = connection.execute("SELECT log_id, line FROM flink_records ORDER BY log_id, position").fetchall()
    return [(log, bytes(line)) for log, line in found]


async def test_runs_go_by_age_and_evidence_stays(
    store: Store, remover: Store, database: Database, logs: tuple[Path, Path]
) -> None:
    async with store.read() as session:
        (old,) = [row for row in (await flink_runs.list_runs(session, RunFilter())).items if row.ref == "old"]
    async with store.write() as session:
        incident = await open_flink_incident(session, old.id, who="ada")
    days = LogLimits(days=30)
    # Their events are old, but the logs came just now.
    age(database, runs={"old": 40, "shared": 40, "new": 5})
    assert (await purge_logs(remover, days, who="ada")).total() == 0
    # Now one of them is old: of the run that goes on in the other, nothing goes.
    age(database, runs={"old": 40, "shared": 40, "new": 5}, logs={"events-a.log": 40})
    async with remover.read() as session:
        assert (await flink_retention.due(session, days)).runs == 1
    gone = await purge_logs(remover, days, who="ada")
    assert gone == {"flink_runs": 1, "flink_records": 7}  # with the noise behind it
    assert await refs(store) == {"shared", "new"}
    async with store.read() as session:
        (file,) = await service.evidence_of(session, incident)
        data = await service.evidence_bytes(session, file)
        trail = await read_trail(session, AuditFilter(what="event_log.purged"))
    assert data.splitlines() == traced_run("old", "k", 1_000, "o")
    assert sum(one.detail["removed"].get("flink_records", 0) for one in trail.entries) == 7
    age(database, runs={"old": 40, "shared": 40, "new": 5}, logs={"events-b.log": 40})
    assert (await purge_logs(remover, days, who="ada"))["flink_runs"] == 1
    assert await refs(store) == {"new"}
    # What was read before does not come back.
    assert [one.already for one in bring_in(database.app, *logs)] == [True, True]
    assert await refs(store) == {"new"}


async def test_the_last_lines_of_no_run_go_once_their_log_is_over(
    remover: Store, database: Database, logs: tuple[Path, Path]
) -> None:
    age(database, runs={"new": 5}, logs={"events-b.log": 40})
    with psycopg.connect(database.superuser) as connection:
        connection.execute("UPDATE flink_logs SET changed_at = now()")
    before = lines(database)
    await purge_logs(remover, LogLimits(days=30), who="ada")
    assert lines(database) == before  # a run of the log stands before all of its noise, and it still grows
    age(database, runs={"new": 5}, logs={"events-b.log": 40})
    await purge_logs(remover, LogLimits(days=30), who="ada")
    assert [line for _, line in lines(database)].count(NOISE) == 1


async def test_whole_logs_go_for_want_of_room(
    store: Store, remover: Store, database: Database, logs: tuple[Path, Path]
) -> None:
    room = LogLimits(size=logs[1].stat().st_size)
    assert (await purge_logs(remover, room, who="ada")).total() == 0  # both changed within a day
    age(database, logs={"events-a.log": 3, "events-b.log": 2})
    async with remover.read() as session:
        assert [log.name for log in (await flink_retention.due(session, room)).logs] == ["events-a.log"]
    assert (await purge_logs(remover, room, who="ada"))["flink_runs"] == 2
    assert await refs(store) == {"new"}
    assert len({log for log, _ in lines(database)}) == 1
    assert (await purge_logs(remover, room, who="ada")).total() == 0


@pytest.mark.parametrize(("limit", "dropped"), [(100, []), (99, [1]), (60, [1]), (59, [1, 3]), (0, [1, 3])])
def test_the_longest_unchanged_goes_first_and_what_grows_stays(limit: int, dropped: list[int]) -> None:
    held = [Held(1, "a", 40, True), Held(2, "b", 30, False), Held(3, "c", 30, True)]
    assert [log.id for log in too_big(held, limit)] == dropped


async def test_only_the_role_of_retention_may(store: Store, database: Database, logs: tuple[Path, Path]) -> None:
    with pytest.raises(IncidentError, match="run `hindcast migrate`"):
        await purge_logs(store, LogLimits(days=30), who="ada")
    assert len(await refs(store)) == 3


async def test_a_worker_purges_logs_without_purging_incidents(
    store: Store, database: Database, logs: tuple[Path, Path]
) -> None:
    age(database, runs={"old": 40}, logs={"events-a.log": 40})
    async with keeping_house(Retention(database.purge, None, logs=LogLimits(days=30))):

        async def gone() -> bool:
            return "old" not in await refs(store)

        await until_async(gone)
    assert await refs(store) == {"shared", "new"}
