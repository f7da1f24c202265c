"""A worker's look for incidents that may go: now and then, over the one database role that can remove them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.exc import DBAPIError

from app.incidents import flink_retention, purge
from app.incidents.errors import IncidentError
from app.incidents.flink_retention import LogLimits
from app.incidents.store import Store

_LOG: Final = logging.getLogger(__name__)
_BATCH: Final = 20


@dataclass(frozen=True, slots=True)
class Retention:
    """`url` is the database as the role of retention; closed incidents go after `closed_days` days (None: never).

    `logs` says how long imported lines of event logs are kept.
    """

    url: str
    closed_days: int | None
    every_s: float = 3600.0
    logs: LogLimits = field(default_factory=LogLimits)


@asynccontextmanager
async def keeping_house(settings: Retention | None) -> AsyncIterator[None]:
    """While the block runs, remove what may go now and then; without settings nothing ever goes."""
    if settings is None:
        yield
        return
    task = asyncio.create_task(keep_house(settings), name="retention")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def keep_house(settings: Retention) -> None:
    """Remove what may go, again and again, until cancelled."""
    store = Store(settings.url, pool_size=1, max_overflow=0)
    try:
        while True:
            try:
                if settings.closed_days is not None:
                    await purge_once(store, settings.closed_days)
                await purge_logs_once(store, settings.logs)
            except (DBAPIError, OSError, IncidentError) as error:
                _LOG.warning("cannot purge, and tries again later: %s", error)
            await asyncio.sleep(settings.every_s)
    finally:
        await store.close()


async def purge_once(store: Store, closed_days: int) -> list[str]:
    """Remove what may go now; returns the ids of the incidents that went."""
    async with store.read() as session:
        doomed = [one.id for one in await purge.purgeable(session, closed_days=closed_days)]
    gone: list[str] = []
    for at in range(0, len(doomed), _BATCH):
        async with store.write() as session:
            gone += await purge.purge(
                session, doomed[at : at + _BATCH], closed_days=closed_days, who="worker", reason="retention"
            )
    for ident in gone:
        _LOG.info("incident %s is purged: it was closed at least %d days ago", ident, closed_days)
    return gone


async def purge_logs_once(store: Store, limits: LogLimits) -> Counter[str]:
    """Remove what is due of imported event logs; counts by table."""
    gone = await flink_retention.purge_logs(store, limits, who="worker")
    if gone.total():
        _LOG.info("of event logs %d runs and %d lines are purged", gone["flink_runs"], gone["flink_records"])
    return gone
