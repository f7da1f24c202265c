"""Logs that real Flink jobs wrote, of 0.3.1 and of 0.4, re-run with an agent that does what theirs did."""

from pathlib import Path
from typing import Any

import pytest

from app.flink.inside.messages import ToolAnswer, tool_digest
from app.flink.keys import parse_paths
from app.flink.logs import read_log
from app.flink.model import Run
from app.flink.rerun.case import Options
from app.flink.rerun.recorded import from_wire, numbered
from app.flink.rerun.stretch import Replayed, Stretch
from app.replay.verdict import Verdict
from tests.fixtures.flink import Runners
from tests.flink.lines import flat

AGENTS = Path(__file__).with_name("agents")
DATA = Path(__file__).parents[1] / "data"
NESTED, SLF4J = "eventlog-0.3.1-file.jsonl", "eventlog-0.3.1-slf4j.jsonl"
TRACED, FAILED_TOOL = "eventlog-head-trace-verbose.jsonl", "eventlog-head-failed-tool.jsonl"


def runs(name: str) -> list[Run]:
    return list(read_log((DATA / name).read_bytes(), name, parse_paths(["$.input.k"])).runs)


def replayed(flink_build: Runners, name: str, agent: str = "RefundAgent", *, empty: bool = False) -> Replayed:
    build = flink_build(agent, f"refunds:{agent}", AGENTS)
    return Stretch(runs(name), build, build, Options(begins_empty=empty)).replay()


def codes(done: Replayed) -> list[str]:
    return [report.verdict.reason.code if report.verdict.reason else "reproduced" for report in done.reports]


@pytest.mark.parametrize("name", [NESTED, TRACED])
def test_a_real_log_reproduces(flink_build: Runners, name: str) -> None:
    done = replayed(flink_build, name)
    assert codes(done) == ["reproduced"] * len(done.reports)
    assert len(done.reports) == 3
    refunds = [call for calls in done.calls for call in calls if call.kind == "tool"]
    assert [(call.name, str(call.outcome)) for call in refunds] == [("issue_refund", "answered")] * 2


def test_memory_comes_from_the_log_where_it_has_it(flink_build: Runners) -> None:
    done = replayed(flink_build, TRACED)
    assert all("the log" in report.verdict.plan["memory"] for report in done.reports)
    by_key = {(one.key, one.seq): report for one, report in zip(done.inputs, done.reports, strict=True)}
    surfaces = {surface.name: surface for surface in by_key["c1", 0].verdict.surfaces}
    assert str(surfaces["memory after"].state) == "equal"
    assert str({s.name: s for s in by_key["c2", 0].verdict.surfaces}["memory after"].state) == "not compared"


def test_what_a_key_is_left_with_is_compared_with_what_its_next_run_began_with(flink_build: Runners) -> None:
    """The first input comes out the same; the second, fed with what the log has, does not. Nothing carries over."""
    done = replayed(flink_build, TRACED, "Miscounting")
    found = {(one.key, one.seq): str(r.verdict.outcome) for one, r in zip(done.inputs, done.reports, strict=True)}
    assert found == {("c1", 0): "reproduced", ("c2", 0): "reproduced", ("c1", 1): "diverged"}
    second = next(r for one, r in zip(done.inputs, done.reports, strict=True) if one.seq == 1)
    assert second.verdict.differences[0].surface == "outputs"
    assert "3" in str(second.verdict.differences[0].replayed)


def test_the_result_of_a_durable_function_is_in_no_log_and_is_never_made_up(flink_build: Runners) -> None:
    """The job kept it elsewhere: the run is irreproducible by that name, until the result is handed in."""
    lines = [flat(1, "r", "k", "_input_event", {"input": "red"}), flat(2, "r", "k", "_output_event",
             {"output": {"drawn": 4}}, upstreamActionName="on_input")]  # fmt: skip
    (run,) = read_log(b"\n".join(lines) + b"\n", "events.log").runs
    build = flink_build("drawing", "canary:Drawing", AGENTS)

    def verdict(**options: Any) -> Verdict:
        (report,) = Stretch([run], build, build, Options(begins_empty=True, **options)).replay().reports
        return report.verdict

    def drawn(value: int) -> tuple[ToolAnswer, ...]:
        digest = tool_digest("canary.draw", {"pot": "red"})
        return (ToolAnswer(tool="canary.draw", digest=digest, value=value, supplied=True),)

    for live in (False, True):
        missing = verdict(live=live)
        assert missing.reason is not None
        assert (missing.exit_code, missing.reason.code) == (3, "no_answer")
        assert "durable function canary.draw gave. It was not run in place" in missing.headline
        assert '"function:canary.draw" = "allow"' in missing.reason.remedy
        assert missing.reason.details == {"call": "canary.draw", "arguments": {"pot": "red"}}
        assert missing.served["executed"] == {}
    assert verdict(supplied=drawn(4)).exit_code == 0
    wrong = verdict(supplied=drawn(3))  # nothing recorded proves what was handed in
    assert wrong.reason is not None
    assert wrong.reason.code == "stand_in"


def test_a_run_that_the_log_lost_is_not_held_against_the_one_before_it(flink_build: Runners) -> None:
    """The next run of the key began with a count that the build never leaves: an input between may be missing."""
    build = flink_build("RefundAgent", "refunds:RefundAgent", AGENTS)
    data = (DATA / TRACED).read_bytes().replace(b'"value":{"count":1}', b'"value":{"count":7}')
    found = {}
    for agent in ("RefundAgent", "Miscounting"):
        held = read_log(data, TRACED).runs
        other = flink_build(agent, f"refunds:{agent}", AGENTS)
        done = Stretch(held, other, build, Options()).replay()
        found[agent] = {
            (one.key, one.seq): report.verdict for one, report in zip(done.inputs, done.reports, strict=True)
        }
    for verdicts in found.values():
        first = verdicts["c1", 0]
        assert first.reason is not None
        assert (first.exit_code, first.reason.code) == (3, "next_missing")
        assert "an input between number 0 and that one may be missing" in first.headline
        assert verdicts["c2", 0].exit_code == 0
        assert verdicts["c1", 1].first_divergence is not None  # it is fed with what the log says that it had


def test_two_jobs_in_one_log_share_no_memory(flink_build: Runners) -> None:
    """The first one ran to its end; the second was killed while two keys waited for a tool."""
    done = replayed(flink_build, SLF4J)
    assert codes(done) == ["reproduced"] * 4 + ["unfinished"] * 2
    assert [one.seq for one in done.inputs] == [0, 0, 1] * 2
    assert "a call of the tool issue_refund that got no answer" in done.reports[4].verdict.headline


def test_a_tool_that_failed_fails_again(flink_build: Runners) -> None:
    """0.4 goes on after a failed tool; the framework of this build, 0.3.1, does not, which is told as a difference."""
    done = replayed(flink_build, FAILED_TOOL)
    failed = next(r for r in done.reports if any(row.event.type == "ERROR" for row in r.rows))
    assert str(failed.verdict.outcome) == "diverged"
    assert "payment gateway said no" in str([row.replayed for row in failed.rows if row.event.type == "ERROR"])


def test_a_call_for_tools_keeps_the_words_beside_it_where_the_log_has_them() -> None:
    """Memory writes of 0.4 hold the whole answer; its request for tools does not."""
    first = numbered(runs(TRACED))[0]
    assert first.memory == ["o", {}]
    assert [bool(one.answer and one.answer["tool_calls"]) for one in first.exchanges] == [True, False]
    assert [one.tool for one in first.tools] == ["issue_refund"]
    assert from_wire(numbered(runs(TRACED))[2].memory or []) == {"count": 1}
