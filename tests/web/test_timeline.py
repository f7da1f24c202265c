"""How rows become lines: folds keep counts right, marks stand on the right sides, causes are named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.web.views_timeline import FOLD_FROM, Fold, Line, every_field, timeline


@dataclass
class Row:
    ordinal: int
    state: str = "equal"
    surface: str = "trace events"
    event_type: str = "TOOL_CALL"
    label: str = "look"
    about: str = ""
    step: int | None = 0
    cause: int | None = None
    recorded: dict[str, Any] | None = None
    replayed: dict[str, Any] | None = None
    fields: list[dict[str, Any]] = field(default_factory=list)


def event(**changes: Any) -> dict[str, Any]:
    return {
        "type": "TOOL_CALL",
        "label": "look",
        "about": "",
        "step": 0,
        "attributes": {"x.name": "look"},
        "identity": {"span_id": "ab"},
        "payload": {},
        "unknown": [],
    } | changes


def laid(rows: list[Row], **options: Any) -> list[Line | Fold]:
    bodies = {row.ordinal: row for row in rows if row.recorded or row.replayed}
    return timeline(rows, bodies=bodies, normalised={}, first_divergence=None, **options)


STATES = st.sampled_from(["equal", "equal", "equal", "normalised", "changed", "recorded-only"])


@given(st.lists(STATES, max_size=60), st.integers(0, 50), st.sets(st.integers(0, 100)), st.booleans())
def test_every_row_is_a_line_or_in_a_fold_exactly_once(
    states: list[str], start: int, unfolded: set[int], fold: bool
) -> None:
    rows = [Row(start + n, state) for n, state in enumerate(states)]
    seen: list[int] = []
    for item in laid(rows, unfolded=unfolded, fold=fold):
        seen += range(item.first, item.last + 1) if isinstance(item, Fold) else [item.ordinal]
        if isinstance(item, Fold):
            assert fold
            assert item.count >= FOLD_FROM
            assert item.first not in unfolded
    assert seen == [row.ordinal for row in rows]


def test_a_stretch_of_more_than_three_equal_events_folds() -> None:
    assert [item.is_fold for item in laid([Row(n) for n in range(3)])] == [False, False, False]
    (fold,) = laid([Row(n, event_type="LLM_CALL" if n == 1 else "TOOL_CALL") for n in range(4)])
    assert isinstance(fold, Fold)
    assert (fold.first, fold.last, fold.types) == (0, 3, "TOOL_CALL ×3, LLM_CALL")


def test_a_list_of_differences_alone_never_folds_over_its_gaps() -> None:
    items = laid([Row(n) for n in (0, 1, 2, 3, 10, 11, 12, 13)])
    assert [(item.first, item.last) for item in items if isinstance(item, Fold)] == [(0, 3), (10, 13)]


def test_a_missing_side_is_missing_and_says_where_it_is() -> None:
    (line,) = laid([Row(0, "recorded-only", recorded=event())])
    assert isinstance(line, Line)
    assert (line.recorded is None, line.replayed is None) == (False, True)
    assert (line.glyph, line.word, line.differs) == ("−", "only in the record", True)


def test_sides_speak_for_themselves() -> None:
    fields = [{"name": "step_index", "recorded": "3", "replayed": "4", "state": "changed"}]
    row = Row(7, "changed", cause=5, recorded=event(step=3), replayed=event(step=4), fields=fields)
    (line,) = laid([row])
    assert isinstance(line, Line)
    assert line.recorded is not None
    assert line.replayed is not None
    assert (line.recorded.step, line.replayed.step, line.cause) == (3, 4, 5)
    assert "consequence" in line.css
    assert [one.short for one in line.changed] == ["step_index"]


def test_normalised_values_keep_both_sides_and_are_no_difference() -> None:
    told = {1: [{"field": "x.cache_hit", "recorded": "false", "replayed": "true"}]}
    (line,) = timeline([Row(1, "normalised")], bodies={}, normalised=told, first_divergence=None)
    assert isinstance(line, Line)
    assert not line.differs
    (one,) = line.normalised
    assert (one.short, one.recorded.text, one.replayed.text) == ("cache_hit", "false", "true")


def test_an_opened_event_shows_every_field_and_what_differs_first() -> None:
    row = Row(
        0,
        "changed",
        recorded=event(payload={"args_json": '{"a":1}'}, unknown=["field 9, varint"]),
        replayed=event(payload={"args_json": '{"a":2}'}, attributes={"x.name": "look", "x.more": "1"}),
        fields=[
            {"name": "args.a", "recorded": "1", "replayed": "2", "state": "changed"},
            {"name": "attributes.x.more", "recorded": None, "replayed": "1", "state": "changed"},
        ],
    )
    found = [(one.name, one.state) for one in every_field(row)]
    assert found[:4] == [
        ("args.a", "changed"),
        ("attributes.x.more", "changed"),
        ("args_json", "changed"),
        ("unknown fields", "changed"),
    ]
    assert {name for name, state in found if state == "equal"} == {
        "event_type",
        "step_index",
        "attributes.x.name",
        "span_id",
    }
