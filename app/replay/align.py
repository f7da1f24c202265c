"""Pair recorded with replayed events by what they are, not by where they stand.

Three passes, each inside the gaps that the one before left: equal meaning, equal type and label,
equal type. What is left over was removed or inserted. The work grows linearly with the number of
events: long timelines are searched window by window, and where a window is too different for that, parted
at runs of events that each side has just once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Final, TypeVar

from app.replay.events import Event

Pair = tuple[int | None, int | None]
Matches = list[tuple[int, int]]
Tokens = Sequence[int]
T = TypeVar("T")

SEARCH_LIMIT: Final = 100  # edits looked for at once
WINDOW: Final = 4 * SEARCH_LIMIT  # events of each side looked at together
RUN: Final = 4  # events in a row by which two timelines are tied together


def align(
    recorded: Sequence[Event],
    replayed: Sequence[Event],
    meaning: Callable[[Event], Hashable],
) -> list[Pair]:
    """Pairs of indexes in order; None stands for the side that has no counterpart.

    `meaning` is what an event says apart from its position: shifted steps and ids do not part two
    events that mean the same.
    """
    passes: list[Callable[[Event], Hashable]] = [
        meaning,
        lambda event: (event.type, event.label),
        lambda event: event.type,
    ]
    matches: Matches = []
    for token in passes:
        matches = list(_filled(matches, recorded, replayed, partial(_alike, token)))
    return list(_with_gaps(matches, recorded, replayed))


def _filled(
    matches: Matches, left: Sequence[T], right: Sequence[T], fill: Callable[[Sequence[T], Sequence[T]], Matches]
) -> Iterator[tuple[int, int]]:
    """The matches, and what `fill` finds between them."""
    at_left = at_right = 0
    for i, j in [*matches, (len(left), len(right))]:
        if at_left < i and at_right < j:
            yield from ((at_left + m, at_right + n) for m, n in fill(left[at_left:i], right[at_right:j]))
        if i < len(left):
            yield i, j
        at_left, at_right = i + 1, j + 1


def _alike(token: Callable[[Event], Hashable], left: Sequence[Event], right: Sequence[Event]) -> Matches:
    """Matches of events that share a token."""
    numbers: dict[Hashable, int] = {}
    return _common(*([numbers.setdefault(token(event), len(numbers)) for event in side] for side in (left, right)))


def _with_gaps(matches: Matches, left: Sequence[Event], right: Sequence[Event]) -> Iterator[Pair]:
    """All pairs, unmatched events in their place; an error comes before what it prevented."""
    at_left = at_right = 0
    for i, j in [*matches, (len(left), len(right))]:
        if at_right < j:
            yield from ((None, k) for k in range(at_right, j) if right[k].type == "ERROR")
        yield from ((k, None) for k in range(at_left, i))
        if at_right < j:
            yield from ((None, k) for k in range(at_right, j) if right[k].type != "ERROR")
        if i < len(left):
            yield i, j
        at_left, at_right = i + 1, j + 1


def _common(left: Tokens, right: Tokens, *, anchored: bool = False) -> Matches:
    """A long common subsequence of two token lists, as index pairs in order."""
    size = min(len(left), len(right))
    head = 0
    while head < size and left[head] == right[head]:
        head += 1
    tail = 0
    while tail < size - head and left[-1 - tail] == right[-1 - tail]:
        tail += 1
    found = [(i, i) for i in range(head)]
    a, b = left[head : len(left) - tail], right[head : len(right) - tail]
    found += [(head + i, head + j) for i, j in _middle(a, b, anchored)]
    found += [(len(left) - tail + i, len(right) - tail + i) for i in range(tail)]
    return found


def _middle(left: Tokens, right: Tokens, anchored: bool) -> Matches:
    """The same for lists that share neither head nor tail, window by window.

    What is found near the end of a window may be found better with what comes behind it, so the next one begins
    well before, behind the last match that is kept. Where one window is too different to be searched, it all begins
    anew between anchors; between these (`anchored`) it goes on from the furthest point.
    """
    shared = set(left) & set(right)
    a = [i for i, token in enumerate(left) if token in shared]
    b = [j for j, token in enumerate(right) if token in shared]
    found: Matches = []
    at_a = at_b = 0
    while at_a < len(a) and at_b < len(b):
        end_a, end_b = at_a + WINDOW, at_b + WINDOW
        piece, (step_a, step_b), searched = _search(
            [left[i] for i in a[at_a:end_a]], [right[j] for j in b[at_b:end_b]], more=(end_a < len(a), end_b < len(b))
        )
        if not searched and not anchored:
            return list(_filled(_anchors(left, right), left, right, partial(_common, anchored=True)))
        if searched and WINDOW in (step_a, step_b):
            piece = [(i, j) for i, j in piece if max(i, j) < WINDOW - SEARCH_LIMIT]
            step_a, step_b = piece[-1][0] + 1, piece[-1][1] + 1
        found += [(a[at_a + i], b[at_b + j]) for i, j in piece]
        at_a, at_b = at_a + step_a, at_b + step_b
    return found


def _anchors(left: Tokens, right: Tokens) -> Matches:
    """Where runs of tokens begin that each side has just once, but for those that lie the other way round."""
    there = _once(right)
    pairs = [(i, there[run]) for run, i in _once(left).items() if run in there]
    before = accumulate((j for _, j in pairs), max, initial=-1)
    behind = list(accumulate((j for _, j in reversed(pairs)), min, initial=len(right)))[-2::-1]
    return [(i, j) for (i, j), low, high in zip(pairs, before, behind, strict=False) if low < j < high]


def _once(tokens: Tokens) -> dict[tuple[int, ...], int]:
    """The runs that are there just once, and where each begins; in order."""
    runs = list(zip(*(tokens[at:] for at in range(RUN)), strict=False))
    counted = Counter(runs)
    return {run: at for at, run in enumerate(runs) if counted[run] == 1}


def _search(left: Tokens, right: Tokens, *, more: tuple[bool, bool]) -> tuple[Matches, tuple[int, int], bool]:
    """Greedy shortest edit script (Myers) of bounded length.

    Returns the matches, how far on each side they reach, and whether that is to both ends, or to one behind which there
    is `more`; when the bound is hit, it is to the furthest point found.
    """
    n, m = len(left), len(right)
    more_left, more_right = more
    reach: dict[int, int] = {1: 0}
    history: list[dict[int, int]] = []
    best = (0, 0, 0)
    for edits in range(min(n + m, SEARCH_LIMIT) + 1):
        history.append(dict(reach))
        for diagonal in range(-edits, edits + 1, 2):
            if diagonal == -edits or (diagonal != edits and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)):
                x = reach.get(diagonal + 1, 0)
            else:
                x = reach.get(diagonal - 1, -1) + 1
            y = x - diagonal
            while x < n and y < m and left[x] == right[y]:
                x, y = x + 1, y + 1
            reach[diagonal] = x
            if x > n or y > m:
                continue
            if (x == n and (more_left or y == m)) or (y == m and more_right):
                return _trace_back(history, x, y, edits), (x, y), True
            if x + y > best[0] + best[1]:
                best = (x, y, edits)
    x, y, edits = best
    return _trace_back(history, x, y, edits), (x, y), False


def _trace_back(history: list[dict[int, int]], x: int, y: int, edits: int) -> Matches:
    matches: Matches = []
    for step in range(edits, -1, -1):
        reach = history[step]
        diagonal = x - y
        if diagonal == -step or (diagonal != step and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)):
            previous = diagonal + 1
        else:
            previous = diagonal - 1
        from_x = reach.get(previous, 0) if step else 0
        from_y = from_x - previous if step else 0
        while x > from_x and y > from_y:
            x, y = x - 1, y - 1
            matches.append((x, y))
        x, y = from_x, from_y
    matches.reverse()
    return matches
