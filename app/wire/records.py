"""Records and their bytes: one place that knows how a message is read, written and refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from app.wire.records_pb2 import (
    ActivationErrorRecord,
    AgentEnvelope,
    Continuation,
    LlmCacheBlob,
    LongTermRecord,
    MemoryBlob,
    StateSnapshot,
    ToolIntent,
    ToolResult,
    TraceEvent,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ActivationErrorRecord",
    "AgentEnvelope",
    "Continuation",
    "EventType",
    "LlmCacheBlob",
    "LongTermRecord",
    "MemoryBlob",
    "RecordError",
    "StateSnapshot",
    "ToolIntent",
    "ToolResult",
    "TraceEvent",
    "parse",
    "serialize",
    "unknown_fields",
]


class EventType:
    """The event types of this schema as plain integers: comparing with a record's field is a hot path."""

    UNSPECIFIED: Final[int] = 0
    ACTIVATION_START: Final[int] = 1
    LLM_CALL: Final[int] = 2
    TOOL_CALL: Final[int] = 3
    INTENT_EMITTED: Final[int] = 4
    ACTIVATION_END: Final[int] = 5
    ERROR: Final[int] = 6
    SUSPENDED: Final[int] = 7


WIRE_TYPES = {0: "varint", 1: "64-bit", 2: "length-delimited", 3: "group", 5: "32-bit"}

M = TypeVar("M", bound=Message)


class RecordError(ValueError):
    """Bytes that are not a record of the expected type."""

    def __init__(self, expected: str, problem: str) -> None:
        article = "an" if expected[0] in "AEIO" else "a"
        super().__init__(f"not {article} {expected}: {problem}")
        self.expected = expected
        self.problem = problem


def serialize(message: Message) -> bytes:
    """Deterministic bytes: fields by number, map entries by key."""
    return message.SerializeToString(deterministic=True)


def parse(message_type: type[M], data: bytes) -> M:
    """Parse bytes as a record type; raises RecordError naming the type and the size."""
    message = message_type()
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        name = message_type.DESCRIPTOR.name
        raise RecordError(name, f"{len(data)} bytes do not parse as one") from error
    return message


def unknown_fields(message: Message, path: str = "") -> Iterator[str]:
    """Name every field that this schema does not know, as `path.#number (wire type)`."""
    for field in UnknownFieldSet(message):
        kind = WIRE_TYPES.get(field.wire_type, str(field.wire_type))
        yield f"{path}#{field.field_number} ({kind})"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        items = value if descriptor.is_repeated else [value]
        for item in items:
            yield from unknown_fields(item, f"{path}{descriptor.name}.")
