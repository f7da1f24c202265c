"""Lays a window of a run's rows out as a page draws it: folded equal stretches, two sides, and the fields that part.

It knows rows and events as they are stored, and no framework: types, labels and attribute names come from the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol

from app.web.values import Shown, show, show_pair

FOLD_FROM: Final = 4  # a stretch of this many equal events is folded

GLYPHS: Final = {
    "equal": ("=", "equal"),
    "normalised": ("~", "normalised"),
    "changed": ("≠", "changed"),
    "recorded-only": ("−", "only in the record"),
    "replayed-only": ("+", "only in the replay"),
}


class RowLike(Protocol):
    """The columns of a stored row that a list shows."""

    @property
    def ordinal(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def surface(self) -> str: ...
    @property
    def event_type(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def cause(self) -> int | None: ...


class RowBody(RowLike, Protocol):
    """A stored row with its bodies loaded."""

    @property
    def recorded(self) -> Mapping[str, Any] | None: ...
    @property
    def replayed(self) -> Mapping[str, Any] | None: ...
    @property
    def fields(self) -> Sequence[Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Field:
    """One field on both sides. `name` is as stored; `short` is its last part, for small boxes."""

    name: str
    state: str
    recorded: Shown
    replayed: Shown
    group: str = ""

    @property
    def short(self) -> str:
        return self.name.rsplit(".", 1)[-1]

    @property
    def prefix(self) -> str:
        return self.name[: len(self.name) - len(self.short)]


@dataclass(frozen=True, slots=True)
class Side:
    """What one side says of an event: what it is."""

    type: str
    label: str
    about: str
    step: int | None


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the timeline. A side is None where the event is missing on it."""

    ordinal: int
    state: str
    surface: str
    recorded: Side | None
    replayed: Side | None
    changed: tuple[Field, ...] = ()
    normalised: tuple[Field, ...] = ()
    cause: int | None = None
    first: bool = False

    is_fold = False

    @property
    def glyph(self) -> str:
        return GLYPHS.get(self.state, ("?", ""))[0]

    @property
    def word(self) -> str:
        return GLYPHS.get(self.state, ("", self.state))[1]

    @property
    def differs(self) -> bool:
        return self.state not in ("equal", "normalised")

    @property
    def css(self) -> str:
        names = [self.state]
        if self.cause is not None:
            names.append("consequence")
        if self.differs:
            names.append("differs")
        if self.first:
            names.append("first")
        return " ".join(names)


@dataclass(frozen=True, slots=True)
class Fold:
    """A stretch of equal events drawn as one line; `types` names what is in it."""

    first: int
    last: int
    types: str

    is_fold = True

    @property
    def count(self) -> int:
        return self.last - self.first + 1


def timeline(
    rows: Sequence[RowLike],
    *,
    bodies: Mapping[int, RowBody],
    normalised: Mapping[int, Sequence[Mapping[str, Any]]],
    first_divergence: int | None,
    unfolded: Collection[int] = (),
    fold: bool = True,
) -> list[Line | Fold]:
    """Lay out rows; `bodies` holds the differing ones by ordinal, `unfolded` the first ordinals of opened folds."""
    items: list[Line | Fold] = []
    for foldable, stretch in _stretches(rows):
        if fold and foldable and len(stretch) >= FOLD_FROM and stretch[0].ordinal not in unfolded:
            items.append(Fold(stretch[0].ordinal, stretch[-1].ordinal, _types(stretch)))
        else:
            items += [
                _line(row, bodies.get(row.ordinal), normalised.get(row.ordinal, ()), first_divergence)
                for row in stretch
            ]
    return items


def _stretches(rows: Sequence[RowLike]) -> Iterator[tuple[bool, list[RowLike]]]:
    """Cut rows where equal ones begin or end, and where ordinals jump (a list of differences alone has gaps)."""
    keyed = groupby(enumerate(rows), lambda item: (item[1].state == "equal", item[1].ordinal - item[0]))
    for (equal, _), stretch in keyed:
        yield equal, [row for _, row in stretch]


def _types(rows: Sequence[RowLike]) -> str:
    counted = Counter(row.event_type for row in rows)
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in counted.most_common(4))


def _line(
    row: RowLike, body: RowBody | None, normalised: Sequence[Mapping[str, Any]], first_divergence: int | None
) -> Line:
    fields = tuple(_field(item) for item in body.fields) if body is not None else ()
    plain = Side(row.event_type, row.label, row.about, row.step)
    return Line(
        ordinal=row.ordinal,
        state=row.state,
        surface=row.surface,
        recorded=plain if body is None else _side(body.recorded),
        replayed=plain if body is None else _side(body.replayed),
        changed=tuple(field for field in fields if field.state == "changed"),
        normalised=tuple(field for field in fields if field.state == "normalised")
        or tuple(_field({**item, "name": item["field"], "state": "normalised"}) for item in normalised),
        cause=row.cause,
        first=row.ordinal == first_divergence,
    )


def _side(event: Mapping[str, Any] | None) -> Side | None:
    return None if event is None else Side(event["type"], event["label"], event["about"], event["step"])


def _field(item: Mapping[str, Any]) -> Field:
    if item["state"] == "changed":
        recorded, replayed = show_pair(item["recorded"], item["replayed"])
    else:
        recorded, replayed = show(item["recorded"]), show(item["replayed"])
    return Field(item["name"], item["state"], recorded, replayed)


def every_field(row: RowBody) -> list[Field]:
    """All fields of an event on both sides, what differs first, then the rest by group; for the opened event."""
    known = {item["name"]: item["state"] for item in row.fields}
    pairs = list(_merged(row.recorded, row.replayed))
    whole = [field for group, name, one, other in pairs for field in [_compare(group, name, one, other, known)]]
    stored = {field.name for field in whole}
    parts = [_field(item) for item in row.fields if item["name"] not in stored]
    order = {"changed": 0, "normalised": 1, "equal": 2}
    return sorted(parts + whole, key=lambda field: order.get(field.state, 0))


def _compare(group: str, name: str, one: str | None, other: str | None, known: Mapping[str, str]) -> Field:
    state = known.get(name) or ("equal" if one == other else "changed")
    recorded, replayed = show_pair(one, other) if state == "changed" else (show(one), show(other))
    return Field(name, state, recorded, replayed, group)


def _merged(
    recorded: Mapping[str, Any] | None, replayed: Mapping[str, Any] | None
) -> Iterator[tuple[str, str, str | None, str | None]]:
    left, right = recorded or {}, replayed or {}
    for name, stored in (("type", "event_type"), ("step", "step_index")):
        yield "event", stored, _text(left.get(name)), _text(right.get(name))
    for group, prefix in (("attributes", "attributes."), ("payload", ""), ("identity", "")):
        one, other = left.get(group, {}), right.get(group, {})
        for name in sorted({*one, *other}):
            yield group, f"{prefix}{name}", one.get(name), other.get(name)
    unknown = [" · ".join(side.get("unknown", ())) or None for side in (left, right)]
    if any(unknown):
        yield "event", "unknown fields", unknown[0], unknown[1]


def _text(value: object) -> str | None:
    return None if value is None else str(value)
