"""The queue: Procrastinate on the same PostgreSQL. It carries ids to workers, and knows nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import procrastinate
import psycopg
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from sqlalchemy.engine import URL

from app.incidents.decodings import DECODE_TASK
from app.incidents.repository import REPLAY_TASK
from app.incidents.store import driver_url

# A worker that says nothing for this long is gone, and its jobs with it.
STALLED_S: Final = 30.0
HEARTBEAT_S: Final = 5.0
# Notifications bring new jobs at once; what was missed (a retry, a lost connection) waits this long at most.
POLL_S: Final = 0.25

_TRIES: Final = 5
_AGAIN_S: Final = 0.5

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
    queue.job_manager = _Jobs(connector)

    @queue.task(name=REPLAY_TASK)
    async def replay_run(run_id: str) -> None:
        await replay(run_id)

    @queue.task(name=DECODE_TASK)
    async def decode_records(gathering_id: str, build: str) -> None:
        await decode(gathering_id, build)

    return queue


class _Jobs(JobManager):
    """The queue's own, but patient where a job that was done is to be taken off the queue.

    Nobody else would: its worker is alive, so it does not count as stalled.
    """

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        """Take a job off the queue, again where the connection broke meanwhile; never raises for the database."""
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_AGAIN_S)
            try:
                await super().finish_job(job, status, delete_job)
                return
            except ConnectorException as error:
                if attempt and isinstance(error.__cause__, psycopg.errors.RaiseException):
                    return  # the broken connection had taken it off before it broke
                _LOG.warning("job %s is done, but cannot be taken off the queue: %s", job.id, error.__cause__ or error)


async def drop_stalled(queue: procrastinate.App) -> int:
    """Delete jobs whose worker died; their runs stand in our own table, and are queued again from there."""
    stalled = await queue.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_S)
    dropped = 0
    for job in stalled:
        await queue.job_manager.finish_job(job, status=Status.FAILED, delete_job=True)
        dropped += 1
    return dropped
