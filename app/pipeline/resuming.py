"""An answer arrives: it resumes the suspension that waits for it, or is an orphan."""

from __future__ import annotations

from typing import Final

from app.pipeline import attempt, batching
from app.pipeline.turn import Turn
from app.runtime import trace as tracing
from app.runtime.hitl import intent_expired
from app.wire.records import AgentEnvelope, Continuation, ToolIntent, parse

REASON_ORPHANED: Final = "orphaned_result"


async def answer(turn: Turn, envelope: AgentEnvelope) -> None:
    """Resume with a tool result or an approval; nothing runs and nothing changes for an orphan."""
    approved = envelope.HasField("approval")
    intent_id = envelope.approval.intent_id if approved else envelope.tool_result.intent_id
    continuation = turn.continuation()
    now_ms = envelope.event_time_ms
    why = _refusal(continuation, turn.state.pending, intent_id, now_ms)
    if continuation is not None and why is None:
        if await attempt.resume(turn, continuation, envelope):
            batching.release(turn)
        return
    turn.dead_letter(REASON_ORPHANED, f"{why}:{intent_id}", now_ms)
    seq = turn.state.seq if continuation is None else continuation.seq
    turn.trace(tracing.error_event(entity_key=turn.key, seq=seq, at_ms=now_ms, reason=REASON_ORPHANED, error_type=why))


def _refusal(continuation: Continuation | None, pending: tuple[bytes, ...], intent_id: str, now_ms: int) -> str | None:
    """Why an answer may not resume, None when it may; the order of the checks is part of the record."""
    if continuation is None:
        return "no_continuation"
    if intent_id not in continuation.pending_intent_ids:
        return "unknown_intent"
    if continuation.deadline_ms <= 0 or now_ms >= continuation.deadline_ms:
        return "deadline_passed"
    intents = (parse(ToolIntent, intent) for intent in pending)
    if any(intent.intent_id == intent_id and intent_expired(intent, now_ms) for intent in intents):
        return "intent_expired"
    return None
