"""The audit trail is only added to, and whatever is done to it behind its back shows."""

from __future__ import annotations

import asyncio
import logging

import psycopg
import pytest

from app.incidents import audit_chain
from app.incidents.audit import ORIGIN, Action, record_event
from app.incidents.audit_chain import Head, noting, verify
from app.incidents.service import Store
from tests.fixtures.postgres import Database
from tests.waiting import until_async

ODD = 'quotes " \\ / \b\f\n\r\t \x01\x7f é \u2028 \U0001f600'


async def record(store: Store, who: str = "operator", **detail: object) -> None:
    async with store.write() as session:
        record_event(session, Action.EVIDENCE_READ, who=who, subject="inc_x", detail=detail)


async def trail(store: Store, entries: int = 5) -> Head:
    for number in range(entries):
        await record(store, number=number)
    async with store.read() as session:
        return await audit_chain.head(session)


async def faults(store: Store, *noted: Head) -> str:
    async with store.read() as session:
        return "\n".join((await verify(session, noted=noted)).faults)


def tamper(database: Database, *statements: str) -> None:
    """Do as the superuser what nobody else can: the triggers are switched off for this session."""
    with psycopg.connect(database.superuser, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        for statement in statements:
            connection.execute(statement)


async def test_an_empty_trail_is_whole(store: Store) -> None:
    async with store.read() as session:
        assert await verify(session) == audit_chain.Verified(0, audit_chain.EMPTY, ())


async def test_every_entry_is_linked_whatever_it_says(store: Store) -> None:
    ORIGIN.set("203.0.113.7")
    for detail in ({}, {"text": ODD, "nul": "\0", "alone": "\ud800", "deep": [{"a": None}], "big": 10**30, "f": 0.1}):
        await record(store, who=ODD + "\0", **detail)
    ORIGIN.set(None)
    await record(store)
    async with store.read() as session:
        found = await verify(session)
        assert (found.entries, found.faults) == (3, ())
        assert found.head == await audit_chain.head(session)


async def test_entries_written_at_once_form_one_chain(store: Store) -> None:
    await asyncio.gather(*(record(store, number=number) for number in range(20)))
    async with store.read() as session:
        found = await verify(session)
    assert (found.entries, found.head.position, found.faults) == (20, 20, ())


async def test_what_is_rolled_back_leaves_no_link(store: Store) -> None:
    async with store.write() as session:
        record_event(session, Action.EVIDENCE_READ, who="x", subject="y")
        await session.flush()
        await session.rollback()
    assert (await trail(store, 1)).position == 1
    assert await faults(store) == ""


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE audit_events SET who = 'nobody' WHERE id = 3", "entry 3 (link 3) is not as it was written"),
        ("UPDATE audit_events SET at = at + interval '1 ms' WHERE id = 3", "entry 3 (link 3) is not as it was written"),
        ("UPDATE audit_events SET origin = 'elsewhere' WHERE id = 3", "entry 3 (link 3) is not as it was written"),
        ("DELETE FROM audit_events WHERE id = 3", "entry 3 (link 3) is gone"),
        ("DELETE FROM audit_links WHERE position = 3", "links 3 to 3 are gone\nentry 3 is in no link"),
        ("UPDATE audit_links SET hash = repeat('0', 64) WHERE position = 3", "entry 3 (link 3) is not as it was"),
        (
            "INSERT INTO audit_events (who, what, subject, detail) VALUES ('a', 'b', 'c', '{}')",
            "entry 6 is in no link",
        ),
    ],
)
async def test_what_is_done_behind_its_back_shows(store: Store, database: Database, statement: str, told: str) -> None:
    await trail(store)
    assert await faults(store) == ""
    tamper(database, statement)
    assert told in await faults(store)


async def test_a_noted_head_shows_a_cut_and_a_chain_written_anew(store: Store, database: Database) -> None:
    head = await trail(store)
    assert await faults(store, head) == ""
    tamper(database, "DELETE FROM audit_links WHERE position > 3", "DELETE FROM audit_events WHERE id > 3")
    assert await faults(store) == ""  # by itself it looks whole
    assert "link 5, which the log noted, is gone: the chain ends at 3" in await faults(store, head)
    await trail(store, 2)  # and it goes on, with other entries
    assert "link 5 is another than the log noted" in await faults(store, head)


async def test_the_application_cannot_write_links(store: Store, database: Database) -> None:
    await trail(store, 1)
    with psycopg.connect(database.app, autocommit=True) as connection:
        for statement in (
            "INSERT INTO audit_links VALUES (9, 9, repeat('0', 64))",
            "DELETE FROM audit_links",
            "SELECT hindcast_link_audit(event) FROM audit_events event",
            "ALTER TABLE audit_events DISABLE TRIGGER ALL",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    with psycopg.connect(database.owner) as connection, pytest.raises(psycopg.Error, match="only ever added to"):
        connection.execute("DELETE FROM audit_links")


async def test_the_head_goes_to_the_log(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "app.incidents.audit_chain")
    async with noting(store, 0.02):
        head = await trail(store, 2)

        async def noted() -> bool:
            return f"audit head {head}" in caplog.messages

        await until_async(noted)
    assert caplog.messages[-1] == f"audit head {head}"
    assert len(caplog.messages) == len(set(caplog.messages))
    assert Head.parse(str(head)) == head
    for odd in ("", "5", "x:" + "0" * 64, "5:" + "g" * 64):
        with pytest.raises(ValueError, match="not a head as the log has it"):
            Head.parse(odd)
