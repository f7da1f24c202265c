"""Which offsets have been read: "not found" may be said only when none is left out."""

from __future__ import annotations

from collections.abc import Iterator

Span = tuple[int, int]
"""Offsets from the first up to, and without, the second."""


class Spans:
    """A set of offsets, kept as the fewest spans that hold it, ascending."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def add(self, start: int, end: int) -> None:
        """Put the offsets from `start` up to `end` in; an empty or backward span adds nothing."""
        if start >= end:
            return
        kept = [one for one in self._spans if one[1] < start or one[0] > end]
        joined = [one for one in self._spans if one[1] >= start and one[0] <= end]
        kept.append((min([start, *(one[0] for one in joined)]), max([end, *(one[1] for one in joined)])))
        self._spans = sorted(kept)

    def missing(self, start: int, end: int) -> list[Span]:
        """What of `start` up to `end` is not in, ascending."""
        gaps = []
        for low, high in self._spans:
            if low >= end:
                break
            if low > start:
                gaps.append((start, low))
            start = max(start, high)
        if start < end:
            gaps.append((start, end))
        return gaps

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        """How many offsets are in."""
        return sum(end - start for start, end in self._spans)
