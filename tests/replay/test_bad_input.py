"""Evidence and agents that are odd but not wrong: each is shown as what it is, and no input changes by it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from app.replay.engine import Options, replay
from app.replay.evidence import EvidenceFile, Role
from app.replay.inprocess import InProcessRunner
from app.replay.rerun_pb2 import AgentCode
from app.replay.verdict import LedgerEntry, Outcome, Report
from app.wire.records import StateSnapshot, parse, serialize
from tests.golden.scenarios import scenario

A01 = "a01_fraud_completed"
LEDGER = Options(ledger_bytes=1 << 20)


def digests(files: Sequence[EvidenceFile]) -> list[str]:
    return [hashlib.sha256(file.data).hexdigest() for file in files]


def with_answers(answer: Callable[[bytes], bytes]) -> list[EvidenceFile]:
    """a01 with other model responses, as if the provider had said that."""
    files = scenario(A01).bundle()
    snapshot = parse(StateSnapshot, files[0].data)
    for entry in snapshot.llm_cache.entries:
        entry.response = answer(entry.response)
        entry.response_digest = hashlib.sha256(entry.response).digest()
    files[0] = EvidenceFile(Role.SNAPSHOT, "snapshot.pb", serialize(snapshot))
    return files


def agent(tmp_path: Path, source: str) -> AgentCode:
    (tmp_path / "odd.py").write_text(PREAMBLE + source)
    code = scenario(A01).code()
    code.agent, code.registry, code.decode = "odd:AGENT", "odd:TOOLS", "odd:decode"
    code.paths.append(str(tmp_path))
    return code


PREAMBLE = """
from beam_agents.core.agent import Complete
from beam_agents.model.client import LlmRequest
from beam_agents.model.facade import DecodedResponse, TokenUsage
from beam_agents.tools import ToolRegistry, tool

TOOLS = ToolRegistry()

def decode(response):
    return DecodedResponse(TokenUsage(1, 1, 2), "")

def register(function):
    TOOLS.register(tool(function))

ASK = LlmRequest("risk-large-1", [{"role": "user", "content": "score t-1 hist(4242,5)"}], None, {"temperature": 0})
"""


def run(files: Sequence[EvidenceFile], runner: InProcessRunner, code: AgentCode, options: Options = LEDGER) -> Report:
    """The report, after making sure that all inputs are as they were and that all of it can be written down."""
    before = digests(files)
    report = replay(files, runner, code, options=options)
    assert digests(files) == before
    json.dumps([report.verdict.as_json(), [entry.as_json() for entry in report.ledger]], allow_nan=False)
    return report


def of(report: Report, kind: str) -> list[LedgerEntry]:
    return [entry for entry in report.ledger if entry.kind == kind]


USAGE_FREE = """
async def AGENT(ctx):
    answer = await ctx.call_model(ASK)
    ctx.memory.set("said", answer.response[:100])
    return Complete(answer.response[:5])
"""


def test_a_response_that_is_no_text_is_shown_as_bytes(tmp_path: Path, runner: InProcessRunner) -> None:
    report = run(with_answers(lambda _: b"\xff\xfe\x00\x01"), runner, agent(tmp_path, USAGE_FREE))
    (call,) = of(report, "model")
    assert call.body["response"] == {"hex": "fffe0001", "bytes": 4}
    assert of(report, "memory")[0].body["after"] == {"hex": "fffe0001", "bytes": 4}


def test_a_response_of_twenty_megabytes_is_a_head_with_size_and_digest(tmp_path: Path, runner: InProcessRunner) -> None:
    said = b"a long story. " * (20_000_000 // 14)
    report = run(with_answers(lambda _: said), runner, agent(tmp_path, USAGE_FREE))
    (call,) = of(report, "model")
    assert call.body["response"]["bytes"] == len(said)
    assert call.body["response"]["sha256"] == hashlib.sha256(said).hexdigest()
    assert call.body["response"]["head"].startswith("a long story.")
    assert len(json.dumps(call.as_json())) < 20_000


def test_two_snapshots_that_disagree_are_a_conflict(runner: InProcessRunner) -> None:
    one = scenario(A01)
    files = [*one.bundle(), with_answers(lambda said: said + b" ")[0]]
    files[-1] = EvidenceFile(Role.SNAPSHOT, "other.pb", files[-1].data)
    for order in (files, [files[-1], *files[:-1]]):
        verdict = run(order, runner, one.code()).verdict
        assert verdict.outcome is Outcome.UNUSABLE
        assert verdict.reason is not None
        assert verdict.reason.code == "conflicting_snapshots"
        assert {"snapshot.pb", "other.pb"} <= set(verdict.reason.text.replace(",", " ").split())


EXPLODING = """
async def AGENT(ctx):
    for at in range(20_000):
        ctx.memory.set(f"key-{at % 50}", b"x" * 500)
    return Complete()
"""


def test_a_ledger_that_explodes_stays_within_its_bound_and_says_so(tmp_path: Path, runner: InProcessRunner) -> None:
    report = run(scenario(A01).bundle(), runner, agent(tmp_path, EXPLODING), Options(ledger_bytes=100_000))
    (cut,) = of(report, "cut")
    assert len(of(report, "memory")) + cut.body["entries"] == 20_000
    assert sum(len(json.dumps(entry.as_json())) for entry in report.ledger) < 200_000


UNRENDERABLE = """
class Hostile:
    def __repr__(self):
        raise SystemError("no")
    __str__ = __repr__

@register
def give() -> object:
    "Give."
    return Hostile()

async def AGENT(ctx):
    await ctx.run_tool("give", {})
    return Complete()
"""


def test_a_tool_value_that_cannot_be_rendered_says_so(tmp_path: Path, runner: InProcessRunner) -> None:
    report = run(scenario(A01).bundle(), runner, agent(tmp_path, UNRENDERABLE))
    (tool,) = of(report, "tool")
    assert tool.body["outcome"] == "executed"
    assert "Hostile" in json.dumps(tool.body["value"])


MUTATING = """

async def AGENT(ctx):
    for blob in (ctx.memory_blob(), ctx.cache_blob()):
        blob.Clear()
    blob = ctx.cache_blob()
    for entry in blob.entries:
        entry.response = b"forged"
    if ctx.resume_result is not None:
        ctx.resume_result.Clear()
    if ctx.resume_approval is not None:
        ctx.resume_approval.Clear()
    await ctx.call_model(ASK)
    return Complete()
"""


@pytest.mark.parametrize("name", [A01, "a06_resume_approved", "a08_resume_tool_result_ok"])
def test_an_agent_that_changes_its_inputs_changes_none_of_ours(
    name: str, tmp_path: Path, runner: InProcessRunner
) -> None:
    files = scenario(name).full()
    first = run(files, runner, agent(tmp_path, MUTATING))
    again = run(files, runner, agent(tmp_path, MUTATING))
    assert first.verdict == again.verdict
    for call in of(first, "model"):
        assert call.body["response"] != "forged"
    one = scenario(name)
    assert run(files, runner, one.code()).verdict.outcome is Outcome.REPRODUCED
