"""What the page of a live incident says, state by state; the rare ones, which no running world shows on demand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.incidents.gathering import empty_progress
from app.incidents.live import ExportView, GatheringView, LiveStatus, Window
from app.incidents.live_models import Export, ExportAnswer, Gathering
from app.incidents.models import Evidence, Incident
from app.web.views_live import LiveView, live_view, under_way

INCIDENT = Incident(id="inc_1", seq=7, pipeline="refunds", entity_key=b"customer-42", recorded_status="failed")
NOTHING = LiveStatus("incomplete", False, 1, (), None, None, (), (), None, None, None, None, None)


def export(state: str, *answers: ExportAnswer, **changes: Any) -> ExportView:
    told = {"id": "exp_1", "created_by": "ada", "created_at": 1_000, "reason": "odd", "attempt": 1, **changes}
    return ExportView(Export(state=state, **told), answers)


def answer(**changes: Any) -> ExportAnswer:
    told = {"seq": 8, "size": 3174, "sha256": "9f2c" * 16, "suspended": False, "late": False, "foreign_key": False}
    return ExportAnswer(**(told | changes))


def search(state: str, **changes: Any) -> GatheringView:
    return GatheringView.of(Gathering(id="gat_1", state=state, progress=empty_progress(), **changes))


def evidence(role: str, **changes: Any) -> Evidence:
    told = {"role": role, "summary": f"a {role}", "records": 2, "warnings": [], "source": {"kind": "kafka"}}
    return Evidence(**(told | changes))


def view(*files: Evidence, exports: tuple[ExportView, ...] = (), searches: tuple[GatheringView, ...] = ()) -> LiveView:
    return live_view(INCIDENT, replace(NOTHING, exports=exports, gatherings=searches), files)


def test_nothing_asked_and_nothing_found() -> None:
    shown = view()
    states = [each.state for each in (shown.export, shown.snapshot, shown.traces, shown.envelope, shown.rest)]
    assert states == ["open"] * 5
    assert (shown.late, shown.search, shown.under_way, shown.window) == (None, None, False, None)
    assert shown.rest.name == "Intents, outputs, errors"


@pytest.mark.parametrize(
    ("asked", "state", "words"),
    [
        (export("requested"), "waiting", "waits to be published"),
        (export("requested", topic="t", partition=3, offset=81, published_at=2_000), "waiting", "published to t[3]@81"),
        (export("answered", topic="t", partition=3, offset=81, published_at=2_000), "done", "published to t[3]@81"),
        (export("timed_out", problem="no answer came"), "bad", "timed out: was not published"),
    ],
)
def test_an_export_in_every_state(asked: ExportView, state: str, words: str) -> None:
    shown = view(exports=(asked,))
    assert (shown.export.state, shown.under_way) == (state, state == "waiting")
    assert words in shown.export.text
    assert 'reason "odd"' in shown.export.text
    assert shown.late == ("exp_1" if state == "bad" else None)


def test_answers_that_differ_are_all_told() -> None:
    answers = answer(), answer(seq=9, late=True), answer(foreign_key=True, problem="it is of another key")
    asked = export("answered", *answers, published_at=2_000, offset=1, answered_at=2_212, attempt=2)
    shown = view(evidence("snapshot"), exports=(asked, export("timed_out")))
    assert (shown.snapshot.state, shown.snapshot.side) == ("done", "212 ms")
    assert [line.partition(",")[0] for line in shown.snapshot.lines] == ["answer: counter 8"] * 1 + [
        "answer: counter 9", "answer: counter 8",
    ]  # fmt: skip
    assert "after the time-out" in shown.snapshot.lines[1]
    assert "of another key: kept, not used: it is of another key" in shown.snapshot.lines[2]
    assert shown.export.lines == ("asked 2 times",)
    assert shown.export.side.endswith("request 2")


@pytest.mark.parametrize(
    ("state", "step", "words"),
    [
        ("queued", "waiting", "waits for the collector"),
        ("running", "waiting", "searching"),
        ("not_found", "bad", "every record in range was read"),
        ("incomplete", "bad", "it may be there"),
        ("cancelled", "bad", "cancelled"),
        ("failed", "bad", "failed"),
    ],
)
def test_a_search_in_every_state(state: str, step: str, words: str) -> None:
    shown = view(searches=(search(state, problem="the broker refused"), search("failed")))
    assert shown.envelope.state == shown.traces.state == step
    assert words in shown.envelope.text
    assert shown.search is not None
    assert shown.search.live == under_way(shown.status) == (step == "waiting")
    assert shown.envelope.lines == (() if step == "waiting" else ("the broker refused",))


def test_what_is_here_wins_over_what_the_search_says() -> None:
    files = [evidence("event", source={"kind": "kafka", "rebuilt_from": "tool_result"}), evidence("intents")]
    shown = view(*files, searches=(search("incomplete"),))
    assert (shown.envelope.state, shown.traces.state, shown.rest.state) == ("done", "bad", "done")
    assert "no envelopes (tool_result)" in shown.envelope.lines[0]
    assert shown.rest.text == "2 intents"


@pytest.mark.parametrize(("left", "told", "closed"), [(20_460_000, "5 h 41 min", False), (-60_000, "1 min 00 s", True)])
def test_the_time_that_is_left(left: int, told: str, closed: bool) -> None:
    shown = live_view(INCIDENT, replace(NOTHING, window=Window(1, left)), [])
    assert (shown.window, shown.window_closed) == (told, closed)
