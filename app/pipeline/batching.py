"""Adaptive batching: events wait in a buffer until there are enough of them or the oldest has waited too long."""

from __future__ import annotations

from typing import Final

from app.pipeline import attempt
from app.pipeline.state import Timer
from app.pipeline.turn import Turn
from app.runtime.batching import (
    TRIGGER_SIZE,
    TRIGGER_TIMER,
    BatchSettings,
    buffer_is_full,
    should_flush_on_size,
    should_flush_on_timer,
)
from app.wire.records import AgentEnvelope, parse, serialize

REASON_OVERFLOW: Final = "batch_buffer_overflow"


async def buffer(turn: Turn, batch: BatchSettings, envelope: AgentEnvelope) -> None:
    """Append a start to the buffer, or refuse it where that is full; flush at the size limit."""
    buffered = len(turn.state.batch)
    if buffer_is_full(batch, buffered):
        turn.dead_letter(
            REASON_OVERFLOW, f"buffered={buffered},cap={batch.max_buffered_events}", envelope.event_time_ms
        )
        return
    turn.write(batch=(*turn.state.batch, serialize(envelope)))
    if buffered == 0:
        turn.set_timer(Timer.FLUSH, turn.wall_ms + batch.max_wait_ms)
    # Also while suspended: a late event may pull the wipe before the suspension's own.
    turn.set_timer(Timer.TTL, envelope.event_time_ms + turn.settings.ttl_ms)
    if should_flush_on_size(batch, buffered + 1, suspended=_suspended(turn)):
        await _flush(turn, TRIGGER_SIZE)


async def on_flush_timer(turn: Turn) -> None:
    """Let through what waits, unless a suspension is live."""
    if should_flush_on_timer(len(turn.state.batch), suspended=_suspended(turn)):
        await _flush(turn, TRIGGER_TIMER)


def release(turn: Turn) -> None:
    """A suspension has ended: let through at once what arrived while it held the buffer back."""
    if turn.state.batch and not _suspended(turn):
        turn.set_timer(Timer.FLUSH, turn.wall_ms)


async def _flush(turn: Turn, trigger: str) -> None:
    members = [parse(AgentEnvelope, member) for member in turn.state.batch]
    clock = max(member.event_time_ms for member in members)
    # The buffer is used up whatever becomes of the attempt.
    turn.write(batch=())
    turn.clear_timer(Timer.FLUSH)
    await attempt.start(turn, tuple(member.external_event for member in members), clock, trigger)


def _suspended(turn: Turn) -> bool:
    return turn.state.continuation is not None
