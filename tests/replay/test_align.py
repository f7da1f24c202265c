"""Alignment goes by what an event is: an insertion is one insertion, whatever it shifts."""

import random
from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.replay.align import Pair, align
from app.replay.compare import counts, fold, rows_of
from app.replay.events import Event
from app.replay.mapping import meaning
from app.replay.verdict import Row, RowState


def call(step: int, model: str = "m", tokens: int = 1) -> Event:
    return Event(
        "LLM_CALL", model, step=step, span_id=f"{step:016x}", attributes={"gen_ai.usage.input_tokens": str(tokens)}
    )


def intent(step: int, kind: str = "TOOL", tool: str = "pay") -> Event:
    return Event(
        "INTENT_EMITTED",
        kind,
        step=step,
        span_id=f"{step:016x}",
        attributes={"beam_agents.tool_name": tool, "beam_agents.intent_id": f"id-{step}"},
        identity={"span_id": f"{step:016x}"},
    )


def states(rows: Sequence[Row]) -> list[str]:
    return [f"{row.state}{'' if row.cause is None else f' from {row.cause}'}" for row in rows]


events = st.lists(
    st.one_of(
        st.builds(call, st.integers(0, 4), st.sampled_from("mn"), st.integers(1, 3)),
        st.builds(intent, st.integers(0, 4), st.sampled_from(["TOOL", "APPROVAL"]), st.sampled_from(["pay", "hold"])),
        st.just(Event("ERROR", "activation_error")),
    ),
    max_size=25,
)


@given(events, events)
def test_every_event_stands_once_and_in_order(left: list[Event], right: list[Event]) -> None:
    pairs = align(left, right, meaning)
    assert [i for i, _ in pairs if i is not None] == list(range(len(left)))
    assert sorted(j for _, j in pairs if j is not None) == list(range(len(right)))
    both: list[Pair] = [(i, j) for i, j in pairs if i is not None and j is not None]
    assert both == sorted(both)
    assert all(left[i or 0].type == right[j or 0].type for i, j in both)


@given(st.lists(st.integers(0, 5), max_size=120), st.lists(st.integers(0, 5), max_size=120))
def test_every_event_stands_once_however_often_the_search_is_cut(left: list[int], right: list[int]) -> None:
    recorded, replayed = ([call(0, tokens=number) for number in numbers] for numbers in (left, right))
    with mock.patch.multiple("app.replay.align", SEARCH_LIMIT=3, WINDOW=12, RUN=2):
        pairs = align(recorded, replayed, meaning)
    assert [i for i, _ in pairs if i is not None] == list(range(len(left)))
    assert [j for _, j in pairs if j is not None] == list(range(len(right)))


@given(events)
def test_equal_timelines_are_equal_rows(timeline: list[Event]) -> None:
    assert all(row.state is RowState.EQUAL for row in rows_of(timeline, timeline))


@given(events, events)
def test_different_timelines_are_not_equal_rows(left: list[Event], right: list[Event]) -> None:
    if left != right:
        assert any(row.differs for row in rows_of(left, right))


def test_an_inserted_call_is_one_insertion_and_the_shift_is_folded_under_it() -> None:
    recorded = [call(0), intent(1), intent(2)]
    replayed = [call(0), call(1, "other"), intent(2), intent(3)]
    assert states(rows_of(recorded, replayed)) == ["equal", "replayed-only", "changed from 1", "changed from 1"]


def test_a_replaced_event_of_another_type_is_one_removal_and_one_insertion() -> None:
    # complaint 4
    recorded = [call(0), intent(1), call(2)]
    replayed = [call(0), Event("TOOL_CALL", "lookup", step=1), call(2)]
    assert states(rows_of(recorded, replayed)) == ["equal", "recorded-only", "replayed-only", "equal"]


def test_another_model_at_a_step_is_one_changed_row() -> None:
    rows = rows_of([call(0, "m"), intent(1)], [call(0, "n"), intent(1)])
    assert states(rows) == ["changed", "equal"]


def test_shifted_ids_alone_are_a_cause_of_their_own() -> None:
    # complaint 6
    assert states(rows_of([intent(1)], [intent(2)])) == ["changed"]


def test_what_an_error_prevented_follows_from_it() -> None:
    recorded = [call(0), intent(1), intent(2)]
    replayed = [call(0), Event("ERROR", "activation_error")]
    assert states(rows_of(recorded, replayed)) == [
        "equal",
        "replayed-only",
        "recorded-only from 1",
        "recorded-only from 1",
    ]


def test_a_change_after_a_shift_is_no_consequence_when_more_than_the_position_differs() -> None:
    recorded = [intent(1, tool="pay"), intent(2, tool="hold")]
    replayed = [call(0), intent(1, tool="pay"), intent(2, tool="steal")]
    assert "changed" in states(rows_of(recorded, replayed))


def test_counts_tell_consequences_apart() -> None:
    rows = rows_of([call(0), intent(1)], [call(0), call(1, "n"), intent(2)])
    tally = counts(rows)
    assert (tally["rows"], tally["equal"], tally["replayed-only"], tally["consequence"]) == (3, 1, 1, 1)
    assert sum(number for name, number in tally.items() if name != "rows") == tally["rows"]


def test_folding_twice_changes_nothing() -> None:
    rows = rows_of([call(0), intent(1)], [call(0), call(1, "n"), intent(2)])
    assert fold(rows) == rows


def repeated(events: Sequence[Event], every: int) -> list[Event]:
    """The same events, one of so many taken twice over, as a retry is."""
    return [event for at, event in enumerate(events) for _ in range(2 if at % every == every - 1 else 1)]


@pytest.mark.parametrize("period", [7, 97, 3_000])
@pytest.mark.parametrize("every", [10, 40, 700])
def test_repeats_in_a_long_timeline_stay_insertions_however_many_came_before(every: int, period: int) -> None:
    once = [call(step, tokens=step % period) for step in range(3_000)]
    more = repeated(once, every)
    for recorded, replayed, side in ((once, more, "replayed-only"), (more, once, "recorded-only")):
        tally = counts(rows_of(recorded, replayed))
        assert (tally["equal"], tally[side]) == (len(once), len(more) - len(once)), tally


@pytest.mark.parametrize("seed", range(4))
def test_what_a_long_timeline_keeps_is_paired_whatever_was_left_out_and_put_in(seed: int) -> None:
    chance = random.Random(seed)
    recorded = [call(step, tokens=chance.randrange(1_000)) for step in range(3_000)]
    kept = [event for event in recorded if chance.random() > 0.03]
    replayed = [one for event in kept for one in (event, chance.choice(recorded))[: 2 if chance.random() < 0.03 else 1]]
    pairs = align(recorded, replayed, meaning)
    alike = [
        (i, j) for i, j in pairs if i is not None and j is not None and meaning(recorded[i]) == meaning(replayed[j])
    ]
    assert len(alike) >= len(kept)


@pytest.mark.parametrize("size", [5, 90, 150, 600, 2_000])
def test_a_stretch_that_one_side_has_more_is_one_insertion_however_long(size: int) -> None:
    chance = random.Random(size)
    numbers = [chance.randrange(97) for _ in range(2_000 + size)]
    events = [call(step, tokens=number) for step, number in enumerate(numbers)]
    short = [call(0, "first"), *events[:1_000], *events[1_000 + size :], call(0, "last")]
    long = [call(0, "other"), *events, call(0, "end")]
    for recorded, replayed, side in ((short, long, "replayed-only"), (long, short, "recorded-only")):
        tally = counts(rows_of(recorded, replayed))
        assert (tally["rows"], tally[side]) == (len(long), size), tally
        assert tally["equal"] >= 1_995, tally  # at its edges an event may be as good as the one before or behind
