"""Ids and times that an agent framework draws anew in each run, in the state that it keeps for itself.

A checkpoint of a graph, a session or a message history carries fresh UUIDs and the time of day, so no two runs leave
the same bytes, though nothing that the agent decided differs. Such values are names: what counts is where they stand
and which of them are the same. They are looked for only in what a framework keeps under a prefix of its own
(`__langgraph__/…`), and in the snapshot that it hands to its own resume.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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

_CLOCKS: Final = frozenset({"time", "epoch"})
_COARSE: Final = 3  # digits of a second up to which two runs, or a run and its event, may have the same time by chance


def canonical(value: bytes) -> bytes:
    """Framework state with its ids numbered in the order in which they first stand there, and its times left out."""
    numbers: dict[bytes, int] = {}

    def number(match: re.Match[bytes]) -> bytes:
        kind = _kind(match)
        of_its_kind = 0 if kind in _CLOCKS else numbers.setdefault(match[0], len(numbers))
        return b"\x00%s %d\x00" % (kind.encode(), of_its_kind)

    return _DRAWN.sub(number, value)


def canonical_memory(blob: MemoryBlob) -> MemoryBlob:
    """A memory image, framework state in its canonical form."""
    copy = MemoryBlob()
    copy.CopyFrom(blob)
    for entry in copy.entries:
        if is_framework(entry.key):
            before = len(entry.value)
            entry.value = canonical(entry.value)
            copy.total_value_bytes += len(entry.value) - before
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


def found(memory: MemoryBlob, wait: Continuation) -> frozenset[bytes]:
    """Every id and time in the framework state of a memory image, and in the snapshot of a framework's wait."""
    values = [*values_of(memory).values(), wait.snapshot if wait.adapter else b""]
    return frozenset(match[0] for value in values for match in _DRAWN.finditer(value))


@dataclass
class Names:
    """Which drawn value of a re-run stands for which recorded one; one to one over all that was matched.

    `carried` are values that the re-run was handed in a state that was itself re-run, and that were drawn there.
    `given` is what the recorded attempt was handed as well: a value that stands there was not drawn by it.
    """

    carried: frozenset[bytes] = frozenset()
    given: Sequence[bytes] = ()
    _recorded_of: dict[bytes, bytes] = field(default_factory=dict)
    _replayed_of: dict[bytes, bytes] = field(default_factory=dict)
    _readings: dict[tuple[bytes, ...], bytes] = field(default_factory=dict)

    def match(self, recorded: bytes, replayed: bytes, again: Sequence[bytes]) -> Match | None:
        """How some state of a re-run stands for the recorded one; None where it differs in anything not drawn.

        `again` is the same state after the same run made anew: a value that comes out equal each time was not drawn.
        """
        theirs, ours = _Parts(recorded), _Parts(replayed)
        if theirs.rest != ours.rest:
            return None
        anew = [one.values for one in map(_Parts, again) if one.rest == ours.rest]
        recorded_of, replayed_of = dict(self._recorded_of), dict(self._replayed_of)
        readings, unclear = dict(self._readings), False
        for at, (mine, other, kind) in enumerate(zip(ours.values, theirs.values, ours.kinds, strict=True)):
            reading = (mine, *(values[at] for values in anew))
            same = len(set(reading)) == 1
            if kind in _CLOCKS:
                # Two readings of a clock may coincide in one run and not in another; one reading never parts.
                if mine != other and self._is_told(mine, other, same):
                    return None
                unclear |= mine != other and self._is_unclear(mine, other, same)
                unclear |= readings.setdefault(reading, other) != other
                continue
            if mine != other and mine not in self.carried and (same or self._is_given(other)):
                return None
            if recorded_of.setdefault(mine, other) != other or replayed_of.setdefault(other, mine) != mine:
                return None
        self._recorded_of, self._replayed_of, self._readings = recorded_of, replayed_of, readings
        changed = {pair for pair in zip(ours.values, theirs.values, strict=True) if pair[0] != pair[1]}
        return Match(len(changed), unclear)

    def _is_told(self, mine: bytes, other: bytes, same: bool) -> bool:
        """Whether one of two times was surely not read off the clock: it was given, or two runs alike have it."""
        if mine in self.carried:
            return False
        if same:
            return self._is_given(mine) or _digits(mine) > _COARSE
        return self._is_given(other) and _digits(other) > _COARSE

    def _is_unclear(self, mine: bytes, other: bytes, same: bool) -> bool:
        """Whether one of two times may have been read off the clock, or not."""
        if mine in self.carried:
            return False
        return same or min(_digits(mine), _digits(other)) < _COARSE or self._is_given(other)

    def _is_given(self, value: bytes) -> bool:
        return any(value in one for one in self.given)


@dataclass(frozen=True)
class Match:
    """State of a re-run that stands for a recorded one: `count` of its ids and times are others.

    `unclear`: of a time among them nothing tells whether it was read off the clock. Two runs within one second read
    the same second, so one that comes out equal need not be the code's.
    """

    count: int
    unclear: bool


class _Parts:
    """Framework state taken apart: `values` are its ids and times, `rest` is everything else, with their `kinds`."""

    def __init__(self, state: bytes) -> None:
        self.values: list[bytes] = []
        self.kinds: list[str] = []
        self.rest: list[bytes] = []
        end = 0
        for match in _DRAWN.finditer(state):
            self.kinds.append(_kind(match))
            self.rest += [state[end : match.start()], self.kinds[-1].encode()]
            self.values.append(match[0])
            end = match.end()
        self.rest.append(state[end:])


def _kind(match: re.Match[bytes]) -> str:
    return match.lastgroup or ""


def _digits(time: bytes) -> int:
    """How many digits of a second a time has."""
    fraction = re.search(rb"\.(\d+)", time)
    return len(fraction[1]) if fraction else 0
