"""Compare two aligned timelines field by field, and fold what merely follows from a cause."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from app.replay.align import align
from app.replay.events import Event
from app.replay.mapping import NORMALISED, POSITIONAL, meaning
from app.replay.verdict import Difference, FieldPair, FieldState, Row, RowState

TRACE: Final = "trace events"
INTENTS: Final = "intents with arguments"
OUTPUTS: Final = "outputs"
ERRORS: Final = "error detail"
MEMORY: Final = "memory after"
CONTINUATION: Final = "continuation"
STATUS: Final = "status"


def rows_of(recorded: Sequence[Event], replayed: Sequence[Event]) -> list[Row]:
    """Aligned rows of two timelines; every row is equal, normalised, changed or one-sided."""
    rows = [
        _row(
            ordinal,
            None if left is None else recorded[left],
            None if right is None else replayed[right],
        )
        for ordinal, (left, right) in enumerate(align(recorded, replayed, meaning))
    ]
    return fold(rows)


def _row(ordinal: int, recorded: Event | None, replayed: Event | None) -> Row:
    if recorded is None:
        return Row(ordinal, RowState.REPLAYED_ONLY, TRACE, None, replayed)
    if replayed is None:
        return Row(ordinal, RowState.RECORDED_ONLY, TRACE, recorded, None)
    return pair(ordinal, TRACE, recorded, replayed)


def pair(ordinal: int, surface: str, recorded: Event, replayed: Event) -> Row:
    """One row of two events that belong together."""
    if recorded == replayed:
        return Row(ordinal, RowState.EQUAL, surface, recorded, replayed)
    fields = tuple(_fields(recorded, replayed))
    state = RowState.EQUAL
    if fields:
        changed = any(field.state is FieldState.CHANGED for field in fields)
        state = RowState.CHANGED if changed else RowState.NORMALISED
    return Row(ordinal, state, surface, recorded, replayed, fields)


def _fields(recorded: Event, replayed: Event) -> Iterator[FieldPair]:
    """What is not equal, most telling first."""
    if recorded.type != replayed.type:
        yield FieldPair("event_type", recorded.type, replayed.type, FieldState.CHANGED)
    if recorded.attributes != replayed.attributes:
        yield from _attributes(recorded, replayed)
    elif recorded.label != replayed.label:
        yield FieldPair("label", recorded.label, replayed.label, FieldState.CHANGED)
    if recorded.payload and replayed.payload:
        for name in recorded.payload:
            if name in replayed.payload:
                yield from _payload(name, recorded.payload[name], replayed.payload[name])
    if recorded.step != replayed.step:
        yield FieldPair("step_index", _text(recorded.step), _text(replayed.step), FieldState.CHANGED)
    if recorded.identity != replayed.identity:
        yield from _identity(recorded, replayed)


def _attributes(recorded: Event, replayed: Event) -> Iterator[FieldPair]:
    calls = recorded.type == replayed.type == "LLM_CALL"
    left, right = recorded.attributes, replayed.attributes
    for name in {**left, **right}:
        one, other = left.get(name), right.get(name)
        if one == other:
            continue
        normalised = calls and name in NORMALISED and one is not None and other is not None
        yield FieldPair(f"attributes.{name}", one, other, FieldState.NORMALISED if normalised else FieldState.CHANGED)


def _identity(recorded: Event, replayed: Event) -> Iterator[FieldPair]:
    left, right = recorded.identity, replayed.identity
    for name in dict.fromkeys((*left, *right)):
        if left.get(name) != right.get(name):
            yield FieldPair(name, left.get(name), right.get(name), FieldState.CHANGED)


def _payload(name: str, recorded: str, replayed: str) -> Iterator[FieldPair]:
    """A payload, taken apart where both sides are JSON objects that differ in content."""
    if recorded == replayed:
        return
    leaves = list(_leaves(name.removesuffix("_json"), recorded, replayed))
    if leaves:
        yield from leaves
    else:
        yield FieldPair(name, recorded, replayed, FieldState.CHANGED)


def _leaves(path: str, recorded: str, replayed: str) -> Iterator[FieldPair]:
    try:
        left, right = json.loads(recorded), json.loads(replayed)
    except (ValueError, RecursionError):
        return
    if not isinstance(left, dict) or not isinstance(right, dict):
        return
    for name in dict.fromkeys((*left, *right)):
        one = _json(left[name]) if name in left else None
        other = _json(right[name]) if name in right else None
        if one != other:
            yield FieldPair(f"{path}.{name}", one, other, FieldState.CHANGED)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _text(step: int | None) -> str | None:
    return None if step is None else str(step)


def fold(rows: Sequence[Row]) -> list[Row]:
    """Mark rows that follow from an earlier one.

    A row follows when it differs in nothing but its position, or when an error came before it: the
    rest of the attempt then could not happen.
    """
    folded = []
    cause: int | None = None
    after_error: int | None = None
    for row in rows:
        follows = after_error if after_error is not None and row.state in _ONE_SIDED else None
        if follows is None and cause is not None and _positional(row):
            follows = cause
        if row.differs and follows is None:
            if cause is None or row.state in _ONE_SIDED:
                cause = row.ordinal
            if row.event.type == "ERROR" and row.state in _ONE_SIDED:
                after_error = row.ordinal
        folded.append(row if follows is None else row._replace(cause=follows))
    return folded


_ONE_SIDED: Final = frozenset({RowState.RECORDED_ONLY, RowState.REPLAYED_ONLY})


def _positional(row: Row) -> bool:
    changed = [field.name for field in row.fields if field.state is FieldState.CHANGED]
    return bool(changed) and all(name in POSITIONAL for name in changed)


def differences(rows: Sequence[Row]) -> list[Difference]:
    """Every difference as data, in the order of the page."""
    found = []
    for row in rows:
        if row.state in _ONE_SIDED:
            found.append(_difference(row, None))
        elif row.state is RowState.CHANGED:
            found += [_difference(row, field) for field in row.fields if field.state is FieldState.CHANGED]
    return found


def _difference(row: Row, field: FieldPair | None) -> Difference:
    event = row.event
    if field is None:
        name, kind = "", "missing" if row.state is RowState.RECORDED_ONLY else "extra"
        recorded = row.recorded.type if row.recorded else None
        replayed = row.replayed.type if row.replayed else None
    else:
        name, kind = field.name, "changed"
        recorded, replayed = field.recorded, field.replayed
    return Difference(
        ordinal=row.ordinal,
        surface=surface_of(row, field),
        event_type=event.type,
        label=event.label,
        span_id=event.span_id,
        step_index=event.step,
        field=name,
        recorded=recorded,
        replayed=replayed,
        kind="consequence" if row.cause is not None else kind,
        cause=row.cause,
    )


def surface_of(row: Row, field: FieldPair | None) -> str:
    """The surface that a difference shows on: payloads have one of their own."""
    if field is not None and row.surface == TRACE:
        if field.name.startswith("args"):
            return INTENTS
        if field.name.startswith("detail"):
            return ERRORS
    return row.surface


def normalised(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every normalised value, with both sides."""
    return [
        {
            "ordinal": row.ordinal,
            "field": field.name.removeprefix("attributes."),
            "recorded": field.recorded,
            "replayed": field.replayed,
        }
        for row in rows
        for field in row.fields
        if field.state is FieldState.NORMALISED
    ]


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """How many rows stand how; consequences are counted apart from their causes."""
    tally = {str(state): 0 for state in RowState}
    tally["consequence"] = 0
    for row in rows:
        tally["consequence" if row.cause is not None else str(row.state)] += 1
    tally["rows"] = len(rows)
    return tally


def first_divergence(rows: Sequence[Row]) -> Row | None:
    """The earliest row that is neither equal nor normalised."""
    return next((row for row in rows if row.differs), None)
