"""RunAgent: an agent's whole pipeline step, from keyed envelopes to five streams and their sinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
from apache_beam import typehints
from apache_beam.transforms.window import GlobalWindows

from app.pipeline.beam.dofn import KeyedDoFn
from app.pipeline.beam.sinks import resolve_sinks
from app.pipeline.keyed import Stream
from app.runtime import transform
from app.runtime.config import AgentConfig
from app.wire.records import ActivationErrorRecord, AgentEnvelope, StateSnapshot, ToolIntent, TraceEvent, parse

_RECORDS: Final[dict[Stream, type]] = {
    Stream.INTENTS: ToolIntent,
    Stream.TRACES: TraceEvent,
    Stream.ERRORS: AgentEnvelope,
    Stream.SNAPSHOTS: StateSnapshot,
}


@dataclass(frozen=True)
class RunAgentOutputs(transform.RunAgentOutputs):
    """The collections that RunAgent yields; `keyed_output` is `output` with the entity key before each."""

    keyed_output: Any


class RunAgent(beam.PTransform):
    """Runs `agent` for every key of a PCollection[KV[bytes, AgentEnvelope]]; the KV's key is the one that counts.

    Applied, it gives RunAgentOutputs: `output` (bytes), `keyed_output` (KV[bytes, bytes]), `intents` (ToolIntent),
    `traces` (TraceEvent), `errors` (AgentEnvelope around an ActivationErrorRecord), `snapshots` (StateSnapshot) and
    `dead_letter` (the bare ActivationErrorRecord of each error). Streams with a sink URI in the configuration are
    written there; the others are left to the pipeline, and one that nobody reads costs nothing. Raises ValueError for
    a sink that cannot take its stream, when built, and for input that is not in the global window, when applied.
    """

    def __init__(self, agent: Callable[..., Any], config: AgentConfig, label: str | None = None) -> None:
        super().__init__(label)
        self._agent = agent
        self._config = config
        self._sinks = resolve_sinks(config)

    def expand(self, pcoll: Any) -> RunAgentOutputs:
        """Build the step."""
        if not isinstance(pcoll.windowing.windowfn, GlobalWindows):
            raise ValueError(
                f"RunAgent keeps one state for a key's whole life, and its input is in {pcoll.windowing.windowfn}:"
                " apply beam.WindowInto(beam.window.GlobalWindows()) first"
            )
        # With its types told, whatever the pipeline knew of them, a key is encoded as bytes on every runner.
        keyed = pcoll | "Keyed" >> beam.Map(_same).with_output_types(tuple[bytes, AgentEnvelope])
        outputs = keyed | "Activate" >> beam.ParDo(KeyedDoFn(self._agent, self._config)).with_outputs(
            *map(str, _RECORDS), main=str(Stream.OUTPUTS)
        )
        keyed_output = outputs[str(Stream.OUTPUTS)]
        keyed_output.element_type = typehints.Tuple[bytes, bytes]
        streams: dict[Stream, Any] = {stream: outputs[str(stream)] for stream in _RECORDS}
        for stream, record in _RECORDS.items():
            # Beam cannot tell the types of tagged outputs, and with them it finds the records' own coder.
            streams[stream].element_type = record
        for stream, sink in self._sinks.items():
            streams[stream] | f"Write {stream}" >> sink
        return RunAgentOutputs(
            output=keyed_output | "Output" >> beam.Map(_value).with_output_types(bytes),
            keyed_output=keyed_output,
            intents=streams[Stream.INTENTS],
            traces=streams[Stream.TRACES],
            errors=streams[Stream.ERRORS],
            snapshots=streams[Stream.SNAPSHOTS],
            dead_letter=streams[Stream.ERRORS] | "Unwrap" >> beam.Map(_unwrap).with_output_types(ActivationErrorRecord),
        )


def _same(element: tuple[bytes, AgentEnvelope]) -> tuple[bytes, AgentEnvelope]:
    return element


def _value(pair: tuple[bytes, bytes]) -> bytes:
    return pair[1]


def _unwrap(envelope: AgentEnvelope) -> ActivationErrorRecord:
    return parse(ActivationErrorRecord, envelope.external_event)
