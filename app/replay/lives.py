"""The lives of a key: a TTL wipe restarts its counter, so that a seq can be started twice.

Event times may run backwards inside a life, so a clock alone does not say which life an attempt is of. A wipe comes
after a time to live without an event, and events stray by less than that; so between the first starts of two lives
an attempt is of the one that it lies near, and of neither for sure where it lies in the middle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence, Set
from itertools import pairwise
from typing import Final

from app.replay.attempts import ATTRIBUTE_INTENT_ID, Attempt, Category, is_frame
from app.replay.mapping import content
from app.wire import identity
from app.wire.records import EventType, TraceEvent

NEAR: Final = 2  # how many times nearer to one life than to the other settles it

_STEPS: Final = (EventType.LLM_CALL, EventType.INTENT_EMITTED)
_RAN: Final = (Category.ACTIVATION, Category.FAILURE, Category.INCOMPLETE)


def assign_lives(attempts: list[Attempt]) -> None:
    """Number the lives of a key, and mark the attempts that may be of one life or the next.

    A life begins at the clock of a start at seq 0 that was committed, as its frames tell, be it one alone. An attempt
    earlier than every such start belongs to the first one, unless several of them lie far before it: then the first
    start of their own life was not delivered.
    """
    starts = [a for a in attempts if a.kind == "start"]
    begins = sorted(a.clock_ms for a in starts if a.seq == 0)
    if len(begins) < 2:
        begins = _begins_from_repeats(starts) or begins
    begins = _begin_before(attempts, begins) + begins
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


def unsettle_backwards(attempts: Iterable[Attempt], states: Sequence[Set[int]]) -> None:
    """Mark what is earlier than all that came before it, unless one captured state holds its clock and one of theirs.

    Event times may run backwards inside a life; so do they look where one life lacks the end of its trace, and the
    next its beginning. `states` are the clocks that each captured state carries. In later lives the distance to the
    one before has settled it.
    """
    clocks: set[int] = set()  # of lower counters
    earliest: int | None = None  # of these
    ran = [a for a in attempts if a.category in _RAN and not a.unsettled and a.life == 0]
    for attempt in sorted(ran, key=_place):
        if earliest is not None and attempt.clock_ms < earliest:
            attempt.unsettled = not any(attempt.clock_ms in held and held & clocks for held in states)
        if attempt.category is not Category.FAILURE and not attempt.unsettled:
            clocks.add(attempt.clock_ms)
            earliest = attempt.clock_ms if earliest is None else min(earliest, attempt.clock_ms)


def _place(attempt: Attempt) -> tuple[int, int, int]:
    """Where an attempt stands among those of its life; one that failed may have been the first try of its seq."""
    rank = 0 if attempt.category is Category.FAILURE else 1 if attempt.kind == "start" else 2
    return attempt.seq, rank, attempt.entry_step or 0


def _begin_before(attempts: Iterable[Attempt], begins: list[int]) -> list[int]:
    """Where a life begins whose first start was not delivered, before all others; none where nothing speaks for one."""
    earlier = sorted({a.clock_ms for a in attempts if a.committed and begins and a.clock_ms < begins[0]})
    gaps = [later - one for one, later in pairwise(earlier)]
    return earlier[:1] if gaps and begins[0] - earlier[-1] > NEAR * max(gaps) else []


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
    """Whether one group holds two attempts, as when two lives begin at one event time: frames or steps are double."""
    frames = {
        (content(record.event), a.seq, a.clock_ms, record.event.span_id, record.event.event_type)
        for a in attempts
        for record in a.records
        if is_frame(record.event)
    }
    return len({frame[1:] for frame in frames}) < len(frames) or any(map(_steps_twice, attempts))


def _steps_twice(attempt: Attempt) -> bool:
    """Whether two different events of the pipeline's own took one step, which no attempt does."""
    steps = [r.event.step_index for r in attempt.records if r.event.event_type in _STEPS]
    if len(steps) == len(set(steps)):
        return False
    took: dict[int, bytes] = {}
    for record in attempt.records:
        event = record.event
        if _takes_a_step(event, attempt) and took.setdefault(event.step_index, content(event)) != content(event):
            return True
    return False


def _takes_a_step(event: TraceEvent, attempt: Attempt) -> bool:
    told = event.attributes
    if event.event_type == EventType.INTENT_EMITTED:
        intent = identity.intent_id(attempt.entity_key, attempt.seq, event.step_index)
        return told.get(ATTRIBUTE_INTENT_ID) == intent
    ours = "gen_ai.operation.name" in told and "beam_agents.attempts" not in told
    return event.event_type == EventType.LLM_CALL and ours and event.start_ms == attempt.clock_ms
