"""What waits for an answer, and what an answer would do; nothing that has been answered is offered again."""

import pytest

from app.replay.engine import replay
from app.replay.inprocess import InProcessRunner
from app.replay.verdict import Outcome
from app.replay.whatif import Decision, NothingPends, waiting, with_decision
from app.wire.records import ToolResult, serialize
from tests.golden.scenarios import scenario

D28 = "d28_pending_resume_what_if"


def test_what_the_newest_snapshot_waits_for_is_told_with_its_arguments() -> None:
    found = waiting(scenario(D28).bundle())
    assert [(one.kind, one.tool) for one in found] == [("tool", "pay"), ("approval", "desk-2")]
    assert all(one.intent and one.args_json and one.snapshot == "snapshot.pb" for one in found)
    assert all(one.deadline_ms > (one.created_at_ms or 0) for one in found)


@pytest.mark.parametrize(
    "name",
    [
        "a01_fraud_completed",  # never suspended
        "a06_resume_approved",  # answered
        "d31_hitl_timeout_in_seq",  # a timer ended the wait
        "m40_start_cleared_continuation",  # a later event ended it
    ],
)
def test_what_is_over_is_not_offered(name: str) -> None:
    assert waiting(scenario(name).full()) == ()


@pytest.mark.parametrize("approved", [True, False])
def test_a_decision_runs_as_a_what_if(approved: bool, runner: InProcessRunner) -> None:
    one = scenario("a05_suspended_start")
    (waits,) = waiting(one.bundle())
    verdict = replay(with_decision(one.bundle(), Decision(waits.intent, approved)), runner, one.code()).verdict
    assert verdict.outcome is Outcome.WHAT_IF
    assert verdict.replayed["intents" if approved else "outputs"]


def test_a_result_names_its_intent_itself(runner: InProcessRunner) -> None:
    one = scenario(D28)
    intent = waiting(one.bundle())[0].intent
    result = serialize(ToolResult(intent_id=intent, status=ToolResult.OK, payload=b"done"))
    files = with_decision(one.bundle(), Decision(result=result))
    assert replay(files, runner, one.code()).verdict.outcome is Outcome.WHAT_IF


def test_what_does_not_wait_is_named_with_what_does() -> None:
    with pytest.raises(NothingPends, match=r"no snapshot waits for intent 'nothing'; waiting are 7232"):
        with_decision(scenario(D28).bundle(), Decision("nothing"))
    with pytest.raises(NothingPends, match="no snapshot is suspended"):
        with_decision(scenario("a01_fraud_completed").bundle(), Decision("x"))
