"""Map trace events of the pipeline to neutral events, in the canonical order of an attempt.

This is the only place in comparison that knows the framework's event types, attributes and derived
ids. Order: START; then, for each step, its tool calls before the event that took the step; then
SUSPENDED and END. Ties are ordered by content, so delivery order never matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet

from app.replay.attempts import (
    ATTRIBUTE_INTENT_ID,
    ATTRIBUTE_KIND,
    ATTRIBUTE_REASON,
    Type,
)
from app.replay.events import Event
from app.wire import identity
from app.wire.records import TraceEvent, serialize, unknown_fields

NORMALISED: Final = frozenset({"beam_agents.cache_hit", "beam_agents.billed"})

POSITIONAL: Final = frozenset(
    {
        "step_index",
        "span_id",
        "parent_span_id",
        f"attributes.{ATTRIBUTE_INTENT_ID}",
        "attributes.beam_agents.pending_intent_ids",
        "attributes.beam_agents.failure.step",
        "attributes.beam_agents.failure.staged_intents",
    }
)
"""Fields that follow from where an event stands; they shift with whatever was put before it."""

_LABELS: Final[dict[int, str]] = {
    Type.ACTIVATION_START: ATTRIBUTE_KIND,
    Type.ACTIVATION_END: ATTRIBUTE_KIND,
    Type.LLM_CALL: "gen_ai.request.model",
    Type.TOOL_CALL: "beam_agents.tool_name",
    Type.INTENT_EMITTED: "beam_agents.intent_kind",
    Type.ERROR: ATTRIBUTE_REASON,
}

_ABOUT: Final[dict[int, str]] = {
    Type.INTENT_EMITTED: "beam_agents.tool_name",
    Type.ACTIVATION_END: "beam_agents.activation.status",
    Type.ERROR: "error.type",
}

_NAMES: Final[dict[int, str]] = dict(zip(Type.values(), Type.keys(), strict=True))

_LAST: Final = 1 << 40
_POSITIONAL_ATTRIBUTES: Final = frozenset(
    name.removeprefix("attributes.") for name in POSITIONAL if name.startswith("attributes.")
)


def type_name(number: int) -> str:
    """An event type by name; one that this version does not know by number."""
    return _NAMES.get(number, f"event type {number}")


def ordered(
    events: Iterable[TraceEvent],
    entity_key: bytes,
    seq: int,
    payload: Callable[[TraceEvent], Mapping[str, str]],
) -> list[Event]:
    """Neutral events of one attempt in canonical order; equal ones collapse to one.

    `payload` gives what is known of an event beside the trace.
    """
    distinct: dict[bytes, TraceEvent] = {}
    for event in events:
        distinct.setdefault(content(event), event)
    tools = sum(event.event_type == Type.TOOL_CALL for event in distinct.values())
    spans = {identity.span_id(entity_key, seq, "TOOL_CALL", i): i for i in range(tools)}
    keyed = sorted(
        ((_position(event, spans), key, event) for key, event in distinct.items()),
        key=lambda item: item[:2],
    )
    return [neutral(event, payload(event)) for _, _, event in keyed]


def content(event: TraceEvent) -> bytes:
    """Bytes that two equal events share.

    Normalised attributes count by their presence alone, and fields that this schema does not know
    do not count: another exporter of the same event may not have written them.
    """
    present = [name for name in NORMALISED if name in event.attributes]
    unknown = len(UnknownFieldSet(event))
    if not present and not unknown:
        return serialize(event)
    copy = TraceEvent()
    copy.CopyFrom(event)
    if unknown:
        copy.DiscardUnknownFields()  # type: ignore[attr-defined]
    for name in present:
        copy.attributes[name] = ""
    return serialize(copy)


def _position(event: TraceEvent, tool_spans: Mapping[bytes, int]) -> tuple[int, int, int, int]:
    kind = event.event_type
    if kind == Type.ACTIVATION_START:
        return 0, 0, 0, 0
    if kind == Type.SUSPENDED:
        return 2, 0, 0, 0
    if kind == Type.ACTIVATION_END:
        return 3, 0, 0, 0
    if kind == Type.TOOL_CALL:
        return 1, event.step_index, 0, tool_spans.get(event.span_id, _LAST)
    return 1, event.step_index, 1, 0


def neutral(event: TraceEvent, payload: Mapping[str, str] | None = None) -> Event:
    """One trace event as a neutral one."""
    attributes = {name: event.attributes[name] for name in sorted(event.attributes)}
    label = attributes.get(_LABELS.get(event.event_type, ""), "")
    unknown: Sequence[str] = ()
    if len(UnknownFieldSet(event)):
        unknown = tuple(unknown_fields(event))
    span = event.span_id.hex()
    return Event(
        type=type_name(event.event_type),
        label=label,
        about=attributes.get(_ABOUT.get(event.event_type, ""), ""),
        step=event.step_index,
        span_id=span,
        time_ms=event.start_ms,
        attributes=attributes,
        identity={
            "span_id": span,
            "parent_span_id": event.parent_span_id.hex(),
            "trace_id": event.trace_id.hex(),
            "entity_key": event.entity_key.hex(),
            "seq": str(event.seq),
            "start_ms": str(event.start_ms),
            "end_ms": str(event.end_ms),
        },
        payload=payload or {},
        unknown=tuple(unknown),
    )


def meaning(event: Event) -> object:
    """What an event says apart from where it stands and how its answer was served."""
    skip = NORMALISED if event.type == "LLM_CALL" else ()
    return (
        event.type,
        event.label,
        tuple(
            sorted(
                (name, value)
                for name, value in event.attributes.items()
                if name not in _POSITIONAL_ATTRIBUTES and name not in skip
            )
        ),
        tuple(sorted(event.payload.items())),
    )
