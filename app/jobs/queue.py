"""The queue: Procrastinate on the same PostgreSQL. It carries ids to workers, and knows nothing else."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import procrastinate
from procrastinate.jobs import Status
from sqlalchemy.engine import URL

from app.incidents.decodings import DECODE_TASK
from app.incidents.repository import REPLAY_TASK
from app.incidents.store import driver_url

# A worker that says nothing for this long is gone, and its jobs with it.
STALLED_S: Final = 30.0
HEARTBEAT_S: Final = 5.0
# Notifications bring new jobs at once; what was missed (a retry, a lost connection) waits this long at most.
POLL_S: Final = 0.25

_LOG: Final = logging.getLogger(__name__)


def open_queue(
    url: str | URL,
    replay: Callable[[str], Awaitable[None]],
    decode: Callable[[str, str], Awaitable[None]],
    *,
    connections: int,
) -> procrastinate.App:
    """Prepare the queue with its tasks; use it as an async context manager."""
    conninfo = driver_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    connector = procrastinate.PsycopgConnector(
        conninfo=conninfo,
        min_size=1,
        max_size=connections,
        timeout=10,
        kwargs={"application_name": "hindcast worker"},
    )
    queue = procrastinate.App(connector=connector)

    @queue.task(name=REPLAY_TASK)
    async def replay_run(run_id: str) -> None:
        await replay(run_id)

    @queue.task(name=DECODE_TASK)
    async def decode_records(gathering_id: str, build: str) -> None:
        await decode(gathering_id, build)

    return queue


async def drop_stalled(queue: procrastinate.App) -> int:
    """Delete jobs whose worker died; their runs stand in our own table, and are queued again from there."""
    stalled = await queue.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_S)
    dropped = 0
    for job in stalled:
        await queue.job_manager.finish_job(job, status=Status.FAILED, delete_job=True)
        dropped += 1
    return dropped
