"""Pair recorded with replayed events by what they are, not by where they stand.

Three passes, each inside the gaps that the one before left: equal meaning, equal type and label,
equal type. What is left over was removed or inserted. The work grows linearly with the number of
events; a very long edit script is cut into pieces rather than searched for the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, TypeVar

from app.replay.events import Event

Pair = tuple[int | None, int | None]
Tokens = list[Hashable]
T = TypeVar("T")

SEARCH_LIMIT: Final = 100  # edits looked for at once


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
    whole = (0, len(recorded), 0, len(replayed))
    matches = _match(recorded, replayed, whole, passes)
    return list(_with_gaps(matches, recorded, replayed))


Span = tuple[int, int, int, int]


def _match(
    left: Sequence[Event],
    right: Sequence[Event],
    span: Span,
    passes: Sequence[Callable[[Event], Hashable]],
) -> list[tuple[int, int]]:
    """Matched index pairs inside a span, using the passes in turn."""
    low, high, start, end = span
    if not passes or low == high or start == end:
        return []
    token, rest = passes[0], passes[1:]
    common = _common([token(event) for event in left[low:high]], [token(event) for event in right[start:end]])
    matched: list[tuple[int, int]] = []
    at_left, at_right = low, start
    for i, j in [*((low + i, start + j) for i, j in common), (high, end)]:
        matched += _match(left, right, (at_left, i, at_right, j), rest)
        if i < high:
            matched.append((i, j))
        at_left, at_right = i + 1, j + 1
    return matched


def _with_gaps(matches: list[tuple[int, int]], left: Sequence[Event], right: Sequence[Event]) -> Iterator[Pair]:
    """All pairs, unmatched events in their place; an error comes before what it prevented."""
    at_left = at_right = 0
    for i, j in [*matches, (len(left), len(right))]:
        errors = [k for k in range(at_right, j) if right[k].type == "ERROR"]
        yield from ((None, k) for k in errors)
        yield from ((k, None) for k in range(at_left, i))
        yield from ((None, k) for k in range(at_right, j) if k not in errors)
        if i < len(left):
            yield i, j
        at_left, at_right = i + 1, j + 1


def _common(left: Tokens, right: Tokens) -> list[tuple[int, int]]:
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
    found += [(head + i, head + j) for i, j in _middle(a, b)]
    found += [(len(left) - tail + i, len(right) - tail + i) for i in range(tail)]
    return found


def _middle(left: Tokens, right: Tokens) -> list[tuple[int, int]]:
    """The same for lists that share neither head nor tail, piece by piece."""
    shared = set(left) & set(right)
    a = [i for i, token in enumerate(left) if token in shared]
    b = [j for j, token in enumerate(right) if token in shared]
    found: list[tuple[int, int]] = []
    at_a = at_b = 0
    while at_a < len(a) and at_b < len(b):
        piece, step_a, step_b = _search(
            [left[i] for i in a[at_a : at_a + 4 * SEARCH_LIMIT]],
            [right[j] for j in b[at_b : at_b + 4 * SEARCH_LIMIT]],
        )
        found += [(a[at_a + i], b[at_b + j]) for i, j in piece]
        at_a, at_b = at_a + step_a, at_b + step_b
    return found


def _search(left: Tokens, right: Tokens) -> tuple[list[tuple[int, int]], int, int]:
    """Greedy shortest edit script (Myers) of bounded length.

    Returns the matches and how far on each side they reach: to both ends, or, when the bound is hit,
    to the furthest point found, at least one step.
    """
    n, m = len(left), len(right)
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
            if x <= n and y <= m and x + y > best[0] + best[1]:
                best = (x, y, edits)
            if x >= n and y >= m:
                return _trace_back(history, n, m, edits), n, m
    x, y, edits = best
    return _trace_back(history, x, y, edits), max(x, 1), max(y, 1)


def _trace_back(history: list[dict[int, int]], x: int, y: int, edits: int) -> list[tuple[int, int]]:
    matches: list[tuple[int, int]] = []
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
