"""The example desk, recorded in the framework's own runner, re-run with three builds inside the sandbox."""

import dataclasses
from collections.abc import Callable

import pytest

from app.flink.inside.messages import Handling
from app.flink.keys import parse_paths
from app.flink.logs import read_log
from app.flink.model import Run
from app.flink.rerun import render, stretch
from app.flink.rerun.case import Options
from app.flink.rerun.stretch import Replayed, Stretch, summed
from app.jobs.flink_runs import SandboxedBuild
from tests.fixtures.flink import KEY_PATH, LOG, example_log_without, example_runs

Desk = Callable[[str], SandboxedBuild]
ACCEPTED = {"tool:issue_refund": Handling(answer="accepted", has_answer=True)}
MOST = 5_000  # what the second build pays back at most


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return example_runs()


def options(**more: object) -> Options:
    return Options(**({"handling": ACCEPTED, "begins_empty": True} | more))  # type: ignore[arg-type]


def refunds(runs: list[Run]) -> dict[str, int]:
    """What was paid back in each run, by the record."""
    paid = ((run.ref, record) for run in runs for record in run.records if record.type == "refund_issued")
    return {ref: record.attributes["cents"] for ref, record in paid}


@pytest.fixture(scope="module")
def limited(desk: Desk, runs: list[Run]) -> Replayed:
    return Stretch(runs, desk("v2"), desk("v1"), options()).replay()


def test_the_recorded_stretch_reproduces(desk: Desk, runs: list[Run]) -> None:
    replayed = Stretch(runs, desk("v1"), desk("v1"), options()).replay()
    told = summed(replayed)
    assert told["verdicts"] == {"reproduced": 50}
    assert told["differ"] == told["tool_calls"] == told["outputs"] == told["unknown"] == []
    served = replayed.reports[0].verdict.served
    assert served["executed"] == {}
    assert served["answered from the record"] == {"model desk_service": 2, "tool look_up_order": 1}
    assert served["only recorded"] == {"tool issue_refund": 1}
    assert replayed.reports[0].verdict.confinement["tier"] in ("namespaces", "baseline")


def test_a_changed_tool_argument_diverges_where_it_is_changed(limited: Replayed, runs: list[Run]) -> None:
    changed = {ref: cents for ref, cents in refunds(runs).items() if cents > MOST}
    assert 5 < len(changed) < 45
    told = summed(limited)
    assert {one["run"] for one in told["differ"]} == set(changed)
    assert told["verdicts"] == {"diverged": len(changed), "reproduced": 50 - len(changed)}
    assert {one["run"]: (one["field"], one["recorded"], one["replayed"]) for one in told["tool_calls"]} == {
        ref: ("arguments.cents", str(cents), str(MOST)) for ref, cents in changed.items()
    }
    assert {one["run"] for one in told["outputs"]} == set(changed)


def test_what_follows_is_folded_under_the_changed_call(limited: Replayed) -> None:
    report = next(one for one in limited.reports if one.verdict.exit_code == 1)
    first = report.verdict.first_divergence
    differing = [(row.event.type, row.cause) for row in report.rows if row.differs]
    assert differing == [("TOOL_CALL", None), ("refund_issued", first), ("OUTPUT", first)]
    assert "TOOL_CALL issue_refund" in report.verdict.headline


def test_a_changed_prompt_is_irreproducible_and_shows_the_words(desk: Desk, runs: list[Run]) -> None:
    """The prompt is in no event: only the recording build's own request tells that it changed. Row 8."""
    replayed = Stretch(runs[:3], desk("v3"), desk("v1"), options()).replay()
    for report in replayed.reports:
        reason = report.verdict.reason
        assert report.verdict.exit_code == 3
        assert reason is not None
        assert reason.code == "model_request"
        (change,) = reason.details["changes"]
        assert change["part"] == "messages[0].content"
        assert ["-", "strict."] in change["text_diff"]
        assert ["+", "generous."] in change["text_diff"]
        assert reason.details["differs"] == "messages"
    assert "[-strict.] [+generous.]" in render.text(replayed)


def test_without_the_recording_build_nothing_is_taken_for_reproduced(desk: Desk, runs: list[Run]) -> None:
    """Every event of the third build would be equal, and its answers were given to another prompt."""
    for version in ("v1", "v3"):
        replayed = Stretch(runs[:2], desk(version), None, options()).replay()
        reasons = [one.verdict.reason.code for one in replayed.reports if one.verdict.reason]
        assert reasons == ["request_unproven"] * 2
        assert all(not row.differs for one in replayed.reports for row in one.rows)


def test_what_if_asks_the_allowed_model_and_says_so(desk: Desk, runs: list[Run]) -> None:
    handling = ACCEPTED | {"chat_model_connection:desk_service": Handling(policy="allow")}
    replayed = Stretch(runs, desk("v3"), desk("v1"), options(live=True, handling=handling)).replay()
    told = summed(replayed)
    assert told["verdicts"] == {"what-if": 50}
    # A generous desk refunds what was delivered too.
    refused = {run.ref for run in runs if any("was delivered" in str(r.attributes.get("output")) for r in run.records)}
    assert {one["run"] for one in told["differ"]} == refused
    assert {one["name"] for one in told["tool_calls"]} == {"issue_refund"}
    served = replayed.reports[0].verdict.served
    assert served["mode"] == "what-if"
    assert served["executed"] == {"model desk_service": 2}


def test_a_what_if_takes_no_answer_that_may_be_to_another_prompt(desk: Desk, runs: list[Run]) -> None:
    """Where no build tells what the recorded requests were, their answers say nothing of a new prompt."""
    handling = ACCEPTED | {"chat_model_connection:desk_service": Handling(policy="allow")}
    told = [
        Stretch(runs[:4], desk("v3"), reference, options(live=True, handling=handling)).replay()
        for reference in (None, desk("v1"))
    ]
    for replayed in told:
        asked = [one.verdict.served["executed"].get("model desk_service") for one in replayed.reports]
        assert asked == [2, 1, 2, 2]
        assert all(
            "desk_service" not in str(one.verdict.served["answered from the record"]) for one in replayed.reports
        )
    assert [one.verdict.replayed["outputs"] for one in told[0].reports] == [
        one.verdict.replayed["outputs"] for one in told[1].reports
    ]


def test_a_what_if_that_may_not_ask_says_so_and_is_none(desk: Desk, runs: list[Run]) -> None:
    for reference in (desk("v1"), None):
        (report,) = Stretch(runs[:1], desk("v3"), reference, options(live=True)).replay().reports
        reason = report.verdict.reason
        assert report.verdict.exit_code == 3
        assert reason is not None
        assert (reason.code, "do not allow to ask it" in reason.text) == ("model_request", True)
        assert '"chat_model_connection:desk_service" = "allow"' in reason.remedy
        assert report.verdict.served["executed"] == {}


def test_a_what_if_executes_no_tool_that_is_not_allowed(desk: Desk, runs: list[Run]) -> None:
    handling = {"chat_model_connection": Handling(policy="allow")}
    replayed = Stretch(runs, desk("v3"), desk("v1"), options(live=True, handling=handling)).replay()
    done = {name for report in replayed.reports for name in report.verdict.served["executed"]}
    assert done == {"model desk_service"}
    served = [report.verdict.served for report in replayed.reports]
    assert {name for one in served for name in one["only recorded"]} == {"tool issue_refund"}
    assert {name for one in served for name in one["answered from the record"]} == {"tool look_up_order"}
    assert summed(replayed)["verdicts"] == {"what-if": 50}


def test_an_input_is_judged_with_the_state_it_had(desk: Desk, runs: list[Run]) -> None:
    """Only the last input of a customer is asked for; those before it are fed, and reported by nobody."""
    own = [run for run in runs if run.key == "ada"]
    replayed = Stretch(own, desk("v2"), desk("v1"), options(), frozenset({own[-1].ref})).replay()
    (report,) = replayed.reports
    assert report.verdict.attempt is not None
    assert report.verdict.attempt.seq == len(own) - 1
    assert report.verdict.replayed["memory"]["visits"] == len(own)
    assert "came out as recorded" in report.verdict.plan["memory"]


def test_a_memory_that_nobody_vouches_for_makes_a_difference_worthless(desk: Desk, runs: list[Run]) -> None:
    """The log's second input of a customer, without the first: its visits cannot be counted."""
    second = [run for run in runs if run.key == "ada"][1:2]
    (report,) = Stretch(second, desk("v1"), desk("v1"), options(begins_empty=False)).replay().reports
    assert report.verdict.reason is not None
    assert report.verdict.reason.code == "memory_unknown"
    assert "visits" in report.verdict.reason.text
    known = options(begins_empty=False, memory={"ada": {"visits": 1, "refunded": 3_300, "last.text": "x"}})
    (report,) = Stretch(second, desk("v1"), desk("v1"), known).replay().reports
    assert report.verdict.exit_code == 0


def of_keys(replayed: Replayed) -> dict[str, list[tuple[str, str]]]:
    """Verdict and reason of each input, by key."""
    found: dict[str, list[tuple[str, str]]] = {}
    for one, report in zip(replayed.inputs, replayed.reports, strict=True):
        reason = report.verdict.reason
        found.setdefault(one.key, []).append((str(report.verdict.outcome), reason.code if reason else ""))
    return found


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_an_input_that_the_log_lost_whole_makes_nothing_diverge(
    desk: Desk, limited: Replayed, runs: list[Run], version: str
) -> None:
    """Nothing says that it is missing: what comes after it reads a memory that does not fit; other keys are judged."""
    held = list(read_log(example_log_without("ada", 3), LOG.name, parse_paths([KEY_PATH])).runs)
    assert len(held) == len(runs) - 1
    replayed = Stretch(held, desk(version), desk("v1"), options()).replay()
    found, whole = of_keys(replayed), of_keys(limited)
    ada = found.pop("ada")
    assert ada[:3] == (whole["ada"][:3] if version == "v2" else [("reproduced", "")] * 3)
    # Every answer of the desk counts the visits, so all of them differ; nobody can say that this is the build's doing.
    reason = "memory_unknown" if version == "v1" else "record_unproven"
    assert set(ada[3:]) == {("irreproducible", reason)}
    if version == "v1":
        first = next(
            r for one, r in zip(replayed.inputs, replayed.reports, strict=True) if (one.key, one.seq) == ("ada", 3)
        )
        assert "read visits" in first.verdict.headline
        assert "whether it lacks one of them nobody can say" in first.verdict.headline
        assert {code for codes in found.values() for code in codes} == {("reproduced", "")}
    else:
        assert found == {key: codes for key, codes in whole.items() if key != "ada"}


def test_an_input_that_could_not_be_fed_is_named_by_what_comes_after_it(desk: Desk, runs: list[Run]) -> None:
    """The log lost the first line of one run; what that input left in memory is not known, whatever others left."""
    own = [run for run in runs if run.key == "ada"]
    at = 4
    headless = dataclasses.replace(own[at], entries=own[at].entries[1:], input_missing=True)
    held = [*own[:at], headless, *own[at + 1 :]]
    replayed = Stretch(held, desk("v1"), desk("v1"), options()).replay()
    (found,) = of_keys(replayed).values()
    assert found[:at] == [("reproduced", "")] * at
    assert found[at] == ("unusable", "no_input")
    assert set(found[at + 1 :]) == {("irreproducible", "run_missing")}
    assert f"no run of input {at}, which could not be fed (no_input)" in replayed.reports[at + 1].verdict.headline
    other = of_keys(Stretch(held, desk("v2"), desk("v1"), options()).replay())["ada"]
    assert set(other[at + 1 :]) == {("irreproducible", "run_missing")}


def test_a_long_stretch_is_run_in_pieces_that_share_memory(
    desk: Desk, runs: list[Run], limited: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretch, "PIECE", 7)
    pieces = Stretch(runs, desk("v2"), desk("v1"), options()).replay()
    assert [one.verdict.as_json()["differences"] for one in pieces.reports] == [
        one.verdict.as_json()["differences"] for one in limited.reports
    ]
    own = Stretch(runs, desk("v1"), desk("v1"), options()).replay()
    assert summed(own)["verdicts"] == {"reproduced": 50}
