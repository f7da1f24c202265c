"""Pairs both sides by type and place, compares them field by field, and says what follows from what.

The order of events of different types is not compared: actions that wait finish in any order. Within a type it is. A
re-run knows which event each event came from, so a difference below another one is told as its consequence.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.flink.inside.messages import InputResult, canonical
from app.flink.rerun.sides import ERROR, Item, surface_of
from app.replay.align import align
from app.replay.events import Event
from app.replay.verdict import FieldPair, FieldState, Row, RowState

Pair = tuple[int | None, int | None]
_DEEPEST: Final = 4
# Newer releases tell it, older ones do not: its absence says nothing about the run.
_OPTIONAL: Final = " succeeded"


def meaning(event: Event) -> Hashable:
    """What an event says; two that say the same belong together."""
    return event.type, event.label, tuple(sorted(event.payload.items()))


def pairs_of(recorded: Sequence[Item], replayed: Sequence[Item]) -> list[Pair]:
    """Index pairs in the record's order; what only the re-run has stands after what it came after."""
    matched: dict[int, int] = {}
    kinds = dict.fromkeys(item.what.type for item in (*recorded, *replayed))
    for kind in kinds:
        left = [i for i, item in enumerate(recorded) if item.what.type == kind]
        right = [j for j, item in enumerate(replayed) if item.what.type == kind]
        aligned = align([recorded[i].what for i in left], [replayed[j].what for j in right], meaning)
        matched |= {right[j]: left[i] for i, j in aligned if i is not None and j is not None}
    errors = {j for j, item in enumerate(replayed) if item.what.type == ERROR}
    return list(_merged(len(recorded), len(replayed), matched, errors))


def _merged(left: int, right: int, matched: Mapping[int, int], errors: Collection[int]) -> Iterator[Pair]:
    """All pairs; in a gap what only the record has comes first, but an error comes before what it prevented."""
    partner = {i: j for j, i in matched.items()}
    after: dict[int, list[int]] = {}
    anchor = -1
    for j in range(right):
        if j in matched:
            anchor = matched[j]
        else:
            after.setdefault(anchor, []).append(j)
    waiting: list[int] = []
    for i in range(-1, left):
        if i in partner:
            yield from ((None, j) for j in waiting)
            waiting = []
        if i >= 0:
            yield i, partner.get(i)
        yield from ((None, j) for j in after.get(i, ()) if j in errors)
        waiting += [j for j in after.get(i, ()) if j not in errors]
    yield from ((None, j) for j in waiting)


@dataclass(frozen=True)
class Aligned:
    """The rows, and where each event and each call of the re-run went."""

    rows: list[Row]
    of_event: Mapping[int, int]
    of_call: Mapping[int, int]

    @property
    def first(self) -> Row | None:
        """The first row that differs."""
        return next((row for row in self.rows if row.differs), None)


def aligned(recorded: Sequence[Item], replayed: Sequence[Item], result: InputResult) -> Aligned:
    """Compare two sides of one input."""
    rows: list[Row] = []
    of_event: dict[int, int] = {}
    of_call: dict[int, int] = {}
    for ordinal, (i, j) in enumerate(pairs_of(recorded, replayed)):
        left = None if i is None else recorded[i]
        right = None if j is None else replayed[j]
        if right is not None and right.event is not None:
            of_event[right.event] = ordinal
        if right is not None and right.call is not None:
            of_call[right.call] = ordinal
        rows.append(_row(ordinal, left, right))
    plain = Aligned(rows, of_event, of_call)
    return Aligned(_folded(plain, result), of_event, of_call)


def _row(ordinal: int, left: Item | None, right: Item | None) -> Row:
    if left is None or right is None:
        held = left or right
        assert held is not None, "a row has at least one side"
        state = RowState.RECORDED_ONLY if right is None else RowState.REPLAYED_ONLY
        sides = (held.what, None) if right is None else (None, held.what)
        return Row(ordinal, state, surface_of(held.what), *sides)
    fields = tuple(_fields(left.what, right.what))
    state = RowState.CHANGED if fields else RowState.EQUAL
    return Row(ordinal, state, surface_of(left.what), left.what, right.what, fields)


def _fields(left: Event, right: Event) -> Iterator[FieldPair]:
    if left.label != right.label:
        yield FieldPair("name", left.label, right.label, FieldState.CHANGED)
    for name in dict.fromkeys((*left.payload, *right.payload)):
        one, other = left.payload.get(name), right.payload.get(name)
        if one == other or (name.endswith(_OPTIONAL) and None in (one, other)):
            continue
        if one is None or other is None:
            yield FieldPair(name, _shown(one), _shown(other), FieldState.CHANGED)
        else:
            yield from changes(name, json.loads(one), json.loads(other))


def changes(name: str, one: Any, other: Any, depth: int = 0) -> Iterator[FieldPair]:
    """What differs between two JSON values, member by member."""
    if one == other and type(one) is type(other):
        return
    if isinstance(one, dict) and isinstance(other, dict) and depth < _DEEPEST:
        for key in dict.fromkeys((*one, *other)):
            if key not in one or key not in other:
                sides = (_text(one[key]) if key in one else None, _text(other[key]) if key in other else None)
                yield FieldPair(f"{name}.{key}", *sides, FieldState.CHANGED)
            else:
                yield from changes(f"{name}.{key}", one[key], other[key], depth + 1)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other) and depth < _DEEPEST:
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from changes(f"{name}[{number}]", a, b, depth + 1)
    elif canonical(one) != canonical(other):
        yield FieldPair(name, _text(one), _text(other), FieldState.CHANGED)


def _shown(encoded: str | None) -> str | None:
    return None if encoded is None else _text(json.loads(encoded))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def _folded(found: Aligned, result: InputResult) -> list[Row]:
    """Mark what follows: from a difference that it descends from, or from where the re-run ended early."""
    rows = list(found.rows)
    early = result.ending != "finished"
    replayed = {ordinal: ("event", index) for index, ordinal in found.of_event.items()}
    replayed |= {ordinal: ("call", index) for index, ordinal in found.of_call.items()}
    first: int | None = None
    for ordinal, row in enumerate(rows):
        if not row.differs:
            continue
        above = replayed.get(ordinal)
        cause = None if above is None else _cause(*above, found, rows, result)
        if above is None and early:
            cause = first
        if cause is not None:
            rows[ordinal] = row._replace(cause=cause)
        elif first is None:
            first = ordinal
    return rows


def _cause(kind: str, index: int, found: Aligned, rows: Sequence[Row], result: InputResult) -> int | None:
    """The difference nearest above an event or call of the re-run, or the one that this follows from in turn."""
    parent, action, so_far = _place(kind, index, result)
    while True:
        for number, call in enumerate(result.calls):
            same = call.event == parent and call.action == action and call.sent <= so_far
            if same and not (kind == "call" and number >= index) and number in found.of_call:
                row = rows[found.of_call[number]]
                if row.differs:
                    return row.ordinal if row.cause is None else row.cause
        if parent is None:
            return None
        row = rows[found.of_event[parent]]
        if row.differs:
            return row.ordinal if row.cause is None else row.cause
        kind, index = "event", parent
        parent, action, so_far = _place(kind, index, result)


def _place(kind: str, index: int, result: InputResult) -> tuple[int | None, str | None, int]:
    """The event that was being handled, by which action, and how many events had been sent by then."""
    if kind == "call":
        call = result.calls[index]
        return call.event, call.action, call.sent
    sent = result.events[index]
    return sent.parent, sent.action, index
