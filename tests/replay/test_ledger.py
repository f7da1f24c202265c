"""The ledger says what the model saw, what it said and what came of it; bounded, and never in the way."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.replay.engine import Options, replay
from app.replay.inprocess import InProcessRunner
from app.replay.ledger import HEAD, LEAF, Ledger, memory_value, readable, shortened
from app.replay.verdict import LedgerEntry, Outcome, Report
from tests.golden.scenarios import has_valid_command, names, scenario


def run(name: str, runner: InProcessRunner, limit: int = 1 << 20) -> Report:
    one = scenario(name)
    return replay(one.bundle(), runner, one.code(), seq=one.seq, options=Options(ledger_bytes=limit))


def of(report: Report, kind: str) -> list[LedgerEntry]:
    return [entry for entry in report.ledger if entry.kind == kind]


def test_it_tells_the_whole_story_at_each_event(runner: InProcessRunner) -> None:
    report = run("a01_fraud_completed", runner)
    (tool,) = of(report, "tool")
    assert (tool.ordinal, tool.body["value"], tool.body["outcome"]) == (1, "hist(4242,5)", "executed")
    first, second = of(report, "model")
    assert first.body["request"]["messages"] == [{"content": "score t-1 hist(4242,5)", "role": "user"}]
    assert "risk=0.93" in first.body["response"]
    assert first.body["decoded"] == {"text": "risk=0.93", "tokens": [41, 7, 48]}
    assert [first.ordinal, second.ordinal] == [2, 3]
    assert [intent.body["args"] for intent in of(report, "intent")] == [
        '{"amount":991,"txn":"t-1"}',
        '{"txn": "t-1"}',
    ]
    memory = of(report, "memory")
    assert [(m.ordinal, m.body["key"], m.body["after"]) for m in memory] == [
        (6, "recent", ["t-1"]),
        (6, "last_score", "risk=0.93"),
    ]


# s13 reads the wall clock, so no two of its runs are the same.
STEADY = [name for name in names("corpus") if has_valid_command(scenario(name)) and not name.startswith("s13")]


@pytest.mark.parametrize("name", STEADY)
def test_keeping_one_changes_no_verdict(name: str, runner: InProcessRunner) -> None:
    one = scenario(name)
    without = replay(one.bundle(), runner, one.code(), seq=one.seq)
    with_one = run(name, runner)
    assert with_one.verdict == without.verdict
    assert with_one.rows == without.rows
    assert without.ledger == ()
    ordinals = {row.ordinal for row in with_one.rows}
    assert all(entry.ordinal is None or entry.ordinal in ordinals for entry in with_one.ledger)


def test_it_stays_within_its_bound_and_says_what_was_cut(runner: InProcessRunner) -> None:
    report = run("a30_exactly_64_calls", runner, limit=4_000)
    (cut,) = of(report, "cut")
    assert cut.body["entries"] > 0
    assert 0 < len(of(report, "model")) < 64
    assert sum(len(json.dumps(entry.as_json())) for entry in report.ledger) < 8_000
    assert report.verdict.outcome is Outcome.REPRODUCED


def test_a_long_value_becomes_its_head_size_and_digest() -> None:
    ledger = Ledger(10_000)
    ledger.add("model", step=0, response="x" * 1_000_000)
    (entry,) = map(json.loads, ledger.dump().splitlines())
    assert entry["response"]["bytes"] == 1_000_000
    assert len(entry["response"]["head"]) == HEAD
    assert len(entry["response"]["sha256"]) == 64


def test_of_a_long_request_every_long_text_is_cut_by_itself() -> None:
    ledger = Ledger(10_000_000)
    messages = [{"role": "system", "content": "s" * 400_000}, {"role": "user", "content": "refund me"}]
    ledger.add("model", request=json.dumps({"model": "m", "messages": messages}), response="yes")
    (entry,) = map(json.loads, ledger.dump().splitlines())
    first, last = entry["request"]["messages"]
    assert (first["content"]["bytes"], len(first["content"]["head"]), last["content"]) == (400_000, LEAF, "refund me")
    many = [{"role": "user", "content": "u" * 20_000}] * 1_000
    ledger.add("model", request=json.dumps({"messages": many}))
    assert set(json.loads(ledger.dump().splitlines()[1])["request"]) == {"head", "bytes", "sha256"}


class Hostile:
    def __repr__(self) -> str:
        raise SystemError("no")


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize("value", [Hostile(), {1: {2}}, {(1, 2): 3}, CIRCLE, "\ud800", float("nan"), b"\xff\x00"])
def test_a_value_that_cannot_be_rendered_is_shown_as_what_it_is(value: Any) -> None:
    ledger = Ledger(10_000)
    ledger.add("tool", value=value)
    assert b'"kind": "tool"' in ledger.dump()


def test_bytes_are_text_where_they_are_text() -> None:
    assert readable("é".encode()) == "é"
    assert readable(b"\xff\x01") == {"hex": "ff01", "bytes": 2}
    long = readable(b"\xff" * 20_000_000)
    assert (len(long["hex"]), long["bytes"], len(long["sha256"])) == (2 * HEAD, 20_000_000, 64)
    assert readable(None) is None
    assert memory_value(b"\x00plain") == "plain"
    assert memory_value(b"\x01\x00\x00\x00\x01a\x00\x00\x00\x02bc") == ["a", "bc"]
    assert shortened({"a": 1}) == {"a": 1}


AGENT = """
from beam_agents.core.agent import Complete
from beam_agents.model.client import LlmRequest

MESSAGES = [{"role": "user", "content": "score t-1 hist(4242,5)"}]

async def AGENT(ctx):
    request = LlmRequest(model_id="risk-large-1", messages=MESSAGES, tools_schema=None,
                         sampling_params={"temperature": 0})
    await ctx.call_model(request)
    MESSAGES[0]["content"] = "something else"
    return Complete()
"""


def test_an_agent_that_changes_its_inputs_afterwards_changes_no_entry(tmp_path: Path, runner: InProcessRunner) -> None:
    (tmp_path / "mutating.py").write_text(AGENT)
    one = scenario("a01_fraud_completed")
    code = one.code()
    code.agent = "mutating:AGENT"
    code.paths.append(str(tmp_path))
    report = replay(one.bundle(), runner, code, options=Options(ledger_bytes=1 << 20))
    (call,) = of(report, "model")
    assert call.body["request"]["messages"][0]["content"] == "score t-1 hist(4242,5)"
