"""Ids and times that an agent framework draws anew in each run, in the state that it keeps for itself.

A checkpoint of a graph, a session or a message history carries fresh UUIDs and the time of day, so no two runs leave
the same bytes, though nothing that the agent decided differs. Such values are names: what counts is where they stand
and which of them are the same. They are looked for only in what a framework keeps under a prefix of its own
(`__langgraph__/…`), and in the snapshot that it hands to its own resume.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from app.wire.records import Continuation, MemoryBlob

_RESERVED: Final = re.compile(r"__[a-z0-9_]+?__/")
_DRAWN: Final = re.compile(
    rb"(?<![0-9a-fA-F])(?:"
    rb"(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    rb"|(?P<hex>[0-9a-f]{32})"
    rb")(?![0-9a-fA-F])"
    rb"|(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)?)"
    rb"|(?<![\d.])(?P<epoch>\d{10}\.\d{1,9})(?![\d.])"
)


def canonical(value: bytes) -> bytes:
    """Framework state with its ids and times numbered in the order in which they first stand there."""
    numbers: dict[bytes, int] = {}

    def number(match: re.Match[bytes]) -> bytes:
        return b"\x00%s %d\x00" % ((match.lastgroup or "").encode(), numbers.setdefault(match[0], len(numbers)))

    return _DRAWN.sub(number, value)


def canonical_memory(blob: MemoryBlob) -> MemoryBlob:
    """A memory image, framework state in its canonical form."""
    copy = MemoryBlob()
    copy.CopyFrom(blob)
    for entry in copy.entries:
        if is_framework(entry.key):
            entry.value = canonical(entry.value)
    return copy


def canonical_wait(continuation: Continuation) -> Continuation:
    """A continuation, the snapshot of a framework in its canonical form."""
    copy = Continuation()
    copy.CopyFrom(continuation)
    if copy.adapter:
        copy.snapshot = canonical(copy.snapshot)
    return copy


def is_framework(key: str) -> bool:
    """Whether a memory key lies under a prefix that a framework keeps to itself."""
    return _RESERVED.match(key) is not None


def values_of(blob: MemoryBlob) -> dict[str, bytes]:
    """The framework state of a memory image, by key."""
    return {entry.key: entry.value for entry in blob.entries if is_framework(entry.key)}


def found(values: Iterable[bytes]) -> frozenset[bytes]:
    """Every id and time in some framework state."""
    return frozenset(match[0] for value in values for match in _DRAWN.finditer(value))


@dataclass
class Names:
    """Which drawn value of a re-run stands for which recorded one; one to one over all that was matched.

    `carried` are values that the re-run was handed in a state that was itself re-run: they were drawn, too.
    """

    carried: frozenset[bytes] = frozenset()
    _recorded_of: dict[bytes, bytes] = field(default_factory=dict)
    _replayed_of: dict[bytes, bytes] = field(default_factory=dict)

    def match(self, recorded: bytes, replayed: bytes, again: bytes | None) -> int:
        """How many values of a re-run stand for other recorded ones; 0 where anything else differs.

        `again` is the same state after the same run made once more: a value that comes out equal there was not drawn.
        """
        pairs = self._pairs(recorded, replayed, again)
        if pairs is None:
            return 0
        recorded_of, replayed_of = dict(self._recorded_of), dict(self._replayed_of)
        for ours, theirs in pairs:
            if recorded_of.setdefault(ours, theirs) != theirs or replayed_of.setdefault(theirs, ours) != ours:
                return 0
        self._recorded_of, self._replayed_of = recorded_of, replayed_of
        return sum(ours != theirs for ours, theirs in set(pairs))

    def _pairs(self, recorded: bytes, replayed: bytes, again: bytes | None) -> list[tuple[bytes, bytes]] | None:
        """Each replayed value and the recorded one in its place; None where the two differ in anything not drawn."""
        theirs, ours = _Parts(recorded), _Parts(replayed)
        if theirs.rest != ours.rest:
            return None
        anew = None if again is None else _Parts(again)
        steady = ours.values if anew is None or anew.rest != ours.rest else anew.values
        pairs = list(zip(ours.values, theirs.values, strict=True))
        for (mine, other), once_more in zip(pairs, steady, strict=True):
            if mine != other and mine == once_more and mine not in self.carried:
                return None
        return pairs


class _Parts:
    """Framework state taken apart: `values` are its ids and times, `rest` is everything else, with their kinds."""

    def __init__(self, state: bytes) -> None:
        self.values: list[bytes] = []
        self.rest: list[bytes] = []
        end = 0
        for match in _DRAWN.finditer(state):
            self.rest += [state[end : match.start()], (match.lastgroup or "").encode()]
            self.values.append(match[0])
            end = match.end()
        self.rest.append(state[end:])
