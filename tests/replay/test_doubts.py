"""What a run cannot vouch for is settled by varying it; what stays open is never called reproduced."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.replay.answers import ToolAnswersError, read_tool_answers
from app.replay.engine import Options, replay
from app.replay.evidence import EvidenceFile, Role
from app.replay.inprocess import InProcessRunner
from app.replay.rerun_pb2 import AgentCode, ToolAnswer
from app.replay.verdict import Outcome, Verdict
from app.runtime.activation import ActivationInput, AgentHooks, run_activation
from app.wire.framing import write_frames
from app.wire.records import AgentEnvelope, MemoryBlob, StateSnapshot, serialize
from tests.golden.scenarios import scenario

KEY, CLOCK = b"k", 2_000

# Each agent reads a value that a later activation may have overwritten; what it does with it differs.
AGENTS = {
    "into_arguments": 'ctx.act("pay", value.decode())',
    "into_nothing": 'ctx.act("pay", "{}")',
    "through_a_table": 'ctx.act("pay", {"gold": "9", "tin": "1"}[value.decode()])',
    "into_a_branch": 'ctx.act("pay" if value else "hold", "{}")',
    "into_the_output": "output = value",
    "into_a_constant": 'ctx.act("pay", "900" if value == b"gold" else "5")',
    "into_a_threshold": 'ctx.act("pay", "900" if len(value) > 100 else "5")',
}

TEMPLATE = """
from beam_agents.core.agent import Complete

async def AGENT(ctx):
    output = b""
    value = ctx.memory.get("tier") or b""
    {body}
    return Complete(output=output)
"""


def verdict_of(
    body: str,
    value: bytes,
    folder: Path,
    runner: InProcessRunner,
    vindicated: Sequence[str] = (),
    outputs: Sequence[bytes] = (),
) -> Verdict:
    """The verdict on a start at seq 1 whose only snapshot was taken two activations later."""
    (folder / "doubted.py").write_text(TEMPLATE.format(body=body))
    code = AgentCode(agent="doubted:AGENT", paths=[str(folder)])
    envelope = AgentEnvelope(entity_key=KEY, event_time_ms=CLOCK, external_event=b"e")
    memory = MemoryBlob()
    memory.entries.add(key="tier", value=b"\x00" + value, last_access_ms=9_000)
    snapshot = StateSnapshot(state_schema_version=1, entity_key=KEY, seq=3, memory=memory)
    traces = _recorded(code, memory, runner)
    files = [
        EvidenceFile(Role.SNAPSHOT, "after.pb", serialize(snapshot)),
        EvidenceFile(Role.TRACES, "traces.pb", traces),
        EvidenceFile(Role.EVENT, "event.pb", serialize(envelope)),
    ]
    if outputs:
        files.append(EvidenceFile(Role.OUTPUTS, "outputs.bin", write_frames(outputs)))
    return replay(files, runner, code, options=Options(vindicated=frozenset(vindicated))).verdict


def _recorded(code: AgentCode, memory: MemoryBlob, runner: InProcessRunner) -> bytes:
    agent = runner._code(code).agent
    inputs = ActivationInput(KEY, 1, CLOCK, events=(b"e",), memory=memory)
    result = run_activation(inputs, AgentHooks(agent))
    assert result.status == "completed", result.error
    return write_frames(serialize(event) for event in result.events)


@pytest.mark.parametrize(
    ("agent", "value", "outcome"),
    [
        ("into_arguments", b"30", Outcome.IRREPRODUCIBLE),
        ("into_nothing", b"30", Outcome.IRREPRODUCIBLE),
        ("through_a_table", b"gold", Outcome.IRREPRODUCIBLE),
        ("into_a_branch", b"30", Outcome.IRREPRODUCIBLE),
        ("into_the_output", b"30", Outcome.IRREPRODUCIBLE),
        ("into_a_constant", b"tin", Outcome.IRREPRODUCIBLE),
        ("into_a_threshold", b"30", Outcome.IRREPRODUCIBLE),
    ],
)
def test_an_unvouched_value_must_not_reach_what_was_not_compared(
    agent: str, value: bytes, outcome: Outcome, tmp_path: Path, runner: InProcessRunner
) -> None:
    verdict = verdict_of(AGENTS[agent], value, tmp_path, runner)
    assert verdict.outcome is outcome, verdict.headline
    assert [read["read"] for read in verdict.reads] == ["get('tier')"]


def test_an_output_that_may_be_another_activations_vouches_for_nothing(tmp_path: Path, runner: InProcessRunner) -> None:
    # The stream holds 30 because a later activation, with the value that was written later, gave it.
    verdict = verdict_of(AGENTS["into_the_output"], b"30", tmp_path, runner, outputs=[b"20", b"30"])
    assert verdict.outcome is Outcome.IRREPRODUCIBLE, verdict.headline
    outputs = next(surface for surface in verdict.surfaces if surface.name == "outputs")
    assert not outputs.compared
    assert "do not say whose" in outputs.detail


def test_the_only_output_of_a_stream_is_its_own(tmp_path: Path, runner: InProcessRunner) -> None:
    verdict = verdict_of(AGENTS["into_the_output"], b"30", tmp_path, runner, outputs=[b"30"])
    assert verdict.outcome is Outcome.REPRODUCED, verdict.headline


def test_a_read_that_another_build_has_vindicated_is_no_doubt(tmp_path: Path, runner: InProcessRunner) -> None:
    verdict = verdict_of(AGENTS["into_arguments"], b"30", tmp_path, runner, ["get('tier')"])
    assert verdict.outcome is Outcome.REPRODUCED
    assert verdict.reads[0]["vindicated"] is True


def test_a_supplied_tool_answer_that_a_recorded_request_carries_is_proven(runner: InProcessRunner) -> None:
    one = scenario("i14_tool_answer_in_prompt")
    assert replay(one.bundle(), runner, one.code()).verdict.outcome is Outcome.IRREPRODUCIBLE
    name = one.bundle()[2].data.decode("latin-1").partition("tool-prompt ")[2]
    answer = ToolAnswer(tool="lookup", args_json=f'{{"name":"{name}"}}', value_json=f'"{name.upper()}"')
    verdict = replay(one.bundle(), runner, one.code(), options=Options(tool_answers=(answer,))).verdict
    assert verdict.outcome is Outcome.REPRODUCED, verdict.headline
    assert verdict.served["tools"] == {"supplied": 1}
    (proof,) = verdict.served["supplied"]
    assert (proof["tool"], proof["arguments"], proof["proven"]) == ("lookup", answer.args_json, True)


def test_a_wrong_tool_answer_is_a_miss_not_a_divergence(runner: InProcessRunner) -> None:
    one = scenario("i14_tool_answer_in_prompt")
    name = one.bundle()[2].data.decode("latin-1").partition("tool-prompt ")[2]
    answer = ToolAnswer(tool="lookup", args_json=f'{{"name":"{name}"}}', value_json='"WRONG"')
    verdict = replay(one.bundle(), runner, one.code(), options=Options(tool_answers=(answer,))).verdict
    assert verdict.outcome is Outcome.IRREPRODUCIBLE


@pytest.mark.parametrize("line", [b"nonsense", b"[]", b'{"tool": "x"}', b'{"tool": 1, "arguments": {}, "value": 2}'])
def test_bad_tool_answers_name_the_line(line: bytes) -> None:
    good = b'{"tool": "x", "arguments": {}, "value": 1}\n\n'
    with pytest.raises(ToolAnswersError, match="line 3: expected"):
        read_tool_answers(good + line)
