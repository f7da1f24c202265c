"""A key has been quiet for its time to live: everything it held is wiped, and what was waiting is told so."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from app.pipeline.state import EMPTY, Timer
from app.pipeline.turn import Turn, current
from app.runtime import trace as tracing
from app.runtime.compaction import ExpiringMemory
from app.wire import identity
from app.wire.records import MemoryBlob

REASON_WIPED_SUSPENSION: Final = "ttl_wiped_suspension"
REASON_WIPED_BATCH: Final = "ttl_wiped_batch"


async def on_ttl_timer(turn: Turn, mark_ms: int) -> None:
    """Wipe every cell, the counter too; what the expire hook raises is raised, and nothing is wiped."""
    continuation = turn.continuation()
    if continuation is not None:
        detail = f"seq={continuation.seq},deadline_ms={continuation.deadline_ms}"
        turn.dead_letter(REASON_WIPED_SUSPENSION, detail, mark_ms)
        turn.trace(
            tracing.error_event(
                entity_key=turn.key,
                seq=continuation.seq,
                at_ms=mark_ms,
                reason=REASON_WIPED_SUSPENSION,
                role=identity.ROLE_TIMER,
            )
        )
    await _save_memory(turn, mark_ms)
    buffered = len(turn.state.batch)
    for index in range(buffered):
        turn.dead_letter(REASON_WIPED_BATCH, f"buffered={buffered},index={index}", mark_ms)
    # A HITL timer stays set: it will find no suspension.
    turn.state = replace(EMPTY, marks=turn.state.marks)
    if turn.settings.batch is not None:
        turn.clear_timer(Timer.FLUSH)


async def _save_memory(turn: Turn, mark_ms: int) -> None:
    store = turn.settings.hooks.config.longterm_store
    hook = turn.settings.on_expire
    if store is None or hook is None:
        return
    memory = current(MemoryBlob, turn.state.memory)
    if memory is not None and memory.entries:
        await hook(store, ExpiringMemory(turn.key, turn.state.seq, memory, mark_ms))
