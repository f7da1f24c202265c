"""How far event time has come, from what was read: the slowest partition that still has something to read decides.

A partition read to its end holds nothing back, so that a quiet one does not stop time. Time stands still when
nothing arrives at all.
"""

from __future__ import annotations

from typing import Protocol


class Watermark(Protocol):
    """Turns what was read into a time before which no element is expected; it never goes back."""

    def saw(self, partition: int, event_time_ms: int) -> None:
        """An element was read."""

    def drained(self, partition: int) -> None:
        """The partition was read to its end."""

    def value(self, wall_ms: int) -> int:
        """The watermark now, in epoch milliseconds."""


class EventTimeWatermark:
    """The watermark of `partitions`, from `floor_ms` on.

    It does not go beyond the wall clock: one event stamped far ahead must not age all other keys.
    """

    def __init__(self, partitions: list[int], floor_ms: int = 0) -> None:
        self._latest: dict[int, int | None] = dict.fromkeys(partitions)
        self._behind = set(partitions)
        self._value = floor_ms

    def saw(self, partition: int, event_time_ms: int) -> None:
        """An element was read, so the partition may hold more."""
        latest = self._latest.get(partition)
        self._latest[partition] = event_time_ms if latest is None else max(latest, event_time_ms)
        self._behind.add(partition)

    def drained(self, partition: int) -> None:
        """The partition was read to its end."""
        self._behind.discard(partition)

    def value(self, wall_ms: int) -> int:
        """The watermark now, in epoch milliseconds."""
        if self._behind:
            times = [self._latest[partition] for partition in self._behind]
            candidate = None if None in times else min(time for time in times if time is not None)
        else:
            candidate = max((time for time in self._latest.values() if time is not None), default=None)
        if candidate is not None:
            self._value = max(self._value, min(candidate, wall_ms))
        return self._value
