"""Running an attempt inside a turn: what it commits, and what is left when it fails."""

from __future__ import annotations

from app.pipeline.emission import Stream
from app.pipeline.state import Timer
from app.pipeline.turn import Turn, current
from app.runtime.activation import ActivationInput, ActivationResult, activate
from app.wire.records import AgentEnvelope, Continuation, LlmCacheBlob, MemoryBlob, ToolResult, serialize


async def start(turn: Turn, events: tuple[bytes, ...], now_ms: int, batch_trigger: str | None = None) -> bool:
    """Run a start at the counter's value; True when it committed."""
    inp = ActivationInput(
        entity_key=turn.key,
        seq=turn.state.seq,
        now_ms=now_ms,
        events=events,
        batch_trigger=batch_trigger,
        memory=current(MemoryBlob, turn.state.memory),
        cache=current(LlmCacheBlob, turn.state.cache),
    )
    return await _run(turn, inp, dead_letters=len(events))


async def resume(turn: Turn, continuation: Continuation, envelope: AgentEnvelope) -> bool:
    """Run a resume at its suspension's seq; True when it committed."""
    result = approval = None
    # The agent gets copies: the envelope belongs to the runner, which may deliver it again.
    if envelope.HasField("approval"):
        approval = AgentEnvelope.Approval()
        approval.CopyFrom(envelope.approval)
    else:
        result = ToolResult()
        result.CopyFrom(envelope.tool_result)
    inp = ActivationInput(
        entity_key=turn.key,
        seq=continuation.seq,
        now_ms=envelope.event_time_ms,
        resume_result=result,
        resume_approval=approval,
        continuation=continuation,
        memory=current(MemoryBlob, turn.state.memory),
        cache=current(LlmCacheBlob, turn.state.cache),
    )
    return await _run(turn, inp, dead_letters=1)


async def _run(turn: Turn, inp: ActivationInput, *, dead_letters: int) -> bool:
    result = await activate(inp, turn.settings.hooks)
    if result.dead_letter is not None:
        turn.dead_letters(result.dead_letter, dead_letters)
        turn.records(Stream.TRACES, result.events)
        return False
    _commit(turn, inp.now_ms, result)
    return True


def _commit(turn: Turn, now_ms: int, result: ActivationResult) -> None:
    continuation = result.continuation
    was_suspended = turn.state.continuation is not None
    turn.write(
        memory=serialize(result.memory),
        cache=serialize(result.cache),
        continuation=None if continuation is None else serialize(continuation),
        pending=tuple(map(serialize, result.intents)),
        seq=turn.state.seq + 1,
    )
    expires_from = now_ms
    if continuation is not None:
        turn.set_timer(Timer.HITL, continuation.deadline_ms)
        expires_from = max(now_ms, continuation.deadline_ms)
    elif was_suspended:
        turn.clear_timer(Timer.HITL)
    turn.set_timer(Timer.TTL, expires_from + turn.settings.ttl_ms)
    if result.output is not None:
        turn.output(result.output)
    turn.records(Stream.INTENTS, result.intents)
    turn.records(Stream.TRACES, result.events)
