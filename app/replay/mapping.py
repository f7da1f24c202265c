"""Map trace events of the pipeline to neutral events, in the canonical order of an attempt.

This is the only place in comparison that knows the framework's event types, attributes and derived
ids. Order: START; then, for each step, its tool calls before the event that took the step; then
SUSPENDED and END. Ties are ordered by content, so delivery order never matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet

from app.replay.attempts import ATTRIBUTE_INTENT_ID, ATTRIBUTE_KIND, ATTRIBUTE_REASON
from app.replay.events import Event
from app.wire import identity
from app.wire.records import EventType, TraceEvent, serialize, unknown_fields

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
    EventType.ACTIVATION_START: ATTRIBUTE_KIND,
    EventType.ACTIVATION_END: ATTRIBUTE_KIND,
    EventType.LLM_CALL: "gen_ai.request.model",
    EventType.TOOL_CALL: "beam_agents.tool_name",
    EventType.INTENT_EMITTED: "beam_agents.intent_kind",
    EventType.ERROR: ATTRIBUTE_REASON,
}

_ABOUT: Final[dict[int, str]] = {
    EventType.INTENT_EMITTED: "beam_agents.tool_name",
    EventType.ACTIVATION_END: "beam_agents.activation.status",
    EventType.ERROR: "error.type",
}

_NAMES: Final[dict[int, str]] = {number: name for name, number in TraceEvent.EventType.items()}

_LAST: Final = 1 << 40
_POSITIONAL_ATTRIBUTES: Final = frozenset(
    name.removeprefix("attributes.") for name in POSITIONAL if name.startswith("attributes.")
)
_NO_MEANING_OF_A_CALL: Final = _POSITIONAL_ATTRIBUTES | NORMALISED


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
    known = list(events)
    tools = sum(event.event_type == EventType.TOOL_CALL for event in known)
    spans = {identity.span_id(entity_key, seq, "TOOL_CALL", i): i for i in range(tools)}
    keyed = [(_position(event, spans), event) for event in known]
    keyed.sort(key=itemgetter(0))
    found: list[Event] = []
    for _, group in groupby(keyed, key=itemgetter(0)):
        tied = [event for _, event in group]
        found += [neutral(event, payload(event)) for event in (_distinct(tied) if len(tied) > 1 else tied)]
    return found


def _distinct(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Events that differ in content, ordered by it; of equal ones the first."""
    first: dict[bytes, TraceEvent] = {}
    for event in events:
        first.setdefault(content(event), event)
    return [first[key] for key in sorted(first)]


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
    if kind == EventType.ACTIVATION_START:
        return 0, 0, 0, 0
    if kind == EventType.SUSPENDED:
        return 2, 0, 0, 0
    if kind == EventType.ACTIVATION_END:
        return 3, 0, 0, 0
    if kind == EventType.TOOL_CALL:
        return 1, event.step_index, 0, tool_spans.get(event.span_id, _LAST)
    return 1, event.step_index, 1, 0


def neutral(event: TraceEvent, payload: Mapping[str, str] | None = None) -> Event:
    """One trace event as a neutral one."""
    held = event.attributes
    attributes = {name: held[name] for name in sorted(held)}
    kind = event.event_type
    span = event.span_id.hex()
    start = event.start_ms
    return Event(
        type=type_name(kind),
        label=attributes.get(_LABELS.get(kind, ""), ""),
        about=attributes.get(_ABOUT.get(kind, ""), ""),
        step=event.step_index,
        span_id=span,
        time_ms=start,
        attributes=attributes,
        identity={
            "span_id": span,
            "parent_span_id": event.parent_span_id.hex(),
            "trace_id": event.trace_id.hex(),
            "entity_key": event.entity_key.hex(),
            "seq": str(event.seq),
            "start_ms": str(start),
            "end_ms": str(event.end_ms),
        },
        payload=payload or {},
        unknown=tuple(unknown_fields(event)) if len(UnknownFieldSet(event)) else (),
    )


def meaning(event: Event) -> object:
    """What an event says apart from where it stands and how its answer was served."""
    skip = _NO_MEANING_OF_A_CALL if event.type == "LLM_CALL" else _POSITIONAL_ATTRIBUTES
    return (
        event.type,
        event.label,
        tuple([item for item in event.attributes.items() if item[0] not in skip]),
        tuple(event.payload.items()),
    )
