"""The way into the database: one pool per process, sessions that only read, and units of work that commit once."""

from __future__ import annotations

import select
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from app.incidents.columns import dumps

# A connection that rested for longer is asked whether the way to the server is still there.
_RESTED_S: Final = 15.0


class ReadSession(AsyncSession):
    """A session whose transaction PostgreSQL itself holds to reading."""


class WriteSession(ReadSession):
    """A unit of work: what it changed is committed once, when `Store.write` is left without an exception."""


class Store:
    """A pool of connections and the two kinds of sessions over it.

    `url` is any `postgresql://` URL; the driver is always psycopg. A session holds a connection only while it has a
    transaction open, so keep sessions short: never across a stream, never across a replay.
    """

    def __init__(
        self,
        url: str | URL,
        *,
        pool_size: int = 5,
        max_overflow: int = 5,
        pool_timeout_s: float = 10.0,
        echo: bool = False,
    ) -> None:
        self.url = driver_url(url)
        self.engine: AsyncEngine = create_async_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=max_overflow,
            pool_timeout=pool_timeout_s,
            echo=echo,
            json_serializer=dumps,
            connect_args={"connect_timeout": 10, "application_name": "hindcast"},
        )
        _look_before_use(self.engine)
        self._write = async_sessionmaker(self.engine, class_=WriteSession, expire_on_commit=False)
        self._read = async_sessionmaker(
            self.engine.execution_options(postgresql_readonly=True), class_=ReadSession, expire_on_commit=False
        )

    @asynccontextmanager
    async def read(self) -> AsyncIterator[ReadSession]:
        """Open a session for reading; writing through it is an error of the database's own."""
        async with self._read() as session:
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[WriteSession]:
        """Open a unit of work: commits at the end of the block, rolls back when the block raises."""
        async with self._write() as session, session.begin():
            yield session

    async def close(self) -> None:
        """Give all connections back; the store may not be used afterwards."""
        await self.engine.dispose()


def _look_before_use(engine: AsyncEngine) -> None:
    """Hand out no connection that is gone, without a question to the server before each use.

    A server that ends a connection says so, and then its socket has something to read; only a network that broke in
    silence says nothing, so a connection that rested is asked all the same.
    """
    dialect = engine.sync_engine.dialect

    @event.listens_for(engine.sync_engine, "checkin")
    def rests(_connection: Any, record: Any) -> None:
        record.info["rests_since"] = time.monotonic()

    @event.listens_for(engine.sync_engine, "checkout")
    def looks(connection: Any, record: Any, _fairy: Any) -> None:
        since = record.info.get("rests_since")  # a new connection has none
        if since is None or (time.monotonic() - since < _RESTED_S and _is_quiet(connection.driver_connection)):
            return
        try:
            dialect.do_ping(connection)
        except psycopg.Error as error:
            raise InvalidatePoolError from error


def _is_quiet(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether the connection is open, and the server has sent nothing that nobody asked for."""
    if connection.closed:
        return False
    waiting = select.poll()
    waiting.register(connection.pgconn.socket, select.POLLIN | select.POLLPRI)
    return not waiting.poll(0)


def driver_url(url: str | URL) -> URL:
    """Make any spelling of a PostgreSQL URL one for psycopg; raises `ValueError` for other databases."""
    parsed = make_url(url)
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise ValueError(f"the database must be PostgreSQL (postgresql://...), not {parsed.get_backend_name()!r}")
    return parsed.set(drivername="postgresql+psycopg")
