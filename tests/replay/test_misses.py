"""A missed request has one reason, and each kind of reason its own recording."""

# complaints 8 and 9

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from app.replay.engine import replay
from app.replay.evidence import EvidenceFile, Role
from app.replay.inprocess import InProcessRunner
from app.replay.verdict import Outcome, Reason
from app.wire import identity
from app.wire.framing import read_frames, write_frames
from app.wire.records import AgentEnvelope, StateSnapshot, TraceEvent, parse, serialize
from tests.golden.scenarios import scenario


def miss(name: str, runner: InProcessRunner, change: Callable[[StateSnapshot], None] | None = None) -> Reason:
    one = scenario(name)
    files = one.bundle()
    if change is not None:
        snapshot = parse(StateSnapshot, files[0].data)
        change(snapshot)
        files[0] = EvidenceFile(Role.SNAPSHOT, "snapshot.pb", serialize(snapshot))
    verdict = replay(files, runner, one.code(), seq=one.seq).verdict
    assert verdict.outcome is Outcome.IRREPRODUCIBLE
    assert verdict.reason is not None
    assert verdict.reason.remedy
    assert len(verdict.reason.details["cache_key"]) == 64
    return verdict.reason


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("i18_no_cache_in_snapshot", "no_responses"),
        ("i03_evicted_by_later_seq", "evicted"),
        ("i06_byte_eviction", "evicted"),
        ("i07_ttl_expired", "evicted"),
        ("i05_digest_only", "digest_only"),
        ("s17_failed_then_cached", "withheld"),
        ("i01_failed_after_llm", "uncommitted"),
        ("i08_memory_drift", "memory_drift"),
        ("i10_prompt_changed", "request_changed"),
        ("i14_tool_answer_in_prompt", "request_changed"),
    ],
)
def test_reason(name: str, code: str, runner: InProcessRunner) -> None:
    assert miss(name, runner).code == code


@pytest.mark.parametrize(("name", "part"), [("i09_model_changed", "model"), ("i11_sampling_changed", "sampling")])
def test_the_part_that_differs_is_searched_for(name: str, part: str, runner: InProcessRunner) -> None:
    reason = miss(name, runner)
    assert reason.code == "request_changed"
    assert reason.details["differs"] == part
    assert part in reason.text
    assert reason.details["nearest"]["source"] == "snapshot.pb"
    name = {"sampling": "params"}.get(part, part)
    assert json.dumps(reason.details["recorded"]) != json.dumps(reason.details["request"][name])


def test_a_tool_that_ran_again_is_named_as_another_suspect(runner: InProcessRunner) -> None:
    assert "lookup" in miss("i14_tool_answer_in_prompt", runner).text


def rekeyed(entity_key: bytes, seq: int) -> Callable[[StateSnapshot], None]:
    """The only cached answer of a01's first call, as if it had been recorded for another key or seq."""

    def change(snapshot: StateSnapshot) -> None:
        material = identity.request_material(
            entity_key=entity_key,
            seq=seq,
            model="risk-large-1",
            messages=[{"role": "user", "content": "score t-1 hist(4242,5)"}],
            tools=None,
            params={"temperature": 0},
        )
        snapshot.llm_cache.entries[0].cache_key = identity.cache_key(material)

    return change


def test_an_answer_of_another_seq(runner: InProcessRunner) -> None:
    reason = miss("a01_fraud_completed", runner, rekeyed(b"card-4242", 1))
    assert (reason.code, reason.details["differs"]) == ("wrong_seq", "seq")


def test_an_answer_of_another_key(runner: InProcessRunner) -> None:
    """A bundle may hold the trace of a neighbour; its request then was recorded under that key."""
    one = scenario("a01_fraud_completed")
    files = one.bundle()
    neighbour = TraceEvent(
        entity_key=b"card-1111", trace_id=identity.trace_id(b"card-1111", 0), span_id=b"12345678", event_type=2
    )
    files.append(EvidenceFile(Role.TRACES, "neighbour.pb", write_frames([serialize(neighbour)])))
    snapshot = parse(StateSnapshot, files[0].data)
    rekeyed(b"card-1111", 0)(snapshot)
    files[0] = EvidenceFile(Role.SNAPSHOT, "snapshot.pb", serialize(snapshot))
    reason = replay(files, runner, one.code()).verdict.reason
    assert reason is not None
    assert (reason.code, reason.details["differs"]) == ("wrong_key", "entity key")
    assert reason.details["nearest"]["source"] == "snapshot.pb"


def test_agent_code_that_catches_everything_does_not_outlive_a_miss(tmp_path: Path, runner: InProcessRunner) -> None:
    # complaint 50
    (tmp_path / "swallowing.py").write_text(SWALLOWING)
    one = scenario("a01_fraud_completed")
    code = one.code()
    code.agent = "swallowing:AGENT"
    code.paths.append(str(tmp_path))
    verdict = replay(one.bundle(), runner, code).verdict
    assert verdict.outcome is Outcome.IRREPRODUCIBLE
    assert verdict.reason is not None
    assert verdict.reason.code == "request_changed"
    assert verdict.reason.details["request"]["messages"] == ["nobody asked this"]
    assert not verdict.replayed["intents"]
    assert verdict.served["provider_calls"] == 1


SWALLOWING = """
import asyncio
from beam_agents.core.agent import Complete
from beam_agents.model.client import LlmRequest

async def AGENT(ctx):
    try:
        await ctx.call_model(LlmRequest("m", ["nobody asked this"], None, None))
    except BaseException:
        pass
    ctx.act("went_on", "{}")
    return Complete(b"as if nothing had happened")
"""


def test_an_expired_answer(runner: InProcessRunner) -> None:
    """The resume came seven hours after the start whose answer it asks for again."""
    one, late = scenario("a26_resume_cached_call"), 7 * 60 * 60 * 1000
    snapshot, traces, trigger = one.bundle()
    events = [parse(TraceEvent, payload) for payload in read_frames(traces.data).payloads]
    for event in events[6:]:
        event.start_ms += late
        event.end_ms += late
    envelope = parse(AgentEnvelope, trigger.data)
    envelope.event_time_ms += late
    waiting = parse(StateSnapshot, snapshot.data)
    waiting.continuation.deadline_ms += late
    files = [
        EvidenceFile(Role.SNAPSHOT, snapshot.name, serialize(waiting)),
        EvidenceFile(Role.TRACES, "traces.pb", write_frames([serialize(event) for event in events])),
        EvidenceFile(Role.EVENT, "event.pb", serialize(envelope)),
    ]
    reason = replay(files, runner, one.code()).verdict.reason
    assert reason is not None
    assert reason.code == "expired"


def test_the_nearest_entry_of_a_changed_prompt_is_the_answer_nobody_asked_for(runner: InProcessRunner) -> None:
    reason = miss("i10_prompt_changed", runner)
    assert "differs" not in reason.details
    recorded = parse(StateSnapshot, scenario("i10_prompt_changed").bundle()[0].data)
    assert reason.details["nearest"]["cache_key"] == recorded.llm_cache.entries[0].cache_key
