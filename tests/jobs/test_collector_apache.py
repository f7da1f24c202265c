"""A collector at a real Apache Kafka: transactions, compaction, codecs, huge values, clocks and partitioners."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from confluent_kafka import Producer

from app.incidents import live
from app.incidents.service import Store
from app.kafka.scan import Query, scan
from app.wire.records import AgentEnvelope, StateSnapshot, parse, serialize
from tests.fixtures.live import Apache, own_topics
from tests.fixtures.postgres import Database
from tests.incidents.live import raw
from tests.incidents.tracing import attempt
from tests.jobs.live import NAME, World, evidence, pipeline_of, reproduce
from tests.pipeline import scripted
from tests.pipeline.topics import make
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.timeout(1200)
NOW = time.time_ns() // 1_000_000


@pytest.fixture
def world(apache_world: World) -> World:
    return apache_world


def start(key: bytes, *operations: tuple[object, ...], at: int = NOW) -> AgentEnvelope:
    envelope = scripted.start(*operations, at=at)
    envelope.entity_key = key
    return envelope


def producer(world: World, **settings: object) -> Producer:
    told = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": world.broker.address, "message.max.bytes": 60_000_000, **told})


@pytest.fixture
def transactional(world: World) -> Iterator[Producer]:
    made = producer(world, transactional_id=f"desk-{uuid.uuid4()}", transaction_timeout_ms=60_000)
    made.init_transactions(PATIENCE_S)
    yield made
    made.purge()


async def caught_up(world: World, store: Store) -> None:
    """Wait until a sign of life from now on says that everything there is has been stored."""
    now = time.time_ns() // 1_000_000

    async def look() -> bool:
        async with store.read() as session:
            status = next(iter(await live.collector_statuses(session)), None)
        return status is not None and (status.caught_up_at or 0) > now

    await world.until(look)


async def test_transactions_are_read_as_the_pipeline_commits_them(  # complaint 27
    world: World, store: Store, transactional: Producer
) -> None:
    """What was aborted never happened, and a marker at the end of a log keeps nobody waiting."""
    said, never = attempt(b"k", 0, NOW), attempt(b"never", 0, NOW)
    event, double = start(b"k", ("out", "x")), start(b"k", ("out", "aborted"))
    for envelope, told, end in (
        (double, never, transactional.abort_transaction),
        (event, said, transactional.commit_transaction),
        (double, never, transactional.abort_transaction),
    ):
        transactional.begin_transaction()
        transactional.produce(world.topics.events, serialize(envelope), b"k", partition=0)
        for value in told.values:
            transactional.produce(world.topics.traces, value, told.key, partition=0)
        transactional.flush(PATIENCE_S)
        end()
    async with world.collecting():
        (row,) = await world.activations(1)
        incident = await world.open(b"k")
        gathering = await world.gathered(incident)
        await caught_up(world, store)
    assert row.entity_key == b"k"
    assert [one.value for _, one in raw(world.database, "traces")] == list(said.values)
    assert gathering.gathering.state == "found"
    (partition,) = gathering.topics[0].partitions
    assert (partition.scanned, partition.matched, partition.complete) == (1, 1, True)


async def test_a_compacted_topic_is_followed_over_its_gaps(world: World, store: Store) -> None:  # complaints 28, 32
    topics = own_topics()
    compacted = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.001",
                 "delete_retention_ms": "0", "max_compaction_lag_ms": "100"}  # fmt: skip
    assert isinstance(world.broker, Apache)
    for name in (topics.events, topics.traces):
        world.broker.create(name, 1, **compacted)
    for name in (topics.snapshots, topics.intents, topics.outputs, topics.errors):
        world.broker.create(name, 1)
    world.topics = topics
    event, told = start(b"k", ("out", "x")), attempt(b"k", 0, NOW)
    for number in range(5):
        for name in (topics.events, topics.traces):
            for noise in range(20):
                world.send_bytes(name, b"noise-%d" % noise, b"\xff\xff %d" % number)
        await asyncio.sleep(0.12)
    world.send(event)
    for number, value in enumerate(told.values):  # each under a key of its own, or all but the last would go
        world.send_bytes(topics.traces, b"part-%d" % number, value)
    for name in (topics.events, topics.traces):
        world.send_bytes(name, b"noise-0", None)

    async def cleaned() -> bool:
        return await asyncio.to_thread(count, world, topics.traces) <= 60

    await world.until(cleaned)
    async with world.collecting():
        await world.activations(1)
        gathering = await world.gathered(await world.open(b"k"))
        await caught_up(world, store)
    with psycopg.connect(world.database.app) as connection:
        row = connection.execute(
            "SELECT p.next_offset, p.records + p.absent, p.absent FROM positions p"
            " JOIN streams s ON s.id = p.stream_id WHERE s.stream = 'traces'"
        ).fetchone()
    assert row is not None
    assert row[0] == row[1] == 101 + len(told.values)
    assert row[2] > 40
    assert gathering.gathering.state == "found"


def count(world: World, topic: str) -> int:
    return scan(world.pipeline, topic, Query(key=b"nobody")).partitions[0].scanned


@pytest.mark.parametrize("codec", ["zstd", "lz4", "gzip", "snappy"])
async def test_a_collector_goes_on_in_the_middle_of_a_compressed_batch(  # complaint 29
    world: World, store: Store, codec: str
) -> None:
    """The broker sends whole batches; what was stored before must not be stored again."""
    batched = producer(world, compression_type=codec, linger_ms=200, batch_num_messages=10_000)
    values = [value for number in range(60) for value in attempt(b"k-%d" % number, 0, NOW + number).values]
    for value in values:
        batched.produce(world.topics.traces, value, b"k", partition=0)
    assert batched.flush(PATIENCE_S) == 0
    whole = len(values) // 2 + 1
    with psycopg.connect(world.database.app) as connection:  # as one that stored half of them has left it
        connection.execute(
            "INSERT INTO streams (pipeline, stream, topic, incarnation) VALUES (%s, 'traces', %s, 1)",
            (NAME, world.topics.traces),
        )
        connection.execute(
            "INSERT INTO positions (stream_id, partition, next_offset) SELECT id, 0, %s FROM streams", (whole,)
        )
    async with world.collecting():
        await caught_up(world, store)
    assert [(one.offset, one.value) for _, one in raw(world.database, "traces")] == [
        (offset, values[offset]) for offset in range(whole, len(values))
    ]


async def test_an_envelope_is_found_whatever_the_clocks_of_its_neighbours_say(  # complaint 30
    world: World, store: Store
) -> None:
    sent = [start(b"k" if number == 500 else b"other", ("out", str(number)), at=NOW + number) for number in range(1000)]
    writer = producer(world, linger_ms=5)
    times = [NOW - 3_600_000 * random.Random(number).randint(0, 48) for number in range(1000)]
    for envelope, at in zip(sent, times, strict=True):
        writer.produce(world.topics.events, serialize(envelope), envelope.entity_key, partition=0, timestamp=at)
    assert writer.flush(PATIENCE_S) == 0
    async with world.collecting():
        for value in attempt(b"k", 0, NOW + 500).values:
            world.send_bytes(world.topics.traces, b"k", value)
        await world.activations(1)
        gathering = await world.gathered(await world.open(b"k"))
    assert gathering.gathering.state == "found"
    assert gathering.topics[0].matched == 1


@pytest.mark.parametrize("partitioner", ["murmur2", "consistent_random"])
async def test_an_export_goes_where_the_events_of_its_key_go(  # complaint 31
    apache: Apache, database: Database, store: Store, world: World, partitioner: str
) -> None:
    topics = own_topics()
    make(apache, topics, 5)
    world.topics = topics
    keys = [b"key-%d" % number for number in range(4)]
    writer = producer(world, partitioner=partitioner)
    at: dict[bytes, int] = {}
    for key in keys:
        writer.produce(
            topics.events, serialize(start(key, ("ask", "hi"), ("out", "x"))), key,
            on_delivery=lambda _, message: at.update({message.key(): message.partition()}),
        )  # fmt: skip
    assert writer.flush(PATIENCE_S) == 0
    assert len(set(at.values())) > 1
    pipeline = pipeline_of(apache.address, topics, partitioner=partitioner)
    with world.host():
        async with world.collecting(pipelines=[pipeline]):
            incidents = {key: await world.open_when(key, 1) for key in keys}
            for incident in incidents.values():
                await world.export(incident)
            statuses = {key: await world.ready(incident) for key, incident in incidents.items()}
    assert {key: status.exports[0].export.partition for key, status in statuses.items()} == at


async def test_values_of_twenty_and_a_snapshot_of_fifty_megabytes(world: World, store: Store) -> None:
    # complaint 34
    size = 50_000_000
    with world.host():
        async with world.collecting():
            event = start(b"k", ("get", "g" * 20_000_000), ("ask", "hi"), ("approve",), ("hoard", size))
            world.send(event)
            (row,) = await world.activations(1)
            assert row.status == "suspended"
            incident = await world.open(b"k")
            export = await world.export(incident)
            status = await world.ready(incident)
            world.send(start(b"after", ("out", "and on it goes"), at=NOW + 1))
            await world.activations(1, entity_key=b"after")
    (answer,) = status.exports[0].answers
    assert (status.exports[0].export.request_id, answer.suspended) == (export.request_id, True)
    (snapshot,) = [one.value or b"" for _, one in raw(world.database, "snapshots")]
    assert len(snapshot) > size
    assert parse(StateSnapshot, snapshot).request_id == export.request_id
    _, files = await evidence(store, incident)
    verdict = await reproduce(files)
    assert [len(file.data) for file in files if file.role == "snapshot"] == [len(snapshot)]
    assert [file.data for file in files if file.role == "event"] == [serialize(event)]
    assert verdict.outcome == "reproduced", verdict.headline
