"""Looks after what nobody else looks after: runs of dead workers, lost jobs, imports that were given up.

Every worker and every console does it, so that a run is found to be lost although the last worker died with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.incidents import drafts, pool, runs
from app.incidents.exports import time_out_exports
from app.incidents.store import Store

_LOG: Final = logging.getLogger(__name__)
INTERVAL_S: Final = 2.0


async def tend(store: Store) -> None:
    """Do it once; safe for any number of processes at the same time."""
    async with store.write() as session:
        lost = await runs.sweep_lost(session)
    async with store.write() as session:
        forgotten = await runs.requeue_forgotten(session)
        await drafts.sweep_drafts(session)
        await time_out_exports(session)  # where no collector runs, nobody else would
        await pool.forget_gone(session)
    for run in lost:
        _LOG.warning("run %s is lost: its worker gave no sign of life", run)
    for run in forgotten:
        _LOG.warning("run %s was queued again: its job had been lost", run)


async def keep_tending(store: Store) -> None:
    """Do it again and again until cancelled; while the database is away, wait for it."""
    while True:
        try:
            await tend(store)
        except (SQLAlchemyError, OSError) as error:
            _LOG.warning("cannot look after runs: %s", error)
        await asyncio.sleep(INTERVAL_S)


@asynccontextmanager
async def tending(store: Store) -> AsyncIterator[None]:
    """Keep tending for the length of a block."""
    task = asyncio.create_task(keep_tending(store), name="look after runs")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
