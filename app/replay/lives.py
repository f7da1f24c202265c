"""The lives of a key: a TTL wipe restarts its counter, so that a seq can be started twice.

Event times may run backwards inside a life, so a clock alone does not say which life an attempt is of. A wipe comes
after a time to live without an event, and events stray by less than that; so between the first starts of two lives
an attempt is of the one that it lies near, and of neither for sure where it lies in the middle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from app.replay.attempts import Attempt, Category, is_frame
from app.replay.mapping import content

NEAR: Final = 2  # how many times nearer to one life than to the other settles it

_RAN: Final = (Category.ACTIVATION, Category.FAILURE, Category.INCOMPLETE)


def assign_lives(attempts: list[Attempt]) -> None:
    """Number the lives of a key, and mark the attempts that may be of one life or the next.

    A life begins at the clock of a committed start at seq 0. An attempt earlier than every such start belongs to the
    first one.
    """
    starts = [a for a in attempts if a.committed and a.kind == "start"]
    begins = sorted(a.clock_ms for a in starts if a.seq == 0)
    if len(begins) < 2:
        begins = _begins_from_repeats(starts) or begins
    last = list(begins)  # the latest clock that is surely of each life
    for attempt in sorted(attempts, key=lambda a: a.clock_ms):
        life = max(0, bisect_right(begins, attempt.clock_ms) - 1)
        attempt.life, attempt.unsettled = life, False
        if life + 1 < len(begins) and attempt.category in _RAN:
            since, until = attempt.clock_ms - last[life], begins[life + 1] - attempt.clock_ms
            if NEAR * until <= since:
                attempt.life += 1
            elif NEAR * since <= until:
                last[life] = attempt.clock_ms
            else:
                attempt.unsettled = True
    _unsettle_repeats(attempts)


def _unsettle_repeats(attempts: Iterable[Attempt]) -> None:
    """Of two attempts in one place of one life, one is of another life; nothing tells which."""
    places: dict[tuple[int, str, int, int | None], Attempt] = {}
    for attempt in attempts:
        if not attempt.committed or attempt.unsettled:
            continue
        other = places.setdefault((attempt.life, attempt.kind, attempt.seq, attempt.entry_step), attempt)
        if other is not attempt:
            attempt.unsettled = other.unsettled = True


def _begins_from_repeats(starts: list[Attempt]) -> list[int]:
    """Where lives begin when their first start was not delivered: at the first repeat of a seq."""
    begins: list[int] = []
    seen: set[int] = set()
    for attempt in sorted(starts, key=lambda a: a.clock_ms):
        if not begins:
            begins.append(attempt.clock_ms)
        if attempt.seq in seen:
            begins.append(attempt.clock_ms)
            seen = set()
        seen.add(attempt.seq)
    return begins if len(begins) > 1 else []


def settled(attempts: Iterable[Attempt], life: int) -> list[Attempt]:
    """The attempts that are surely of a life."""
    return [attempt for attempt in attempts if attempt.life == life and not attempt.unsettled]


def life_count(attempts: Iterable[Attempt]) -> int:
    """How many lives of the key the trace shows (at least 1)."""
    return max((attempt.life for attempt in attempts), default=0) + 1


def same_start(attempts: Sequence[Attempt]) -> bool:
    """Whether one span at one clock holds the frames of two attempts, as when two lives begin at one event time."""
    frames = {
        (content(record.event), a.seq, a.clock_ms, record.event.span_id, record.event.event_type)
        for a in attempts
        for record in a.records
        if is_frame(record.event)
    }
    return len({frame[1:] for frame in frames}) < len(frames)
