"""What a runner keeps for one key between two elements, as one immutable value.

Cells hold the serialized bytes that were committed, so that an export gives back what was written, and so that
neither an agent nor a failed attempt can change them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

INT64_MAX: Final = 2**63 - 1


class Timer(StrEnum):
    """The timers of a key: `ttl` in event time, `hitl` and `flush` in processing time."""

    TTL = "ttl"
    HITL = "hitl"
    FLUSH = "flush"


class Marks(NamedTuple):
    """When each timer is set to fire, in epoch milliseconds; None where it is not set."""

    ttl: int | None = None
    hitl: int | None = None
    flush: int | None = None


UNSET: Final = Marks()


class TimerSetting(NamedTuple):
    """One change of a timer: `at_ms` replaces an earlier setting, None clears it."""

    timer: Timer
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class KeyState:
    """One key's cells and timers; a key never seen has them all at their defaults.

    `memory`, `cache` and `continuation` are the serialized blobs, None until written. `pending` holds serialized
    ToolIntents, `batch` serialized AgentEnvelopes that wait for an activation, in order of arrival. `seq` is the
    commit counter: what the next start runs at.
    """

    memory: bytes | None = None
    cache: bytes | None = None
    continuation: bytes | None = None
    pending: tuple[bytes, ...] = ()
    seq: int = 0
    batch: tuple[bytes, ...] = ()
    marks: Marks = UNSET

    def marked(self, timer: Timer, at_ms: int | None) -> KeyState:
        """The same cells with one timer set or cleared."""
        if getattr(self.marks, timer) == at_ms:
            return self
        return replace(self, marks=self.marks._replace(**{timer: at_ms}))


EMPTY: Final = KeyState()
