"""One key's life as a pure function: state and element or timer in, new state, emissions and timers out.

A host keeps the state, the timers and the order of elements per key; everything else about a key is decided
here, the same on every host. Nothing here reads a clock: `wall_ms` is handed in.
"""

from __future__ import annotations

from app.pipeline import attempt, batching, deadline, expiry, export, resuming
from app.pipeline.emission import Emission, Stream, encode
from app.pipeline.state import EMPTY, KeyState, Marks, Timer, TimerSetting
from app.pipeline.turn import KeySettings, Step, Turn
from app.wire.records import AgentEnvelope

__all__ = [
    "EMPTY",
    "Emission",
    "KeySettings",
    "KeyState",
    "Marks",
    "Step",
    "Stream",
    "Timer",
    "TimerSetting",
    "encode",
    "fire",
    "process",
]


async def process(key: bytes, state: KeyState, envelope: AgentEnvelope, settings: KeySettings, *, wall_ms: int) -> Step:
    """Take one element of a key; `key` is the runner's, whatever the envelope says.

    `wall_ms` is the wall clock in epoch milliseconds, from which the flush timer is set. Raises
    StateMigrationError or RecordError for state that this release cannot read; the element then has to be
    taken again by one that can.
    """
    turn = Turn(key, state, settings, wall_ms)
    payload = envelope.WhichOneof("payload")
    if payload == "export_request":
        export.answer(turn, envelope)
    elif payload in ("tool_result", "approval"):
        await resuming.answer(turn, envelope)
    elif settings.batch is not None:
        await batching.buffer(turn, settings.batch, envelope)
    else:
        await attempt.start(turn, (envelope.external_event,), envelope.event_time_ms)
    return turn.done()


async def fire(key: bytes, state: KeyState, timer: Timer, at_ms: int, settings: KeySettings, *, wall_ms: int) -> Step:
    """Fire a timer of a key; `at_ms` is the time it was set to, not the time at which that was noticed.

    Raises what `process` raises, and what an expire hook raises.
    """
    # What fired is no longer set; setting it again is the turn's business.
    turn = Turn(key, state.marked(timer, None), settings, wall_ms)
    if timer is Timer.TTL:
        await expiry.on_ttl_timer(turn, at_ms)
    elif timer is Timer.HITL:
        deadline.on_hitl_timer(turn, at_ms)
    else:
        await batching.on_flush_timer(turn)
    return turn.done()
