"""What an incident lacks, why that matters, and how long there is time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.incidents.readiness import (
    CACHE_WINDOW_MS,
    COMMITTED,
    FAILED,
    FIRST,
    PENDING,
    Held,
    is_ready,
    missing,
    table_row,
    window,
)

WHOLE = Held(
    roles=frozenset({"traces", "event", "snapshot", "intents", "outputs"}),
    kind="start",
    seq=3,
    status="completed",
    selected=True,
    problem=None,
    calls_model=True,
    exporting=False,
    searching=False,
)


def without(*roles: str) -> Held:
    return replace(WHOLE, roles=WHOLE.roles - set(roles), selected=not {"traces", "event"} & set(roles))  # type: ignore[operator]


def blocking(held: Held) -> list[str]:
    return [one.what for one in missing(held) if one.blocks]


def test_an_incident_that_has_everything_is_ready() -> None:
    assert is_ready(WHOLE)
    assert missing(WHOLE) == ()


@pytest.mark.parametrize(
    ("role", "what", "why"),
    [
        ("traces", "traces", "compared with"),
        ("event", "triggering envelope", "traces hold no payloads"),
        ("snapshot", "snapshot", "model responses"),
    ],
)
def test_what_blocks_a_replay_comes_first_with_its_reason(role: str, what: str, why: str) -> None:
    held = without(role, "intents")
    assert not is_ready(held)
    first, *rest = missing(held)
    assert (first.what, first.blocks) == (what, True)
    assert why in first.why
    assert [one.what for one in rest] == ["intents"]
    assert not any(one.blocks for one in rest)


def test_what_is_under_way_is_said_to_be() -> None:
    assert "being searched for" in missing(replace(without("event"), searching=True))[0].remedy
    assert "being asked" in missing(replace(without("snapshot"), exporting=True))[0].remedy


def test_a_first_start_without_model_calls_needs_no_snapshot() -> None:
    held = replace(without("snapshot"), seq=0, calls_model=False)
    assert is_ready(held)
    assert blocking(replace(held, seq=1)) == ["snapshot"]
    assert blocking(replace(held, kind="resume")) == ["snapshot"]
    assert blocking(replace(held, calls_model=None)) == ["snapshot"]


def test_evidence_that_does_not_belong_together_is_not_ready() -> None:
    held = replace(WHOLE, selected=False, problem="no traced attempt is a start at clock 5")
    assert blocking(held) == ["a matching attempt"]
    assert missing(held)[0].why == "no traced attempt is a start at clock 5"


def test_the_detail_of_an_error_matters_for_failures_only() -> None:
    assert [one.what for one in missing(replace(WHOLE, status="failed"))] == ["errors"]


def test_the_row_of_the_table() -> None:
    assert table_row(WHOLE) is COMMITTED
    assert table_row(replace(WHOLE, status="suspended")) is COMMITTED
    assert table_row(replace(WHOLE, seq=0)) is FIRST
    assert table_row(replace(WHOLE, seq=0, kind="resume")) is COMMITTED
    assert table_row(replace(WHOLE, seq=0, status="failed")) is FAILED
    assert table_row(replace(WHOLE, status="failed")) is FAILED
    assert table_row(replace(WHOLE, status="timed out")) is FAILED
    assert table_row(replace(WHOLE, status=None, kind="resume")) is PENDING
    assert table_row(replace(WHOLE, status=None, selected=False)) is None


def test_the_window_of_the_cache_counts_from_the_attempts_clock() -> None:
    assert window(None, 5) is None
    open_still = window(1000, 1000 + CACHE_WINDOW_MS - 1)
    closed = window(1000, 1000 + CACHE_WINDOW_MS + 1)
    assert open_still is not None
    assert closed is not None
    assert (open_still.left_ms, closed.left_ms) == (1, -1)
    assert open_still.closes_at_ms == 1000 + 21_600_000


def test_what_an_attempt_never_emitted_is_not_missing() -> None:
    held = without("intents")
    assert [one.what for one in missing(held)] == ["intents"]
    assert [one.what for one in missing(replace(held, emitted=1))] == ["intents"]
    assert missing(replace(held, emitted=0)) == ()
    bare = without("intents", "outputs")
    assert [one.what for one in missing(replace(bare, status="suspended"))] == ["intents"]
    assert [one.what for one in missing(replace(bare, status="failed"))] == ["errors"]


def test_a_topic_that_is_followed_need_not_be_named() -> None:
    (unknown,) = missing(without("outputs"))
    assert unknown.remedy == "Name the topic of outputs in hindcast.toml, or hand the stream in."
    (followed,) = missing(replace(without("outputs"), followed={"outputs", "traces"}))
    assert followed.remedy.startswith("Its topic is followed and none of this key has come")
