"""Many keys in one process: their states, and which of their timers are due.

For hosts that have no runner beneath them. Timers fire in the order of the times they were set to; among equal
times, in the order in which they were set.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from app.pipeline import keyed
from app.pipeline.loop import TurnLoop
from app.pipeline.state import EMPTY, KeyState, Timer, TimerSetting
from app.pipeline.turn import KeySettings, Step
from app.wire.records import AgentEnvelope

EVENT_TIME: Final = (Timer.TTL,)
PROCESSING_TIME: Final = (Timer.HITL, Timer.FLUSH)
_SLACK: Final = 1024


class Turned(NamedTuple):
    """One turn that was taken, by whichever key."""

    key: bytes
    step: Step


class Keyspace:
    """The keys of a pipeline. `wall` is the wall clock in epoch milliseconds."""

    def __init__(
        self,
        settings: KeySettings,
        wall: Callable[[], int],
        states: Mapping[bytes, KeyState] | None = None,
    ) -> None:
        self.settings = settings
        self.states: dict[bytes, KeyState] = dict(states or {})
        self._wall = wall
        self._loop = TurnLoop()
        self._due: dict[Timer, list[tuple[int, int, bytes]]] = {timer: [] for timer in Timer}
        self._sets = 0
        for key, state in self.states.items():
            self._watch(key, [TimerSetting(timer, getattr(state.marks, timer)) for timer in Timer])

    def close(self) -> None:
        """Close the event loop on which the turns ran."""
        self._loop.close()

    def process(self, key: bytes, envelope: AgentEnvelope) -> Turned:
        """Take an element; raises what `keyed.process` raises, with nothing changed."""
        state = self.states.get(key, EMPTY)
        turn = keyed.process(key, state, envelope, self.settings, wall_ms=self._wall())
        return self._keep(key, self._loop.run(turn))

    def fire_due(self, timers: tuple[Timer, ...], until_ms: int | None) -> Iterator[Turned]:
        """Fire the timers that are set to a time up to `until_ms` (None: all), also those that a firing sets.

        Each turn is taken when it is asked for. Raises what `keyed.fire` raises, with that timer still set.
        """
        while (due := self._next(timers, until_ms)) is not None:
            timer, at_ms, key = due
            turn = keyed.fire(key, self.states[key], timer, at_ms, self.settings, wall_ms=self._wall())
            step = self._loop.run(turn)
            heapq.heappop(self._due[timer])
            yield self._keep(key, step)

    def next_due(self, timers: tuple[Timer, ...]) -> int | None:
        """When the earliest of these timers is due; None when none is set."""
        due = self._next(timers, None)
        return None if due is None else due[1]

    def _keep(self, key: bytes, step: Step) -> Turned:
        if step.state == EMPTY:
            self.states.pop(key, None)
        else:
            self.states[key] = step.state
        self._watch(key, step.timers)
        return Turned(key, step)

    def _watch(self, key: bytes, settings: tuple[TimerSetting, ...] | list[TimerSetting]) -> None:
        for timer, at_ms in settings:
            if at_ms is not None:
                self._sets += 1
                heapq.heappush(self._due[timer], (at_ms, self._sets, key))
                self._tidy(timer)

    def _tidy(self, timer: Timer) -> None:
        """Drop settings that were replaced before a busy key fills the heap with them."""
        heap = self._due[timer]
        if len(heap) > _SLACK + 2 * len(self.states):
            heap[:] = filter(self._holds(timer), heap)
            heapq.heapify(heap)

    def _holds(self, timer: Timer) -> Callable[[tuple[int, int, bytes]], bool]:
        def holds(setting: tuple[int, int, bytes]) -> bool:
            state = self.states.get(setting[2])
            return state is not None and getattr(state.marks, timer) == setting[0]

        return holds

    def _next(self, timers: tuple[Timer, ...], until_ms: int | None) -> tuple[Timer, int, bytes] | None:
        heads = ((head, timer) for timer in timers if (head := self._head(timer)) is not None)
        (at_ms, _, key), timer = min(heads, default=((0, 0, b""), None))
        if timer is None or (until_ms is not None and at_ms > until_ms):
            return None
        return timer, at_ms, key

    def _head(self, timer: Timer) -> tuple[int, int, bytes] | None:
        """The earliest setting that still holds: a timer set again leaves its older ones behind."""
        heap, holds = self._due[timer], self._holds(timer)
        while heap and not holds(heap[0]):
            heapq.heappop(heap)
        return heap[0] if heap else None
