"""What is collected goes day by day, by age and by size; evidence stays."""

from __future__ import annotations

import psycopg
import pytest

from app.incidents import live, retention, service
from app.incidents.collecting import Intake
from app.incidents.retention import Day, too_much
from app.incidents.service import Store
from tests.fixtures.postgres import Database
from tests.incidents.live import Topics
from tests.incidents.tracing import attempt

DAYS = [Day(day, 100) for day in range(90, 101)]


@pytest.mark.parametrize(
    ("keep_days", "keep_bytes", "dropped"),
    [
        (10, 10_000, []), (7, 10_000, [90, 91, 92]), (10, 1_000, [90]), (10, 350, list(range(90, 98))),
        (1, 0, list(range(90, 100))),
    ],
)  # fmt: skip
def test_what_is_too_old_or_too_much_is_dropped_oldest_first(
    keep_days: int, keep_bytes: int, dropped: list[int]
) -> None:
    assert [day.day for day in too_much(DAYS, 100, keep_days=keep_days, keep_bytes=keep_bytes)] == dropped


def test_days_are_told_as_people_write_them() -> None:
    assert Day(20_000, 1).date == "2024-10-04"


async def test_a_day_is_dropped_whole_and_evidence_stays(store: Store, database: Database) -> None:  # complaint 19
    async with store.read() as session:
        before = await retention.today(session)
    intake, topics = Intake(database.app, "p"), Topics()
    intake.positions()
    told = attempt(b"k", 0, 100)
    intake.store([topics.batch("traces", [(b"k", value) for value in told.values])])
    async with store.write() as session:
        incident = await live.open_incident(session, who="ada", known=["p"], pipeline="p", entity_key=b"k")
        days = await retention.days(session)
        today = days[0].day
        assert before <= today <= await retention.today(session)  # midnight may have passed
        assert [day.day for day in days] == [today, today + 1]
        assert days[0].size > 8192
    with psycopg.connect(database.owner) as connection:  # as if it were tomorrow
        for table in ("segments", "attempts", "keyed_records", "undecodable", "snapshots"):
            connection.execute(f"DROP TABLE {table}_{today + 1}")
        connection.execute("SELECT hindcast_add_day(%s)", (today - 1,))
        connection.execute(
            "WITH gone AS (DELETE FROM attempts RETURNING *) INSERT INTO attempts SELECT id - (1::bigint << 40),"
            " clock_ms, seq, intent, shape_id, entity_key, places, more_intents FROM gone"
        )
    async with store.write() as session:
        await retention.drop_day(session, today - 1)
    async with store.read() as session:
        assert (await live.list_activations(session, live.ActivationFilter())).items == ()
        assert [day.day for day in await retention.days(session)] == [today]
        files = await service.evidence_of(session, incident)
        assert [file.role for file in files] == ["traces"]
        assert await service.evidence_bytes(session, files[0])
    intake.positions()
    intake.store([topics.batch("traces", [(b"k", value) for value in attempt(b"k", 1, 200).values])])
    intake.close()
    async with store.read() as session:
        assert len((await live.list_activations(session, live.ActivationFilter())).items) == 1


async def test_only_days_that_are_over_can_be_dropped(store: Store) -> None:
    async with store.write() as session:
        today = await retention.today(session)
        for day in (today, today + 1):
            with pytest.raises(Exception, match="is not over"):
                async with session.begin_nested():
                    await retention.drop_day(session, day)
        await retention.drop_day(session, today - 5)  # nothing there: nothing happens


def test_the_application_can_neither_make_nor_drop_tables_otherwise(database: Database) -> None:
    with psycopg.connect(database.app, autocommit=True) as connection:
        connection.execute("SELECT hindcast_add_day(20000)")
        for statement in (
            "DROP TABLE attempts_20000",
            "CREATE TABLE attempts_1 (id bigint)",
            "TRUNCATE segments",
            "DELETE FROM segments",
            "UPDATE segments SET size = 0",
            "ALTER TABLE segments DETACH PARTITION segments_20000",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
        for day in (-1, 5_000_000):
            with pytest.raises(psycopg.Error, match="is no day since 1970"):
                connection.execute("SELECT hindcast_add_day(%s)", (day,))
    with psycopg.connect(database.owner) as connection, pytest.raises(psycopg.Error, match="only ever added to"):
        connection.execute("DELETE FROM segments")
