"""One attempt: what an agent sees and stages, and what is handed back."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runtime.activation import run_activation
from app.runtime.context import ActivationContext
from app.runtime.hitl import HitlPolicy
from app.runtime.outcome import Complete, Outcome, Suspend
from app.wire import migration
from app.wire.migration import MissingMigrationError, StateSchemaFromFutureError
from app.wire.records import (
    AgentEnvelope,
    Continuation,
    LlmCacheBlob,
    MemoryBlob,
    ToolIntent,
    ToolResult,
    TraceEvent,
    serialize,
)
from tests.runtime.running import KEY, NOW, START, Recorder, answering, ask, decode, hooks, names, run


async def quiet(_ctx: ActivationContext) -> Complete:
    return Complete()


# Starts, resumes, batches


async def test_a_quiet_start_commits_two_versions_and_no_output() -> None:
    result = await run(quiet)
    assert (result.status, result.output, result.continuation, result.error) == ("completed", None, None, None)
    assert serialize(result.memory) == serialize(result.cache) == b"\x08\x01"
    assert names(result.events) == ["ACTIVATION_START", "ACTIVATION_END"]
    assert dict(result.events[1].attributes) == {
        "beam_agents.activation.kind": "start",
        "beam_agents.activation.status": "completed",
    }


async def test_what_a_start_sees() -> None:
    seen: dict[str, Any] = {}

    async def agent(ctx: ActivationContext) -> Complete:
        seen.update(
            event=ctx.event,
            events=ctx.events,
            single=ctx.single_event,
            snapshot=ctx.snapshot,
            resume=ctx.is_resume,
            batch=ctx.is_batch,
            results=(ctx.resume_result, ctx.resume_approval),
            where=(ctx.entity_key, ctx.seq, ctx.now_ms),
            store=ctx.longterm_store,
            parent=ctx.trace.parent_span_id,
        )
        return Complete()

    await run(agent)
    assert seen == {
        "event": b"event",
        "events": (b"event",),
        "single": b"event",
        "snapshot": b"",
        "resume": False,
        "batch": False,
        "results": (None, None),
        "where": (KEY, 0, NOW),
        "store": None,
        "parent": b"",
    }


async def test_an_envelope_without_payload_is_a_start_with_no_bytes() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        return Complete(repr(ctx.events).encode())

    assert (await run(agent, events=())).output == b"(b'',)"


async def test_a_batch_shows_all_events_and_says_so_on_the_trace() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        assert ctx.is_batch
        assert isinstance(ctx.event, list)
        with pytest.raises(TypeError, match=r"ctx\.events"):
            _ = ctx.single_event
        return Complete(b",".join(ctx.events))

    result = await run(agent, events=(b"a", b"b"), batch_trigger="timer")
    assert result.output == b"a,b"
    assert dict(result.events[0].attributes) == {
        "beam_agents.activation.kind": "start",
        "beam_agents.batch.size": "2",
        "beam_agents.batch.trigger": "timer",
    }
    assert "beam_agents.batch.size" not in result.events[-1].attributes
    assert (await run(agent, events=(b"a",), batch_trigger="size")).output == b"a"


def waiting(**fields: Any) -> Continuation:
    return Continuation(**{"state_schema_version": 1, "seq": 0, "step_index": 3, "snapshot": b"snap", **fields})


async def test_a_resume_goes_on_where_the_suspension_stopped() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        assert (ctx.events, ctx.single_event, ctx.iterations, ctx.step_index) == ((), b"", 0, 3)
        assert ctx.resume_approval is not None
        ctx.act("pay", "{}")
        assert (ctx.iterations, ctx.step_index) == (1, 4)
        return Complete(ctx.snapshot + ctx.resume_approval.approver.encode())

    approval = AgentEnvelope.Approval(approved=True, approver="ann")
    result = await run(agent, events=(), continuation=waiting(), resume_approval=approval)
    assert result.output == b"snapann"
    assert [event.step_index for event in result.events] == [0, 3, 4]
    assert result.events[0].attributes["beam_agents.activation.kind"] == "resume"
    assert result.intents[0].step_index == 3


async def test_a_tool_result_reaches_a_resume() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        assert ctx.resume_result is not None
        return Complete(ctx.resume_result.payload)

    resume = ToolResult(status=ToolResult.OK, payload=b"paid")
    assert (await run(agent, events=(), continuation=waiting(), resume_result=resume)).output == b"paid"


# Intents and suspending


async def test_intents_are_verbatim_and_take_the_policys_defaults() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        ctx.act("unregistered", '{ "a": 1 }')
        ctx.request_approval("not json")
        ctx.request_approval("{}", channel="desk", ttl_ms=0)
        return Complete()

    policy = HitlPolicy(intent_ttl_ms=600_000, approval_channel="fraud-desk")
    probe = Recorder()
    result = await run(agent, settings={"hitl_policy": policy}, probe=probe)
    assert [(i.tool_name, i.args_json, i.kind, i.expires_at_ms - NOW) for i in result.intents] == [
        ("unregistered", '{ "a": 1 }', ToolIntent.TOOL, 600_000),
        ("fraud-desk", "not json", ToolIntent.APPROVAL, 600_000),
        ("desk", "{}", ToolIntent.APPROVAL, 0),
    ]
    assert [i.trace_id for i in result.intents] == [result.events[0].trace_id] * 3
    assert dict(result.events[3].attributes) == {
        "beam_agents.intent_id": result.intents[2].intent_id,
        "beam_agents.tool_name": "desk",
        "beam_agents.intent_kind": "APPROVAL",
        "beam_agents.expires_at_ms": str(NOW),
    }
    assert probe.of("intent") == [(intent.intent_id,) for intent in result.intents]


@pytest.mark.parametrize(
    ("timeout_ms", "ttl_ms", "expected"),
    [(None, None, 3_600_000), (None, 90_000_000, 86_400_000), (5_000, None, 5_000), (0, None, 0)],
)
async def test_a_deadline_is_the_earliest_of_what_bounds_it(
    timeout_ms: int | None, ttl_ms: int | None, expected: int
) -> None:
    async def agent(ctx: ActivationContext) -> Suspend:
        ctx.request_approval("{}", ttl_ms=ttl_ms)
        return Suspend(b"\x00\xff", "router", timeout_ms)

    result = await run(agent)
    assert result.status == "suspended"
    continuation = result.continuation
    assert continuation is not None
    assert continuation == Continuation(
        state_schema_version=1,
        seq=0,
        step_index=1,
        pending_intent_ids=[result.intents[0].intent_id],
        adapter="router",
        snapshot=b"\x00\xff",
        suspended_at_ms=NOW,
        deadline_ms=NOW + expected,
    )
    suspended = result.events[-2]
    assert (TraceEvent.EventType.Name(suspended.event_type), suspended.step_index) == ("SUSPENDED", 1)
    assert dict(suspended.attributes) == {
        "beam_agents.deadline_ms": str(NOW + expected),
        "beam_agents.adapter": "router",
        "beam_agents.pending_intent_ids": result.intents[0].intent_id,
    }
    assert result.events[-1].attributes["beam_agents.activation.status"] == "suspended"


async def test_suspending_with_nothing_pending_keeps_the_empty_attributes() -> None:
    async def agent(_ctx: ActivationContext) -> Suspend:
        return Suspend()

    attributes = (await run(agent)).events[-2].attributes
    assert (attributes["beam_agents.adapter"], attributes["beam_agents.pending_intent_ids"]) == ("", "")


# Concurrency


async def test_calls_at_once_take_steps_in_order_and_are_staged_as_they_return() -> None:
    class Slow:
        """Answers the slow call after the quick one."""

        def __init__(self) -> None:
            self.answered = asyncio.Event()

        async def complete(self, request: Any) -> Any:
            if request.messages == ["slow"]:
                await self.answered.wait()
            answer = await answering().complete(request)
            self.answered.set()
            return answer

    async def agent(ctx: ActivationContext) -> Complete:
        await asyncio.gather(ctx.call_model(ask("slow")), ctx.call_model(ask("quick")))
        return Complete()

    result = await run(agent, provider=Slow())
    assert [event.step_index for event in result.events] == [0, 1, 0, 2]
    again = await run(agent, provider=Slow(), cache=result.cache)
    assert [event.step_index for event in again.events] == [0, 0, 1, 2]


# State versions


@pytest.mark.usefixtures("schema_version")
@pytest.mark.parametrize(
    "state",
    [
        {"memory": MemoryBlob(state_schema_version=2)},
        {"cache": LlmCacheBlob(state_schema_version=2)},
        {"continuation": Continuation(state_schema_version=2)},
    ],
)
async def test_newer_and_older_state_is_not_an_agents_failure(state: dict[str, Any]) -> None:
    with pytest.raises(StateSchemaFromFutureError):
        await run(quiet, **state)
    migration.CURRENT_STATE_SCHEMA_VERSION = 3
    with pytest.raises(MissingMigrationError):
        await run(quiet, **state)


@pytest.mark.usefixtures("schema_version")
async def test_every_writer_stamps_the_version_of_the_moment() -> None:
    migration.CURRENT_STATE_SCHEMA_VERSION = 5

    async def agent(_ctx: ActivationContext) -> Suspend:
        return Suspend()

    result = await run(agent)
    assert result.continuation is not None
    versions = [blob.state_schema_version for blob in (result.memory, result.cache, result.continuation)]
    assert versions == [5, 5, 5]


# What an agent may inspect


async def test_what_is_staged_can_be_looked_at() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        await ctx.call_model(ask("a"))
        await ctx.call_model(ask("a"))
        ctx.act("pay", "{}")
        tally = ctx.tally()
        assert (tally.steps, tally.llm_calls, tally.cache_hits, tally.intents) == (3, 1, 1, 1)
        assert (tally.prompt_tokens, tally.completion_tokens, tally.total_tokens) == (3, 2, 6)
        assert len(ctx.staged_intents) == 1
        assert len(ctx.staged_traces) == 4
        assert ctx.staged_upserts == ()
        assert ctx.build_continuation(Suspend()).step_index == 3
        assert len(ctx.cache_blob().entries) == 1
        return Complete(serialize(ctx.memory_blob()))

    assert (await run(agent, decode=decode)).output == b"\x08\x01"


# A probe changes nothing

words = st.sampled_from(["call", "act", "approve", "set", "append", "get", "ring", "keys", "delete", "fail", "suspend"])


@given(st.lists(words, max_size=12))
def test_a_probe_changes_no_byte(script: list[str]) -> None:
    async def agent(ctx: ActivationContext) -> Outcome:
        for place, word in enumerate(script):
            if word == "call":
                await ctx.call_model(ask(f"q{place % 3}"))
            elif word == "act":
                ctx.act("pay", str(place))
            elif word == "approve":
                ctx.request_approval("{}")
            elif word == "set":
                ctx.memory.set("s", bytes(place))
            elif word == "append":
                ctx.memory.append("r", b"x", max_items=2)
            elif word == "get":
                ctx.memory.get("s")
            elif word == "ring":
                ctx.memory.ring("r")
            elif word == "keys":
                ctx.act("keys", ",".join(ctx.memory.keys()))
            elif word == "delete":
                ctx.memory.delete("s")
            elif word == "fail":
                raise ValueError(place)
            else:
                return Suspend(b"here")
        return Complete(b"done")

    bare = run_activation(START, hooks(agent))
    probed = run_activation(START, hooks(agent), Recorder())
    assert [serialize(event) for event in bare.events] == [serialize(event) for event in probed.events]
    assert [serialize(intent) for intent in bare.intents] == [serialize(intent) for intent in probed.intents]
    assert (bare.status, bare.output, serialize(bare.memory)) == (
        probed.status,
        probed.output,
        serialize(probed.memory),
    )
    assert serialize(bare.cache) == serialize(probed.cache)
    assert (bare.continuation, bare.dead_letter) == (probed.continuation, probed.dead_letter)
    assert repr(bare.error) == repr(probed.error)
