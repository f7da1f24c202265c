"""An agent's whole pipeline on Apache Beam: Kafka in, Kafka out, ready to answer Hindcast's export requests.

It reads AgentEnvelopes from `<prefix>.events` - export requests are among them - and bare ToolResults of the effector
from `<prefix>.results`, runs the agent for every entity key, and writes `<prefix>.traces`, `.snapshots`, `.intents`,
`.errors` and `.outputs`, all under the raw entity key. The agent is named by references, by default the refund desk
of this folder.

Try it where you are, on the small Flink that Beam brings along; a broker and Java have to be there:

    pip install 'hindcast-console[beam]'
    python examples/beam_pipeline.py --brokers localhost:9092 --topics refunds --path examples/refunds/v1 \
        --runner FlinkRunner --flink_master "[local]" --streaming --environment_type LOOPBACK

On a Flink cluster. Its task managers start the agent from an image that holds its code (docs/pipeline.md says how to
make one):

    python examples/beam_pipeline.py --brokers broker-1:9092,broker-2:9092 --topics refunds \
        --runner FlinkRunner --flink_master flink-jobmanager:8081 --flink_version 1.20 --streaming \
        --environment_type DOCKER --environment_config "$IMAGE" \
        --parallelism 8 --checkpointing_interval 10000 --state_backend rocksdb

On Dataflow:

    python examples/beam_pipeline.py --brokers broker-1:9092,broker-2:9092 --topics refunds \
        --runner DataflowRunner --project "$PROJECT" --region europe-west1 --temp_location "gs://$BUCKET/tmp" \
        --streaming --sdk_container_image "$IMAGE" --sdk_location container

Whatever the runner, delivery is at least once: a retried bundle runs again on the same state, and sends again.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from app.pipeline.beam import AgentConfig, RunAgent, RunAgentOutputs
from app.pipeline.code import CodeReferences, load
from app.wire.records import AgentEnvelope, RecordError, ToolResult, parse

_log = logging.getLogger(__name__)

Element = tuple[bytes, AgentEnvelope]


def envelope_of_event(value: bytes) -> AgentEnvelope:
    """The events topic holds envelopes."""
    return parse(AgentEnvelope, value)


def envelope_of_result(value: bytes) -> AgentEnvelope:
    """The effector knows nothing of envelopes: its results are put into one, at the time they were completed."""
    result = parse(ToolResult, value)
    return AgentEnvelope(entity_key=result.entity_key, event_time_ms=result.completed_at_ms, tool_result=result)


class KeyEnvelopes(beam.DoFn):
    """Turns the values of a topic into keyed envelopes at their own event time.

    A record that is none can be taken by nobody, now or later: it is told, counted and passed over.
    """

    def __init__(self, read: Callable[[bytes], AgentEnvelope]) -> None:
        self._read = read
        self._unreadable = Metrics.counter("hindcast", "unreadable")

    def process(self, record: tuple[bytes, bytes]) -> Iterator[TimestampedValue]:
        try:
            envelope = self._read(record[1])
        except RecordError as error:
            self._unreadable.inc()
            _log.warning("passed over a record: %s", error)
            return
        yield TimestampedValue((envelope.entity_key, envelope), Timestamp(micros=1000 * envelope.event_time_ms))


def activate(events: Any, results: Any, agent: Callable[..., Any], config: AgentConfig) -> RunAgentOutputs:
    """Both inputs (KV[bytes, bytes], as Kafka has them) through the agent."""
    inputs = (
        events | "Envelopes" >> beam.ParDo(KeyEnvelopes(envelope_of_event)).with_output_types(Element),
        results | "Results" >> beam.ParDo(KeyEnvelopes(envelope_of_result)).with_output_types(Element),
    )
    return inputs | beam.Flatten() | "Agent" >> RunAgent(agent, config)


def with_sinks(config: AgentConfig, brokers: str, prefix: str) -> AgentConfig:
    """The agent's configuration with the topics of this pipeline in it."""
    return dataclasses.replace(
        config,
        traces_to=f"kafka://{brokers}/{prefix}.traces",
        snapshots_to=f"kafka://{brokers}/{prefix}.snapshots",
        intents_to=f"kafka://{brokers}/{prefix}.intents",
        errors_to=f"kafka://{brokers}/{prefix}.errors",
    )


def read_topic(brokers: str, topic: str) -> Any:
    """A topic from its first record on; the runner keeps the place in its checkpoints."""
    from apache_beam.io.kafka import ReadFromKafka

    return ReadFromKafka(
        consumer_config={"bootstrap.servers": brokers, "auto.offset.reset": "earliest"},
        topics=[topic],
        timestamp_policy=ReadFromKafka.create_time_policy,
    )


def build(
    pipeline: Any, brokers: str, prefix: str, agent: Callable[..., Any], config: AgentConfig, **kafka: Any
) -> None:
    """The whole pipeline."""
    from apache_beam.io.kafka import WriteToKafka

    events = pipeline | "Read events" >> read_topic(brokers, f"{prefix}.events")
    results = pipeline | "Read results" >> read_topic(brokers, f"{prefix}.results")
    outputs = activate(events, results, agent, with_sinks(config, brokers, prefix))
    outputs.keyed_output | "Write outputs" >> WriteToKafka(
        producer_config={"bootstrap.servers": brokers}, topic=f"{prefix}.outputs"
    )


def parser() -> argparse.ArgumentParser:
    """This program's own options; all others are Beam's."""
    made = argparse.ArgumentParser(description="Run an agent's pipeline on Apache Beam.")
    made.add_argument("--brokers", required=True, metavar="HOST:PORT,...")
    made.add_argument("--topics", required=True, metavar="PREFIX")
    made.add_argument("--agent", default="refunds.agent:AGENT")
    made.add_argument("--provider", default="refunds.agent:make_provider")
    made.add_argument("--registry", default="refunds.agent:TOOLS")
    made.add_argument("--decode", default="refunds.agent:decode")
    made.add_argument("--config", default="refunds.agent:CONFIG")
    made.add_argument("--path", action="append", default=[], metavar="DIR", help="searched for the modules first")
    return made


def main(arguments: list[str] | None = None) -> None:
    """Build the pipeline, hand it to the runner, and wait for its end."""
    ours, beams = parser().parse_known_args(arguments)
    agent, config = load(
        CodeReferences(ours.agent, ours.provider, ours.registry, ours.decode, ours.config, tuple(ours.path))
    )
    with beam.Pipeline(options=PipelineOptions(beams)) as pipeline:
        build(pipeline, ours.brokers, ours.topics, agent, config)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main()
