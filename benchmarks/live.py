"""A live pipeline: from the click on Export to the snapshot, and from a row of the activations to a replay that can
start; a broker, a pipeline, a collector and a database, all on this machine.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from app.demo.broker import EmbeddedBroker
from app.demo.postgres import Urls
from app.incidents import live
from app.incidents.changes import Changes
from app.incidents.collecting import Intake
from app.incidents.service import Incident, Store
from app.kafka.config import Pipeline
from app.kafka.intake import Batch, Follower
from benchmarks.intake import RATE_GOAL, _attempt, _database, pump
from benchmarks.measure import Row
from tests.fixtures.postgres import Database
from tests.jobs.live import NAME, World
from tests.pipeline import scripted

ANSWER_GOAL_MS: Final = 500
READY_GOAL_MS: Final = 2000
TIMES: Final = 40
# The in-process broker holds about 5 MB a partition.
PARTITIONS: Final = 8
EVENTS_A_PARTITION: Final = 20_000


def rows() -> Iterator[Row]:
    """Every figure of this file."""
    with _database() as urls, EmbeddedBroker() as broker:
        yield following(urls, broker)
    with _database() as urls, EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as folder:
        yield from asyncio.run(_latencies(urls, broker, Path(folder)))


def following(urls: Urls, broker: EmbeddedBroker) -> Row:
    """From the broker's socket into the database: fetched, decoded, grouped, compressed, written, committed."""
    import random

    from confluent_kafka import Producer

    chance, total = random.Random(7), 0
    broker.create("traces", PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": broker.address, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    )
    for partition in range(PARTITIONS):
        for _ in range(EVENTS_A_PARTITION // 8):
            key = b"customer-%06d" % chance.randint(1, 200_000)
            for value in _attempt(chance, key, chance.randint(0, 40), 1_790_000_000_000 + total):
                producer.produce("traces", value, key, partition=partition)
                total += 1
        assert producer.flush(60) == 0
    told = {"name": "bench", "brokers": broker.address.split(","), "topics": {"traces": "traces"}}
    gc.collect()
    gc.set_threshold(100_000, 50, 50)  # as `hindcast collect` does
    intake = Intake(urls.app, "bench")
    intake.positions()
    with Follower(Pipeline.model_validate(told), {}, most_records=10_000) as follower:
        begun, cpu = time.perf_counter(), time.process_time()
        stored = pump(intake, _pulled(follower, total))
        taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
    assert stored == total
    intake.close()
    rate = total / taken
    return Row(
        f"intake, {total:,} trace events followed from a broker in this process",
        f"{rate:,.0f} events/s",
        f"≥ {RATE_GOAL:,}/s",
        rate >= RATE_GOAL,
        f"{cpu / total * 1e6:.1f} µs of processor time an event, the broker's own work included",
    )


def _pulled(follower: Follower, total: int) -> Iterator[list[Batch]]:
    while total > 0:
        found = [one for one in follower.pull(0.2) if isinstance(one, Batch)]
        total -= sum(len(one.records) for one in found)
        yield found


async def _latencies(urls: Urls, broker: EmbeddedBroker, folder: Path) -> list[Row]:
    store = Store(urls.app)
    world = World.make(broker, Database("bench", urls.app, urls.owner, urls.superuser, urls.purge), store, folder)
    now = time.time_ns() // 1_000_000
    answers, readies = [], []
    with world.host():
        async with world.collecting(), Changes(urls.app) as changes:
            for number in range(TIMES):
                key = b"customer-%d" % number
                envelope = scripted.start(("ask", "hi"), ("act", "refund"), ("out", "done"), at=now + number)
                envelope.entity_key = key
                world.send(envelope)
            found = await world.activations(TIMES)
            await asyncio.sleep(3)  # nothing of the beginning is under way any more
            for row in found:
                begun = time.perf_counter()
                async with store.write() as session:
                    incident = await live.open_incident(session, who="bench", known=[NAME], activation=row.id)
                asked = time.perf_counter()
                export = await world.export(incident)

                async def answered(export: live.Export = export) -> bool:
                    async with store.read() as session:
                        return (await live.get_export(session, export.id)).export.state == "answered"

                async def ready(incident: Incident = incident) -> bool:
                    return (await world.status(incident)).ready

                await _until(changes, incident.id, answered)
                answers.append((time.perf_counter() - asked) * 1000)
                await _until(changes, incident.id, ready)
                readies.append((time.perf_counter() - begun) * 1000)
    await store.close()
    return [
        _row("export: from the click to the snapshot stored", answers, ANSWER_GOAL_MS),
        _row("from a row of the activations to ready to replay, export included", readies, READY_GOAL_MS),
    ]


async def _until(changes: Changes, subject: str, ask: Callable[[], Awaitable[Any]]) -> None:
    async with changes.subscribe(subject) as subscription:
        while not await ask():
            await subscription.wait(5)


def _row(what: str, taken: list[float], goal: int) -> Row:
    taken = sorted(taken)
    middle, late = taken[len(taken) // 2], taken[int(len(taken) * 0.95)]
    return Row(what, f"{middle:.0f} ms (p95 {late:.0f}, {len(taken)} times)", f"p95 ≤ {goal} ms", late <= goal)
