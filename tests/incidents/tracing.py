"""Trace events as a pipeline sends them, made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.wire import identity
from app.wire.records import EventType, TraceEvent, serialize


@dataclass(frozen=True)
class Told:
    """The trace of one attempt, in the order in which it is sent."""

    key: bytes
    values: tuple[bytes, ...]


def attempt(
    key: bytes,
    seq: int,
    clock: int,
    *,
    kind: str = "start",
    entry: int = 0,
    calls: int = 1,
    tools: Sequence[str] = (),
    intents: Sequence[str] = (),
    intent_ids: Sequence[str] = (),
    status: str = "completed",
    batch: int = 0,
) -> Told:
    """An activation that committed: model calls, then tools, then intents."""
    trace, span = identity.trace_id(key, seq), identity.span_id(key, seq, identity.ROLE_ACTIVATION, entry)
    values: list[bytes] = []
    step = entry

    def add(event_type: int, own: bytes, at: int, parent: bytes = span, **attributes: str) -> None:
        told = {name.replace("__", "."): value for name, value in attributes.items()}
        event = TraceEvent(
            trace_id=trace, span_id=own, parent_span_id=parent, entity_key=key, seq=seq, step_index=at,
            event_type=event_type, attributes=told, start_ms=clock, end_ms=clock,  # type: ignore[arg-type]
        )  # fmt: skip
        values.append(serialize(event))

    of_batch = {"beam_agents__batch__size": str(batch), "beam_agents__batch__trigger": "size"} if batch else {}
    add(EventType.ACTIVATION_START, span, 0, b"", beam_agents__activation__kind=kind, **of_batch)
    for _ in range(calls):
        add(EventType.LLM_CALL, identity.span_id(key, seq, "LLM_CALL", step), step, gen_ai__request__model="m-1")
        step += 1
    for index, tool in enumerate(tools):
        add(EventType.TOOL_CALL, identity.span_id(key, seq, "TOOL_CALL", index), step, beam_agents__tool_name=tool)
    for index, tool in enumerate(intents):
        own = intent_ids[index] if intent_ids else identity.intent_id(key, seq, step)
        add(EventType.INTENT_EMITTED, identity.span_id(key, seq, "INTENT_EMITTED", step), step,
            beam_agents__intent_id=own, beam_agents__tool_name=tool, beam_agents__intent_kind="TOOL",
            beam_agents__expires_at_ms=str(clock + 3_600_000))  # fmt: skip
        step += 1
    add(EventType.ACTIVATION_END, span, step, b"", beam_agents__activation__status=status,
        beam_agents__activation__kind=kind)  # fmt: skip
    return Told(key, tuple(values))


def failure(key: bytes, seq: int, clock: int, reason: str, error_type: str = "") -> Told:
    """The lone ERROR of an attempt that committed nothing, or of a refused answer."""
    attributes = {"beam_agents.reason": reason} | ({"error.type": error_type} if error_type else {})
    event = TraceEvent(
        trace_id=identity.trace_id(key, seq), span_id=identity.span_id(key, seq, "ERROR", 0),
        parent_span_id=identity.span_id(key, seq, identity.ROLE_ACTIVATION, 0), entity_key=key, seq=seq,
        event_type=EventType.ERROR, attributes=attributes, start_ms=clock, end_ms=clock,  # type: ignore[arg-type]
    )  # fmt: skip
    return Told(key, (serialize(event),))
