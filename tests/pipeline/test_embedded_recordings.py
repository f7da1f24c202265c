"""Recordings once more, in and out through Kafka topics and the journal."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.demo.broker import EmbeddedBroker
from app.pipeline.embedded import EmbeddedPipeline, Topics
from app.pipeline.keyspace import EVENT_TIME, PROCESSING_TIME
from tests.pipeline.comparing import check
from tests.pipeline.recorded import PipelineRecording, telling
from tests.pipeline.topics import Reader, Writer, make_streams

STREAMS = Topics.below("recordings")
INFINITY = 2**63 - 1


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        yield started


@pytest.fixture(scope="module")
def writer(broker: EmbeddedBroker) -> Writer:
    return Writer(broker.address)


@pytest.fixture(scope="module")
def reader(broker: EmbeddedBroker) -> Iterator[Reader]:
    # A reader of new topics waits half a second for each: all recordings share those of the streams.
    make_streams(broker, STREAMS)
    reader = Reader(broker.address, STREAMS)
    yield reader
    reader.close()


class Told:
    """A watermark and a processing clock that move only when a recording says so."""

    def __init__(self) -> None:
        self.watermark_ms = 0
        self.processing_ms = 0

    def saw(self, partition: int, event_time_ms: int) -> None: ...

    def drained(self, partition: int) -> None: ...

    def value(self, wall_ms: int) -> int:
        return self.watermark_ms

    def wall(self) -> int:
        return self.processing_ms


@pytest.mark.usefixtures("beam_agents")
@pytest.mark.parametrize("name", telling())
def test_recording(name: str, broker: EmbeddedBroker, writer: Writer, reader: Reader, tmp_path: Path) -> None:
    recording = PipelineRecording(name)
    module = recording.load_agent()
    topics, told = replace(STREAMS, events=name), Told()
    broker.create(topics.events, 1)
    reader.forget()
    kafka = {"bootstrap.servers": broker.address}
    with EmbeddedPipeline(
        recording.agent(module),
        recording.config(module),
        topics,
        kafka,
        tmp_path / "journal",
        wall=told.wall,
        watermark=told,
    ) as pipeline:
        for step in recording.steps():
            if step.envelope is not None:
                writer.send(topics.events, step.envelope)
                while not pipeline.poll(1.0):
                    pass
            elif step.kind == "advance_watermark_ms":
                told.watermark_ms = INFINITY if step.at_ms is None else step.at_ms
                pipeline.fire_due(EVENT_TIME)
            else:
                told.processing_ms += step.at_ms or 0
                pipeline.fire_due(PROCESSING_TIME)
    reader.read_up()
    check(recording, reader.values())
    keys = {key for stream, pairs in reader.records.items() for key, _ in pairs}
    assert keys <= {step.envelope.entity_key for step in recording.steps() if step.envelope is not None}
