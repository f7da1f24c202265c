"""The pool hands out connections that live, and asks the server only where there is reason to doubt it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from app.incidents import store as module
from app.incidents.service import Store
from tests.fixtures.postgres import Database


@pytest.fixture
def pings(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Each time that the server is asked whether it is there."""
    asked: list[object] = []
    dialect = store.engine.sync_engine.dialect
    ping = dialect.do_ping

    def noted(connection: Any) -> bool:
        asked.append(connection)
        return ping(connection)

    monkeypatch.setattr(dialect, "do_ping", noted)
    return asked


async def ask(store: Store) -> int:
    async with store.read() as session:
        return int((await session.execute(text("SELECT pg_backend_pid()"))).scalar_one())


def end_all(database: Database) -> None:
    """What a server that restarts does to its connections."""
    with psycopg.connect(database.superuser, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_a_connection_in_use_is_not_asked_again_and_again(store: Store, pings: list[object]) -> None:
    assert len({await ask(store) for _ in range(5)}) == 1
    assert pings == []


async def test_a_connection_that_the_server_ended_is_replaced_unseen(
    store: Store, pings: list[object], database: Database
) -> None:
    first = await ask(store)
    end_all(database)
    second = await ask(store)
    assert first != second
    assert len(pings) == 1
    async with store.write() as session:
        await session.execute(text("SELECT 1"))
    assert await ask(store) == second


async def test_of_many_that_ended_each_is_replaced(store: Store, database: Database) -> None:
    async with store.read() as one, store.read() as other:
        for session in (one, other):
            await session.execute(text("SELECT 1"))
    end_all(database)
    async with store.read() as one, store.read() as other:
        for session in (one, other):
            await session.execute(text("SELECT 1"))


async def test_a_connection_that_rested_is_asked(
    store: Store, pings: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await ask(store)
    monkeypatch.setattr(module, "_RESTED_S", 0.0)
    assert await ask(store) == first
    assert len(pings) == 1
