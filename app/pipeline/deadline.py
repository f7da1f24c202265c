"""A suspension's deadline has passed: the pipeline's policy denies, drops, or asks somebody else."""

from __future__ import annotations

from app.pipeline import batching
from app.pipeline.emission import Stream, error_envelope
from app.pipeline.state import Timer
from app.pipeline.turn import Turn
from app.runtime import trace as tracing
from app.runtime.hitl import REASON_HITL_TIMEOUT, Deny, Drop, Escalate
from app.runtime.outcome import FallbackContext
from app.wire import identity
from app.wire.records import ActivationErrorRecord, Continuation, ToolIntent, TraceEvent, serialize


def on_hitl_timer(turn: Turn, fired_at_ms: int) -> None:
    """Ask the policy; a timer without a suspension, or set for an earlier one, does nothing."""
    continuation = turn.continuation()
    if continuation is None or fired_at_ms < continuation.deadline_ms:
        return
    try:
        _follow(turn, continuation, fired_at_ms)
    except Exception as error:  # noqa: BLE001 - a policy is the agent author's code: its failure is a record
        detail = f"seq={continuation.seq} policy_error={_safe_repr(error)}"
        turn.dead_letter(REASON_HITL_TIMEOUT, detail, fired_at_ms)
        _give_up(turn, continuation, fired_at_ms)


def _follow(turn: Turn, continuation: Continuation, fired_at_ms: int) -> None:
    """Do what the policy says; raises, with nothing done, what the policy raised or what cannot be sent."""
    policy = turn.settings.hooks.config.hitl_policy
    route = policy.on_timeout(
        FallbackContext(
            entity_key=turn.key,
            seq=continuation.seq,
            snapshot=continuation.snapshot,
            deadline_ms=continuation.deadline_ms,
            fired_at_ms=fired_at_ms,
            pending_intent_ids=tuple(continuation.pending_intent_ids),
        )
    )
    if isinstance(route, Escalate):
        if continuation.escalations < policy.max_escalations:
            _escalate(turn, continuation, route, fired_at_ms)
            return
        route = Deny()
    if isinstance(route, Deny):
        turn.output(route.output)
    elif isinstance(route, Drop):
        record = ActivationErrorRecord(
            entity_key=turn.key, reason=route.reason, detail=f"seq={continuation.seq}", event_time_ms=fired_at_ms
        )
        turn.records(Stream.ERRORS, (error_envelope(record),))
    else:
        raise TypeError(f"on_timeout returns Deny, Drop or Escalate, not {type(route).__name__}")
    _give_up(turn, continuation, fired_at_ms)


def _give_up(turn: Turn, continuation: Continuation, fired_at_ms: int) -> None:
    turn.trace(
        tracing.error_event(
            entity_key=turn.key,
            seq=continuation.seq,
            at_ms=fired_at_ms,
            reason=REASON_HITL_TIMEOUT,
            role=identity.ROLE_TIMER,
        )
    )
    turn.write(continuation=None, pending=())
    batching.release(turn)


def _escalate(turn: Turn, continuation: Continuation, route: Escalate, fired_at_ms: int) -> None:
    """Ask again: the older intents stay answerable, the suspension lives until the new deadline."""
    seq, step, deadline_ms = continuation.seq, continuation.step_index, fired_at_ms + route.timeout_ms
    intent = ToolIntent(
        intent_id=identity.intent_id(turn.key, seq, step),
        entity_key=turn.key,
        seq=seq,
        step_index=step,
        tool_name=route.tool_name,
        args_json=route.args_json,
        created_at_ms=fired_at_ms,
        expires_at_ms=deadline_ms,
        kind=ToolIntent.APPROVAL,
        trace_id=identity.trace_id(turn.key, seq),
    )
    waiting = Continuation()
    waiting.CopyFrom(continuation)
    waiting.step_index = step + 1
    waiting.escalations += 1
    waiting.pending_intent_ids.append(intent.intent_id)
    waiting.deadline_ms = deadline_ms
    turn.write(continuation=serialize(waiting), pending=(*turn.state.pending, serialize(intent)))
    turn.set_timer(Timer.HITL, deadline_ms)
    turn.set_timer(Timer.TTL, deadline_ms + turn.settings.ttl_ms)
    turn.intent(intent)
    turn.trace(_escalation_event(intent, fired_at_ms))


def _escalation_event(intent: ToolIntent, fired_at_ms: int) -> TraceEvent:
    """INTENT_EMITTED under a span of its own step, which no activation event carries."""
    key, seq, step = intent.entity_key, intent.seq, intent.step_index
    return TraceEvent(
        trace_id=intent.trace_id,
        span_id=identity.span_id(key, seq, "INTENT_EMITTED", step),
        parent_span_id=identity.span_id(key, seq, identity.ROLE_ACTIVATION, step),
        entity_key=key,
        seq=seq,
        step_index=step,
        event_type=TraceEvent.INTENT_EMITTED,
        attributes={
            tracing.INTENT_ID: intent.intent_id,
            tracing.TOOL_NAME: intent.tool_name,
            tracing.INTENT_KIND: "APPROVAL",
            tracing.EXPIRES_AT: str(intent.expires_at_ms),
        },
        start_ms=fired_at_ms,
        end_ms=fired_at_ms,
    )


def _safe_repr(error: Exception) -> str:
    """The exception as text that protobuf can hold, whatever its class does."""
    try:
        text = repr(error)
    except Exception as broken:  # noqa: BLE001 - a __repr__ of the policy's own
        text = f"<{type(error).__name__}, whose repr raises {type(broken).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
