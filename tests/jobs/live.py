"""A running world for a test: a broker, a pipeline with the scripted agent, a collector over a real database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import Producer

from app.incidents import live, service
from app.incidents.live import LiveStatus
from app.incidents.rules import FreezeRule
from app.incidents.service import EvidenceFile, Incident, Store
from app.jobs.collector import Collector
from app.jobs.desk import Keeping
from app.kafka.config import Pipeline
from app.pipeline.embedded import EmbeddedPipeline, Topics
from app.replay.engine import replay
from app.replay.inprocess import InProcessRunner
from app.replay.rerun_pb2 import AgentCode
from app.replay.verdict import Verdict
from app.runtime.config import AgentConfig
from app.wire.records import AgentEnvelope, serialize
from tests.fixtures.postgres import Database
from tests.pipeline import scripted
from tests.pipeline.topics import make
from tests.waiting import PATIENCE_S, joined, until_async

TOPICS = Topics.below("desk")
NAME = "desk"
CODE = AgentCode(agent="tests.pipeline.scripted:agent", decode="tests.pipeline.scripted:decode")

# For tests that say the same of the in-process broker and of a real one.
ON_BOTH_BROKERS = pytest.mark.parametrize(
    "world",
    # The first test that needs the real one waits for it, and perhaps for its jars.
    ["mock", pytest.param("apache", marks=pytest.mark.timeout(1200))],
    indirect=True,
)


class Cluster(Protocol):
    """Any broker that a world can be built on."""

    @property
    def address(self) -> str: ...

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic."""


def pipeline_of(address: str, names: Topics = TOPICS, **changes: Any) -> Pipeline:
    """Describe the world's pipeline to Hindcast."""
    topics = {**asdict(names), **changes.pop("topics", {})}
    told = {"name": NAME, "brokers": address.split(","), "partitioner": "murmur2", "topics": topics, **changes}
    return Pipeline.model_validate(told)


@dataclass
class Host:
    """The pipeline in a thread of this process."""

    broker: Cluster
    topics: Topics
    journal: Path
    options: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Host:
        config = AgentConfig(scripted.provider, decode=scripted.decode, **self.options)
        kafka = {
            "bootstrap.servers": self.broker.address,
            "reconnect.backoff.max.ms": 200,
            "message.max.bytes": 80_000_000,
            "receive.message.max.bytes": 200_000_000,
        }
        self._pipeline = EmbeddedPipeline(scripted.agent, config, self.topics, kafka, self.journal)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        with self._pipeline:
            self._pipeline.run()

    def __exit__(self, *_: object) -> None:
        self._pipeline.stop()
        joined(self._thread)


@dataclass
class World:
    """What a test has in hand."""

    broker: Cluster
    database: Database
    store: Store
    folder: Path
    topics: Topics = TOPICS
    rules: Sequence[FreezeRule] = ()
    keeping: Keeping = field(default_factory=lambda: Keeping(export_timeout_s=PATIENCE_S))

    @classmethod
    def make(
        cls,
        broker: Cluster,
        database: Database,
        store: Store,
        folder: Path,
        topics: Topics = TOPICS,
        partitions: int = 1,
    ) -> World:
        """Make the topics; `partitions` are those of the events topic."""
        make(broker, topics, partitions)
        return cls(broker, database, store, folder, topics)

    @property
    def pipeline(self) -> Pipeline:
        return pipeline_of(self.broker.address, self.topics)

    def host(self, **options: Any) -> Host:
        """The pipeline, for the length of a `with`."""
        return Host(self.broker, self.topics, self.folder / "journal", options)

    def send(self, *envelopes: AgentEnvelope) -> None:
        """Give the pipeline something to do."""
        for envelope in envelopes:
            self.send_bytes(self.topics.events, envelope.entity_key, serialize(envelope))

    def send_bytes(self, topic: str, key: bytes | None, value: bytes | None, at_ms: int | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.broker.address, "linger.ms": 0, "message.max.bytes": 80_000_000})
        more = {} if at_ms is None else {"timestamp": at_ms}
        producer.produce(topic, value, key, partition=0, **more)
        assert producer.flush(PATIENCE_S) == 0

    @asynccontextmanager
    async def collecting(self, **options: Any) -> AsyncIterator[Collector]:
        """Run a collector for the length of a block; it is stopped, not killed, at the end."""
        pipelines = options.pop("pipelines", [self.pipeline])
        collector = Collector(self.database.app, pipelines, self.rules, self.keeping, **options)
        running = asyncio.create_task(collector.run())
        try:
            yield collector
        finally:
            collector.stop()
            async with asyncio.timeout(PATIENCE_S):
                await running

    async def open(self, key: bytes, seq: int | None = None, **more: Any) -> Incident:
        async with self.store.write() as session:
            return await live.open_incident(
                session, who="ada", known=[NAME], pipeline=NAME, entity_key=key, seq=seq, **more
            )

    async def open_when(self, key: bytes, count: int) -> Incident:
        """Open an incident of a key once so many of its activations are stored."""
        await self.activations(count, entity_key=key)
        return await self.open(key)

    async def gathered(self, incident: Incident) -> live.GatheringView:
        """Wait until the incident's last search has ended."""

        async def look() -> live.GatheringView | None:
            async with self.store.read() as session:
                view = (await live.gatherings_of(session, incident))[0]
            return view if view.gathering.gathering_state.finished else None

        found: live.GatheringView = await self.until(look)
        return found

    async def export(self, incident: Incident, reason: str = "why not") -> live.Export:
        async with self.store.write() as session:
            return await live.request_export(
                session, incident, who="ada", reason=reason, known=[NAME], timeout_s=PATIENCE_S
            )

    async def status(self, incident: Incident) -> LiveStatus:
        async with self.store.read() as session:
            return await live.live_status(session, await service.get_incident(session, incident.id))

    async def until(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until the answer is true, and return it."""
        return await until_async(ask, ask.__name__, pause_s=0.05)

    async def activations(self, count: int, **chosen: Any) -> tuple[live.Activation, ...]:
        """Wait until so many activations are stored, and all to their ends: a row is there from the start on."""

        async def look() -> tuple[live.Activation, ...] | None:
            async with self.store.read() as session:
                found = await live.list_activations(session, live.ActivationFilter(**chosen), limit=200)
            whole = all(one.category != "incomplete" for one in found.items)
            return found.items if whole and len(found.items) >= count else None

        found: tuple[live.Activation, ...] = await self.until(look)
        return found

    async def ready(self, incident: Incident) -> LiveStatus:
        async def look() -> LiveStatus | None:
            status = await self.status(incident)
            return status if status.ready else None

        found: LiveStatus = await self.until(look)
        return found


async def evidence(store: Store, incident: Incident) -> tuple[Incident, list[EvidenceFile]]:
    """An incident as it is now, and the files of its evidence."""
    async with store.read() as session:
        now = await service.get_incident(session, incident.id)
        kept = await service.evidence_of(session, now)
        return now, await service.evidence_files(session, now, [file.id for file in kept])


async def reproduce(files: list[EvidenceFile]) -> Verdict:
    """Replay with the code that ran."""

    def run() -> Verdict:
        runner = InProcessRunner()
        try:
            return replay(files, runner, CODE).verdict
        finally:
            runner.close()

    return await asyncio.to_thread(run)
