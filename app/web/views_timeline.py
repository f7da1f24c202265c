"""Lays a window of a run's rows out as a page draws it: folded equal stretches, two sides, and the fields that part.

It knows rows and events as they are stored, and no framework: types, labels and attribute names come from the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, groupby
from typing import Any, Final, Protocol

from app.web.formats import plural, utc
from app.web.values import Shown, show, show_pair
from app.web.views_story import Step

FOLD_FROM: Final = 4  # a stretch of this many equal events is folded
BRIEF: Final = 4_000  # characters of a payload that the timeline shows
FIELDS: Final = 12  # differing fields of one event that the timeline shows; the event itself has them all
NODES: Final = 1_000  # elements that a window's rows may take: with all that is around them, a page has 1,500
# What every name of the framework begins with, and nobody wants to read forty times; titles hold the whole name.
_STAMPS: Final = "last access of "
_PREFIXES: Final = ("attributes.beam_agents.", "attributes.", "memory.")

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


def field_label(name: str) -> str:
    """A field's name without what every name begins with."""
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    return name[len(prefix) :] or name


@dataclass(frozen=True, slots=True)
class Field:
    """One field on both sides. `name` is as stored; `label` leaves out what every name begins with."""

    name: str
    state: str
    recorded: Shown
    replayed: Shown
    group: str = ""

    @property
    def label(self) -> str:
        return field_label(self.name)

    @property
    def short(self) -> str:
        """Its last part, for small boxes."""
        return self.label.rsplit(".", 1)[-1]

    @property
    def nodes(self) -> int:
        return 7 + self.recorded.nodes + self.replayed.nodes


@dataclass(frozen=True, slots=True)
class Told:
    """What the ledger tells at one event without being opened, and how many entries it leaves to opening."""

    steps: tuple[Step, ...] = ()
    untold: int = 0


NOTHING_TOLD: Final = Told()


@dataclass(frozen=True, slots=True)
class Side:
    """What one side says of an event: what it is; `told` are payloads that only this side has."""

    type: str
    label: str
    about: str
    step: int | None
    told: tuple[tuple[str, Shown], ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the timeline. A side is None where the event is missing on it.

    `changed` are the first fields that differ, `hidden` how many more there are. `story` is what the ledger tells at
    this event, where it is told without being opened; `untold` counts entries that it leaves to opening.
    """

    ordinal: int
    state: str
    surface: str
    recorded: Side | None
    replayed: Side | None
    changed: tuple[Field, ...] = ()
    normalised: tuple[Field, ...] = ()
    cause: int | None = None
    first: bool = False
    hidden: int = 0
    story: tuple[Step, ...] = ()
    untold: int = 0

    is_fold = False

    @property
    def last(self) -> int:
        return self.ordinal

    @property
    def begin(self) -> int:
        return self.ordinal

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

    @property
    def nodes(self) -> int:
        """About how many elements its drawing takes."""
        told = sum(2 + shown.nodes for side in (self.recorded, self.replayed) if side for _, shown in side.told)
        fields = 0 if self.cause is not None or not self.changed else 14 + sum(field.nodes for field in self.changed)
        below = 3 * bool(self.changed or self.story or self.cause is not None) + 2 * (self.cause is not None)
        story = sum(step.nodes for step in self.story) + 2 * bool(self.untold) + 2 * bool(self.hidden)
        return 16 + 2 * len(self.normalised) + told + fields + below + story


@dataclass(frozen=True, slots=True)
class Fold:
    """A stretch of equal events drawn as one line; `types` names what is in it."""

    first: int
    last: int
    types: str

    is_fold = True
    nodes = 5

    @property
    def begin(self) -> int:
        return self.first

    @property
    def count(self) -> int:
        return self.last - self.first + 1


Item = Line | Fold


class Sketch:
    """A line that is drawn when it is known to be needed: marking words takes its time, and most rows fit no page."""

    def __init__(self, begin: int, last: int, draw: Callable[[], Item]) -> None:
        self.begin = begin
        self.last = last
        self._draw = draw
        self._drawn: Item | None = None

    @property
    def item(self) -> Item:
        if self._drawn is None:
            self._drawn = self._draw()
        return self._drawn


@dataclass(frozen=True, slots=True)
class Cut:
    """The items of a window that fit the page; `before` and `after` tell whether some were left out at that end."""

    items: list[Item]
    before: bool
    after: bool


def fit(sketches: Sequence[Sketch], at: int | None, *, backwards: bool = False, room: int = NODES) -> Cut:
    """Draw as many items as a page may hold: from the first on, or from the last back, or around ordinal `at`."""
    if not sketches:
        return Cut([], before=False, after=False)
    first = len(sketches) - 1 if backwards else 0
    if at is not None:
        first = next((n for n, sketch in enumerate(sketches) if sketch.last >= at), len(sketches) - 1)
    last = first
    left = room - sketches[first].item.nodes
    # After an event comes what follows from it, so that side grows twice as fast.
    open_sides, turn = {1, -1}, cycle((1, 1, -1))
    while open_sides:
        side = next(turn)
        n = last + 1 if side > 0 else first - 1
        if not 0 <= n < len(sketches) or sketches[n].item.nodes > left:
            open_sides.discard(side)
        elif side in open_sides:
            left -= sketches[n].item.nodes
            first, last = min(first, n), max(last, n)
    items = [sketch.item for sketch in sketches[first : last + 1]]
    return Cut(items, before=first > 0, after=last + 1 < len(sketches))


def timeline(rows: Sequence[RowLike], **how: Any) -> list[Item]:
    """All of `sketch`, drawn."""
    return [each.item for each in sketch(rows, **how)]


def sketch(
    rows: Sequence[RowLike],
    *,
    bodies: Mapping[int, RowBody],
    normalised: Mapping[int, Sequence[Mapping[str, Any]]],
    first_divergence: int | None,
    unfolded: Collection[int] = (),
    fold: bool = True,
    told: Mapping[int, Told] | None = None,
) -> list[Sketch]:
    """Lay out rows; `bodies` holds the differing ones by ordinal, `unfolded` ordinals of opened folds.

    An event at which the ledger tells something without being opened is never folded away.
    """
    stories = told or {}
    items: list[Sketch] = []
    for foldable, stretch in _stretches(rows, stories):
        begin, last = stretch[0].ordinal, stretch[-1].ordinal
        inside = {row.ordinal for row in stretch}
        if fold and foldable and len(stretch) >= FOLD_FROM and inside.isdisjoint(unfolded):
            items.append(Sketch(begin, last, partial(Fold, begin, last, _types(stretch))))
            continue
        for row in stretch:
            known = bodies.get(row.ordinal), normalised.get(row.ordinal, ())
            draw = partial(_line, row, *known, first_divergence, stories.get(row.ordinal, NOTHING_TOLD))
            items.append(Sketch(row.ordinal, row.ordinal, draw))
    return items


def _stretches(rows: Sequence[RowLike], stories: Mapping[int, Told]) -> Iterator[tuple[bool, list[RowLike]]]:
    """Cut rows where equal ones begin or end, and where ordinals jump (a list of differences alone has gaps)."""

    def foldable(row: RowLike) -> bool:
        return row.state == "equal" and not stories.get(row.ordinal, NOTHING_TOLD).steps

    keyed = groupby(enumerate(rows), lambda item: (foldable(item[1]), item[1].ordinal - item[0]))
    for (equal, _), stretch in keyed:
        yield equal, [row for _, row in stretch]


def _types(rows: Sequence[RowLike]) -> str:
    counted = Counter(row.event_type for row in rows)
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in counted.most_common(4))


def _line(
    row: RowLike,
    body: RowBody | None,
    normalised: Sequence[Mapping[str, Any]],
    first_divergence: int | None,
    told: Told,
) -> Line:
    stored = () if body is None else body.fields
    changed = [item for item in stored if item["state"] == "changed"]
    plain = Side(row.event_type, row.label, row.about, row.step)
    alone = row.state in ("recorded-only", "replayed-only")
    return Line(
        ordinal=row.ordinal,
        state=row.state,
        surface=row.surface,
        recorded=plain if body is None else _side(body.recorded, alone=alone),
        replayed=plain if body is None else _side(body.replayed, alone=alone),
        changed=tuple(_field(item) for item in changed[:FIELDS]),
        normalised=tuple(_field(item) for item in stored if item["state"] == "normalised")
        or tuple(_field({**item, "name": item["field"], "state": "normalised"}) for item in normalised),
        cause=row.cause,
        first=row.ordinal == first_divergence,
        hidden=max(0, len(changed) - FIELDS),
        story=told.steps,
        untold=told.untold,
    )


def _side(event: Mapping[str, Any] | None, *, alone: bool) -> Side | None:
    if event is None:
        return None
    payload: Mapping[str, str] = event.get("payload") or {}
    label, about = event["label"], event["about"]
    if event["type"] == "MEMORY" and not label:
        label, about = "after the run", plural(sum(name.startswith("memory.") for name in payload), "key")
    told = [(name.removesuffix("_json"), show(value, BRIEF)) for name, value in payload.items()] if alone else []
    return Side(event["type"], label, about, event["step"], tuple(told[:FIELDS]))


def _field(item: Mapping[str, Any]) -> Field:
    one, other = _readable(item["name"], item["recorded"]), _readable(item["name"], item["replayed"])
    recorded, replayed = show_pair(one, other) if item["state"] == "changed" else (show(one), show(other))
    return Field(item["name"], item["state"], recorded, replayed)


def _readable(name: str, value: str | None) -> str | None:
    """A time in a memory image as people read times."""
    if value is not None and name.startswith(_STAMPS) and value.isascii() and value.isdigit():
        return utc(int(value))
    return value


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
    one, other = _readable(name, one), _readable(name, other)
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
