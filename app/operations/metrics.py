"""What Prometheus reads. docs/operations.md says of each what it is good for; alerts rest on these names.

Labels are names from the configuration and fixed words, never anything that a record or a request brings along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, generate_latest

from app import __version__
from app.incidents import pool
from app.incidents.intake_status import stream_statuses
from app.incidents.live import collector_statuses
from app.incidents.store import Store

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

INFO: Final = Gauge("hindcast_build_info", "1; the version is in the label.", ["version"])
INFO.labels(__version__).set(1)

# The console ---------------------------------------------------------------------------------------------------------
REQUESTS: Final = Counter("hindcast_http_requests", "Requests answered.", ["method", "route", "status"])
REQUEST_SECONDS: Final = Histogram(
    "hindcast_http_request_seconds", "Time until a request was answered.", ["route"], buckets=_SECONDS
)
STREAMS: Final = Gauge("hindcast_event_streams", "Pages that follow something at this moment.")

# A worker ------------------------------------------------------------------------------------------------------------
RUNS: Final = Counter("hindcast_worker_runs", "Runs that this worker ended, by how.", ["build", "ending"])
RUN_SECONDS: Final = Histogram(
    "hindcast_worker_run_seconds", "From taking a run to recording its end.", ["build"], buckets=_SECONDS
)
QUEUE_SECONDS: Final = Histogram(
    "hindcast_worker_queue_seconds", "From asking for a run to taking it, first attempts only.", buckets=_SECONDS
)
RUNNING: Final = Gauge("hindcast_worker_running", "Runs that this worker works on.")
DRAINING: Final = Gauge("hindcast_worker_draining", "1 while this worker takes no more runs.")

# A collector ---------------------------------------------------------------------------------------------------------
COLLECTED: Final = Counter("hindcast_collector_records", "Records that this collector stored.", ["pipeline"])
UNDECODABLE: Final = Counter(
    "hindcast_collector_undecodable_records", "Stored records that are not what their topic should hold.", ["pipeline"]
)
FOLLOWING: Final = Gauge("hindcast_collector_following", "1 while this collector follows the pipeline.", ["pipeline"])
TROUBLE: Final = Gauge(
    "hindcast_collector_trouble", "1 while something keeps it from following the pipeline.", ["pipeline"]
)

# The whole installation, as the database has it; every console tells the same. ---------------------------------------
WAITING: Final = Gauge("hindcast_runs_waiting", "Runs that wait for a worker.", ["build"])
WORKING: Final = Gauge("hindcast_runs_running", "Runs that a worker works on.", ["build"])
OLDEST: Final = Gauge("hindcast_runs_oldest_waiting_seconds", "How long the first in line has waited.", ["build"])
CAPACITY: Final = Gauge("hindcast_runs_capacity", "Runs that living workers can work on at once.", ["build"])
WORKERS: Final = Gauge("hindcast_workers", "Workers by state: idle, busy, draining, gone.", ["state"])
LAG: Final = Gauge("hindcast_collector_lag_records", "Records of a pipeline that are still to be read.", ["pipeline"])
FOLLOWED: Final = Gauge("hindcast_pipeline_followed", "1 while a living collector follows the pipeline.", ["pipeline"])
BROKEN: Final = Gauge("hindcast_pipeline_trouble", "1 while its collector reports trouble.", ["pipeline"])
STREAM: Final = Gauge(
    "hindcast_pipeline_undecodable_records",
    "Records kept that are not what their topic should hold, over all time.",
    ["pipeline", "stream"],
)
DATABASE: Final = Gauge("hindcast_database_up", "1 while this process reaches the database.")


def text() -> bytes:
    """Everything that this process has counted, as Prometheus reads it."""
    return generate_latest(REGISTRY)


async def read_installation(store: Store, builds: Sequence[str], pipelines: Sequence[str]) -> None:
    """Set the gauges of the whole installation from the database. Raises what the database raises."""
    async with store.read() as session:
        status = await pool.pool_status(session, builds)
        told = {each.pipeline: each for each in await collector_statuses(session)}
        streams = await stream_statuses(session)
    for gauge in (WAITING, WORKING, OLDEST, CAPACITY, WORKERS):
        gauge.clear()
    for queue in status.queues:
        WAITING.labels(queue.build).set(queue.waiting)
        WORKING.labels(queue.build).set(queue.running)
        OLDEST.labels(queue.build).set((queue.oldest_ms or 0) / 1000)
        CAPACITY.labels(queue.build).set(queue.capacity)
    for state in ("idle", "busy", "draining", "gone"):
        WORKERS.labels(state).set(sum(worker.state == state for worker in status.workers))
    for name in pipelines:
        one = told.get(name)
        FOLLOWED.labels(name).set(one is not None and one.alive)
        BROKEN.labels(name).set(one is not None and bool(one.trouble))
        LAG.labels(name).set(sum(one.lags.values()) if one is not None else 0)
    for stream in streams:
        STREAM.labels(stream.pipeline, stream.stream).set(stream.undecodable)
