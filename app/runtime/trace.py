"""Trace events of one attempt: built with their identities, kept in the order in which they happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from app.wire import identity
from app.wire.records import TraceEvent

ACTIVATION_KIND: Final = "beam_agents.activation.kind"
ACTIVATION_STATUS: Final = "beam_agents.activation.status"
BATCH_SIZE: Final = "beam_agents.batch.size"
BATCH_TRIGGER: Final = "beam_agents.batch.trigger"
REASON: Final = "beam_agents.reason"
ERROR_TYPE: Final = "error.type"
FAILURE_STEP: Final = "beam_agents.failure.step"
FAILURE_LAST_EVENT: Final = "beam_agents.failure.last_event"
FAILURE_STAGED_INTENTS: Final = "beam_agents.failure.staged_intents"
FAILURE_LLM_CALLS: Final = "beam_agents.failure.llm_calls"
TOOL_NAME: Final = "beam_agents.tool_name"
INTENT_ID: Final = "beam_agents.intent_id"
INTENT_KIND: Final = "beam_agents.intent_kind"
EXPIRES_AT: Final = "beam_agents.expires_at_ms"
DEADLINE: Final = "beam_agents.deadline_ms"
ADAPTER: Final = "beam_agents.adapter"
PENDING_INTENT_IDS: Final = "beam_agents.pending_intent_ids"
OPERATION: Final = "gen_ai.operation.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_HIT: Final = "beam_agents.cache_hit"
BILLED: Final = "beam_agents.billed"
ATTEMPTS: Final = "beam_agents.attempts"
CIRCUIT_STATE: Final = "beam_agents.circuit_state"

KIND_START: Final = "start"
KIND_RESUME: Final = "resume"

_ACTIVATION_EVENTS: Final = frozenset({TraceEvent.ACTIVATION_START, TraceEvent.ACTIVATION_END})


class TraceIds(NamedTuple):
    """What `ctx.trace` offers: the ids of the attempt's own activation span."""

    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes


def event_name(event_type: int) -> str:
    """The enum name of an event type, its number where this schema has no name for it."""
    value = TraceEvent.EventType.DESCRIPTOR.values_by_number.get(event_type)
    return str(event_type) if value is None else value.name


class Trace:
    """The staged events of one attempt, all stamped with its clock."""

    def __init__(self, *, entity_key: bytes, seq: int, now_ms: int, entry_step: int, is_resume: bool) -> None:
        self.entity_key = entity_key
        self.seq = seq
        self.kind = KIND_RESUME if is_resume else KIND_START
        root = identity.span_id(entity_key, seq, identity.ROLE_ACTIVATION, 0) if is_resume else b""
        self.ids = TraceIds(
            identity.trace_id(entity_key, seq),
            identity.span_id(entity_key, seq, identity.ROLE_ACTIVATION, entry_step),
            root,
        )
        self.events: list[TraceEvent] = []
        self._tools = 0
        self._common = TraceEvent(
            trace_id=self.ids.trace_id,
            parent_span_id=self.ids.span_id,
            entity_key=entity_key,
            seq=seq,
            start_ms=now_ms,
            end_ms=now_ms,
        )

    @property
    def last_event(self) -> str:
        """The name of the event staged last; an attempt begins by staging ACTIVATION_START."""
        return event_name(self.events[-1].event_type) if self.events else "ACTIVATION_START"

    def start(self, extra: Mapping[str, str]) -> None:
        """Stage ACTIVATION_START, whose step is 0 for a resume too."""
        self._activation(TraceEvent.ACTIVATION_START, 0, {ACTIVATION_KIND: self.kind, **extra})

    def end(self, step_index: int, status: str) -> None:
        """Stage ACTIVATION_END with `completed` or `suspended`."""
        attributes = {ACTIVATION_STATUS: status, ACTIVATION_KIND: self.kind}
        self._activation(TraceEvent.ACTIVATION_END, step_index, attributes)

    def tool_call(self, step_index: int, tool_name: str) -> None:
        """Stage TOOL_CALL under the attempt's next tool index."""
        index, self._tools = self._tools, self._tools + 1
        self._child(TraceEvent.TOOL_CALL, "TOOL_CALL", index, step_index, {TOOL_NAME: tool_name})

    def llm_call(self, step_index: int, attributes: Mapping[str, str]) -> None:
        """Stage LLM_CALL."""
        self._child(TraceEvent.LLM_CALL, "LLM_CALL", step_index, step_index, attributes)

    def intent_emitted(self, step_index: int, attributes: Mapping[str, str]) -> None:
        """Stage INTENT_EMITTED."""
        self._child(TraceEvent.INTENT_EMITTED, "INTENT_EMITTED", step_index, step_index, attributes)

    def suspended(self, step_index: int, attributes: Mapping[str, str]) -> None:
        """Stage SUSPENDED."""
        self._child(TraceEvent.SUSPENDED, "SUSPENDED", step_index, step_index, attributes)

    def stage(self, event: TraceEvent) -> None:
        """Append an agent's own event as it is, filling only the ids it left empty."""
        ids = self.ids
        own = event.event_type in _ACTIVATION_EVENTS
        if not event.trace_id:
            event.trace_id = ids.trace_id
        if not event.span_id:
            event.span_id = (
                ids.span_id
                if own
                else identity.span_id(self.entity_key, self.seq, event_name(event.event_type), event.step_index)
            )
        if not event.parent_span_id:
            event.parent_span_id = ids.parent_span_id if own else ids.span_id
        self.events.append(event)

    def _activation(self, event_type: TraceEvent.EventType, step_index: int, attributes: Mapping[str, str]) -> None:
        event = self._new(event_type, self.ids.span_id, step_index, attributes)
        event.parent_span_id = self.ids.parent_span_id
        self.events.append(event)

    def _child(
        self,
        event_type: TraceEvent.EventType,
        role: str,
        index: int,
        step_index: int,
        attributes: Mapping[str, str],
    ) -> None:
        span_id = identity.span_id(self.entity_key, self.seq, role, index)
        self.events.append(self._new(event_type, span_id, step_index, attributes))

    def _new(
        self, event_type: TraceEvent.EventType, span_id: bytes, step_index: int, attributes: Mapping[str, str]
    ) -> TraceEvent:
        # Copying the common part and filling the map key by key takes half the time of one constructor call.
        event = TraceEvent()
        event.CopyFrom(self._common)
        event.event_type = event_type
        event.span_id = span_id
        event.step_index = step_index
        filled = event.attributes
        for name, value in attributes.items():
            filled[name] = value
        return event


def error_event(
    *,
    entity_key: bytes,
    seq: int,
    at_ms: int,
    reason: str,
    error_type: str | None = None,
    failure: Mapping[str, str] | None = None,
    role: str = identity.ROLE_ERROR,
) -> TraceEvent:
    """The lone ERROR event of a failure, an orphan (`role` ERROR) or a timer (`role` timer).

    It hangs below the start's activation span even when a resume failed.
    """
    attributes = {REASON: reason}
    if error_type is not None:
        attributes[ERROR_TYPE] = error_type
    attributes.update(failure or {})
    return TraceEvent(
        trace_id=identity.trace_id(entity_key, seq),
        span_id=identity.span_id(entity_key, seq, role, 0),
        parent_span_id=identity.span_id(entity_key, seq, identity.ROLE_ACTIVATION, 0),
        entity_key=entity_key,
        seq=seq,
        event_type=TraceEvent.ERROR,
        attributes=attributes,
        start_ms=at_ms,
        end_ms=at_ms,
    )
