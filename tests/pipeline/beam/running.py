"""A recording's steps as a TestStream, run on the direct runner; what comes out is written down by stream."""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, ProtoCoder, TupleCoder
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from app.pipeline.beam import RunAgent
from app.pipeline.emission import Emission
from app.pipeline.keyed import Stream, encode
from app.runtime.transform import RunAgentOutputs
from app.wire.records import AgentEnvelope
from tests.pipeline.recorded import Step

CODER = TupleCoder((BytesCoder(), ProtoCoder(AgentEnvelope)))

# The direct runner runs in this process, so what a DoFn puts here is here afterwards.
_written: dict[int, dict[Stream, list[bytes]]] = {}
_runs = itertools.count()


class Write(beam.DoFn):
    """Writes the records of one stream down."""

    def __init__(self, run: int, stream: Stream) -> None:
        self.run, self.stream = run, stream

    def process(self, value: Any) -> None:
        _written[self.run][self.stream].append(encode(Emission(self.stream, b"", value)))


def stream_of(steps: list[Step]) -> TestStream:
    """The steps as Beam's own test source."""
    source = TestStream(coder=CODER)
    for step in steps:
        if step.envelope is not None:
            at = Timestamp(micros=step.envelope.event_time_ms * 1000)
            source.add_elements([TimestampedValue((step.envelope.entity_key, step.envelope), at)])
        elif step.kind == "advance_processing_time_ms":
            source.advance_processing_time((step.at_ms or 0) / 1000)
        elif step.at_ms is None:
            source.advance_watermark_to_infinity()
        else:
            source.advance_watermark_to(Timestamp(micros=step.at_ms * 1000))
    return source


def streams(outputs: RunAgentOutputs) -> dict[Stream, Any]:
    """The collections by stream."""
    return {
        Stream.OUTPUTS: outputs.output,
        Stream.INTENTS: outputs.intents,
        Stream.TRACES: outputs.traces,
        Stream.ERRORS: outputs.errors,
        Stream.SNAPSHOTS: outputs.snapshots,
    }


@contextmanager
def noting() -> Iterator[tuple[int, dict[Stream, list[bytes]]]]:
    """A run's number, and the records that are noted under it."""
    number = next(_runs)
    _written[number] = defaultdict(list)
    yield number, _written[number]
    del _written[number]


def note(number: int, outputs: RunAgentOutputs) -> None:
    """Write every stream down."""
    for stream, collection in streams(outputs).items():
        collection | f"Note {stream}" >> beam.ParDo(Write(number, stream))


def run(agent: Any, config: Any, steps: list[Step]) -> dict[Stream, list[bytes]]:
    """Run the steps through RunAgent on the direct runner."""
    options = PipelineOptions([])
    options.view_as(StandardOptions).streaming = True
    with noting() as (number, sent):
        with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
            note(number, pipeline | stream_of(steps) | RunAgent(agent, config))
        return sent
