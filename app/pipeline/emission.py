"""What a key sends into the world: records on named streams, each ready to be a sink's value."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from google.protobuf.message import Message

from app.wire.records import ActivationErrorRecord, AgentEnvelope, serialize


class Stream(StrEnum):
    """The five streams that leave a pipeline."""

    OUTPUTS = "outputs"
    INTENTS = "intents"
    TRACES = "traces"
    ERRORS = "errors"
    SNAPSHOTS = "snapshots"


class Emission(NamedTuple):
    """One record on its way out.

    `value` is a ToolIntent, a TraceEvent, the AgentEnvelope around an error record, or a StateSnapshot; on
    `outputs` it is what the agent returned. `key` is what a sink partitions by: the record's own entity key, on
    `outputs` the key that ran.
    """

    stream: Stream
    key: bytes
    value: Any


class NotBytes(TypeError):
    """An agent completed with an output that no sink can write."""

    def __init__(self, key: bytes, value: object) -> None:
        super().__init__(
            f"the agent's output for key {key!r} is of type {type(value).__name__}, expected bytes:"
            " return Complete(output=...) with encoded bytes"
        )


def encode(emission: Emission) -> bytes:
    """The bytes that a sink writes; raises NotBytes for an output that is something else."""
    value = emission.value
    if isinstance(value, bytes):
        return value
    if isinstance(value, Message):
        return serialize(value)
    raise NotBytes(emission.key, value)


def error_envelope(record: ActivationErrorRecord) -> AgentEnvelope:
    """The errors stream carries a dead letter as the event of an envelope with the same key and time."""
    return AgentEnvelope(
        entity_key=record.entity_key, event_time_ms=record.event_time_ms, external_event=serialize(record)
    )
