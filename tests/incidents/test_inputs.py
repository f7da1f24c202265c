"""What a person supplies beside the evidence: checked before it is kept, with words that name what is wrong."""

import base64
import json
from typing import Any

import pytest
from sqlalchemy import text

from app.incidents import inputs, service
from app.incidents.inputs import InputRefused
from app.incidents.service import Incident, RunInputs, Store
from app.replay.whatif import waiting
from app.wire.records import ToolResult, parse
from tests.golden.scenarios import scenario
from tests.incidents.evidence import recording

D28 = "d28_pending_resume_what_if"
GOOD = {"tool": "look", "arguments": {"b": 1, "a": 2}, "value": {"x": [1.0, None]}}


@pytest.mark.parametrize(
    "pasted",
    [json.dumps(GOOD), json.dumps([GOOD]), json.dumps([GOOD], indent=2), f"\n{json.dumps(GOOD)}\n\n"],
)
def test_answers_are_taken_as_lines_and_as_an_array(pasted: str) -> None:
    assert inputs.answers_of(pasted) == (GOOD,)
    (answer,) = inputs.engine_answers(inputs.answers_of(pasted))
    assert (answer.tool, answer.args_json, answer.value_json) == ("look", '{"a":2,"b":1}', '{"x":[1.0,null]}')
    assert inputs.answers_of(inputs.answers_text([GOOD])) == (GOOD,)


def test_nothing_is_nothing() -> None:
    assert inputs.answers_of(" \n ") == ()


@pytest.mark.parametrize(
    ("pasted", "told"),
    [
        ("nonsense", "line 1 is not JSON"),
        (f"{json.dumps(GOOD)}\n{{", "line 2 is not JSON"),
        ("[1,", "the array is not JSON"),
        ("[1]", "answer 1 is a JSON int"),
        (json.dumps([GOOD, {"tool": "x"}]), "answer 2 has no arguments and no value"),
        (json.dumps({**GOOD, "result": 1}), "answer 1 has 'result', which means nothing here"),
        (json.dumps({**GOOD, "tool": ""}), "answer 1 names no tool"),
        (json.dumps({**GOOD, "arguments": [1]}), "answer 1 has arguments that are no object"),
        (json.dumps({**GOOD, "value": float("nan")}), "answer 1 cannot be used"),
        (json.dumps([GOOD, {**GOOD, "value": 2}]), "answer 2 contradicts an earlier one"),
        (json.dumps([GOOD] * 501), "there are 501 of them"),
        ("[" * 100_000, "the array is not JSON"),
        ("x" * (1024 * 1024 + 1), "larger than 1 MiB"),
    ],
)
def test_what_is_wrong_with_answers_is_named(pasted: str, told: str) -> None:
    with pytest.raises(InputRefused, match="the tool answers cannot be used") as caught:
        inputs.answers_of(pasted)
    assert told in caught.value.problem
    assert caught.value.field == "tool_answers"
    assert caught.value.expected
    assert caught.value.remedy


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"approve": "a", "reject": "a"},
        {"maybe": "a"},
        {"approve": ""},
        {"approve": 7},
        {"result": "not base64!"},
        {"result": base64.b64encode(b"\xff\xff").decode()},
        {"result": base64.b64encode(b"").decode()},
    ],
)
def test_what_is_wrong_with_a_decision_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(InputRefused, match="the decision cannot be used"):
        inputs.decision_of(given)


def test_a_result_is_made_of_what_a_person_fills_in() -> None:
    wait = waiting(scenario(D28).bundle())[0]
    decision = inputs.result_decision(wait, b"key-1", "OK", '{"paid": true}')
    result = parse(ToolResult, base64.b64decode(decision["result"]))
    assert (result.intent_id, result.seq, result.entity_key) == (wait.intent, wait.seq, b"key-1")
    assert (result.status, result.payload, result.completed_at_ms) == (ToolResult.OK, b'{"paid": true}', wait.moment_ms)
    failed = inputs.result_decision(wait, b"key-1", "ERROR", "no such account")
    assert inputs.result_told(failed) == {"status": "ERROR", "text": "no such account"}
    with pytest.raises(InputRefused, match="is no status of a result"):
        inputs.result_decision(wait, b"", "FINE", "")


@pytest.fixture
async def suspended(store: Store) -> Incident:
    async with store.write() as session:
        return await service.import_evidence(session, scenario(D28).bundle(), who="ada")


async def ask(store: Store, incident: Incident, given: RunInputs) -> service.Run:
    async with store.write() as session:
        return await service.request_replay(session, incident, "v1", who="ada", known=["v1"], inputs=given)


async def test_inputs_are_kept_with_the_run_and_in_the_trail(store: Store, suspended: Incident) -> None:
    intent = waiting(scenario(D28).bundle())[0].intent
    run = await ask(store, suspended, RunInputs((GOOD,), inputs.decision_of({"reject": intent})))
    async with store.read() as session:
        kept = await service.get_run(session, run.id)
        (detail,) = await session.scalars(text("SELECT detail FROM audit_events WHERE subject = :run"), {"run": run.id})
    async with store.read() as session:
        (listed,) = await service.runs_of(session, suspended)
    assert (kept.kind, kept.decision, kept.tool_answers) == (
        "what-if",
        {"intent": intent, "approved": False},
        [GOOD],
    )
    assert detail["decision"] == kept.decision
    assert (detail["tool_answers"]["count"], detail["tool_answers"]["tools"]) == (1, ["look"])
    with pytest.raises(Exception, match="tool_answers"):  # lists do not load them
        _ = listed.tool_answers


async def test_what_nothing_waits_for_is_refused_and_leaves_no_run(store: Store, suspended: Incident) -> None:
    with pytest.raises(InputRefused, match="no snapshot waits for intent 'nothing'; waiting are"):
        await ask(store, suspended, RunInputs((), {"intent": "nothing", "approved": True}))
    async with store.write() as session:
        other = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
    with pytest.raises(InputRefused, match="no snapshot is suspended"):
        await ask(store, other, RunInputs((), {"intent": "nothing", "approved": True}))
    async with store.read() as session:
        assert await service.runs_of(session, suspended) == []
