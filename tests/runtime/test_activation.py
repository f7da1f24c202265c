"""One attempt: what it hands back, and that nothing an agent does gets past it."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runtime.activation import ActivationInput, AgentHooks, activate, run_activation
from app.runtime.context import ActivationContext
from app.runtime.hitl import HitlPolicy
from app.runtime.outcome import Complete, Outcome, Suspend
from app.runtime.settings import ActivationSettings
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
from tests.runtime.running import KEY, NOW, Recorder, answering, ask, decode, names, run


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


# The budget


async def test_a_budget_counts_hits_and_what_the_decoder_states() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        for _ in range(3):
            await ctx.call_model(ask("same"))
        return Complete()

    result = await run(agent, decode=decode, settings={"max_tokens_per_activation": 12})
    assert result.dead_letter is not None
    assert result.dead_letter.reason == "budget_exceeded"
    assert result.dead_letter.detail == "BudgetExceeded(limit=12, consumed=18) failed_at_step=3 after=LLM_CALL"
    assert str(result.error) == "token budget exceeded: consumed 18 of 12"
    attributes = result.events[0].attributes
    assert attributes["beam_agents.failure.llm_calls"] == "1"
    assert (await run(agent, decode=decode, settings={"max_tokens_per_activation": 18})).status == "completed"


async def test_a_swallowed_trip_refuses_every_later_call_before_it_takes_a_step() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        for text in ("a", "b", "c"):
            try:
                await ctx.call_model(ask(text))
            except Exception:  # noqa: BLE001 - what agents do
                ctx.act("wrap-up", "{}")
        return Complete()

    result = await run(agent, decode=decode, settings={"max_tokens_per_activation": 11})
    assert [(name, event.step_index) for name, event in zip(names(result.events), result.events, strict=True)] == [
        ("ACTIVATION_START", 0),
        ("LLM_CALL", 0),
        ("LLM_CALL", 1),
        ("INTENT_EMITTED", 2),
        ("INTENT_EMITTED", 3),
        ("ACTIVATION_END", 4),
    ]
    assert "error.type" not in result.events[2].attributes
    assert len(result.cache.entries) == 2


async def test_a_trip_in_a_batch_goes_by_the_general_reason() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        await ctx.call_model(ask("a"))
        return Complete()

    result = await run(
        agent, decode=decode, settings={"max_tokens_per_activation": 1}, events=(b"a", b"b"), batch_trigger="size"
    )
    assert result.dead_letter is not None
    assert result.dead_letter.reason == result.events[0].attributes["beam_agents.reason"] == "activation_error"
    assert result.events[0].attributes["error.type"] == "BudgetExceeded"
    assert result.dead_letter.detail == (
        "BudgetExceeded(limit=1, consumed=6) failed_at_step=1 after=LLM_CALL batch_size=2,trigger=size"
    )


# Failing


async def test_a_decoder_that_raises_leaves_no_event_but_a_counted_call() -> None:
    def broken(_data: bytes) -> Any:
        raise ValueError("cannot decode")

    async def agent(ctx: ActivationContext) -> Complete:
        await ctx.call_model(ask("a"))
        return Complete()

    result = await run(agent, decode=broken)
    assert result.dead_letter is not None
    assert result.dead_letter.detail == "ValueError('cannot decode') failed_at_step=1 after=ACTIVATION_START"
    assert result.events[0].attributes["beam_agents.failure.llm_calls"] == "1"


async def test_a_failure_leaves_one_error_and_commits_nothing() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        ctx.memory.set("scratch", b"x")
        await ctx.call_model(ask("a"))
        ctx.act("pay", "{}")
        raise KeyError("bob")

    result = await run(agent, seq=7)
    assert (result.status, result.intents, result.output, result.continuation) == ("failed", (), None, None)
    assert names(result.events) == ["ERROR"]
    event = result.events[0]
    assert (event.step_index, event.seq, event.start_ms, event.end_ms) == (0, 7, NOW, NOW)
    assert dict(event.attributes) == {
        "beam_agents.reason": "activation_error",
        "error.type": "KeyError",
        "beam_agents.failure.step": "2",
        "beam_agents.failure.last_event": "INTENT_EMITTED",
        "beam_agents.failure.staged_intents": "1",
        "beam_agents.failure.llm_calls": "1",
    }
    assert result.dead_letter is not None
    assert result.dead_letter.detail == "KeyError('bob') failed_at_step=2 after=INTENT_EMITTED"
    assert (result.dead_letter.entity_key, result.dead_letter.event_time_ms) == (KEY, NOW)
    assert isinstance(result.error, KeyError)


@pytest.mark.parametrize("value", [None, b"bytes", Complete])
async def test_another_return_value_is_a_type_error_of_the_attempt(value: Any) -> None:
    async def agent(_ctx: ActivationContext) -> Any:
        return value

    result = await run(agent)
    assert (result.status, type(result.error)) == ("failed", TypeError)
    assert result.events[0].attributes["beam_agents.failure.step"] == "0"


@pytest.mark.parametrize("agent", [lambda _ctx: Complete(b"x"), object(), lambda: None])
async def test_what_is_no_async_function_fails_as_python_says(agent: Any) -> None:
    result = await run(agent)
    assert (result.status, type(result.error)) == ("failed", TypeError)
    assert result.events[0].attributes["beam_agents.failure.last_event"] == "ACTIVATION_START"


async def test_output_of_another_type_is_handed_on() -> None:
    async def agent(_ctx: ActivationContext) -> Complete:
        return Complete("held")  # type: ignore[arg-type]

    result = await run(agent)
    assert (result.status, result.output) == ("completed", "held")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(0), KeyboardInterrupt(), GeneratorExit()])
async def test_a_base_exception_is_contained_without_a_position(error: BaseException) -> None:
    async def agent(_ctx: ActivationContext) -> Complete:
        raise error

    result = await run(agent)
    assert result.error is error
    assert dict(result.events[0].attributes) == {
        "beam_agents.reason": "activation_error",
        "error.type": type(error).__name__,
    }
    assert result.dead_letter is not None
    assert result.dead_letter.detail == repr(error)


async def test_an_agent_that_cancels_itself_has_failed() -> None:
    async def agent(_ctx: ActivationContext) -> Complete:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return Complete()

    assert isinstance((await run(agent)).error, asyncio.CancelledError)


async def test_errors_that_cannot_be_shown_are_shown_all_the_same() -> None:
    class Odd(Exception):
        def __repr__(self) -> str:
            raise SystemExit

    class Surrogate(Exception):
        def __repr__(self) -> str:
            return "bad \udc80 text"

    async def odd(_ctx: ActivationContext) -> Complete:
        raise Odd

    async def surrogate(_ctx: ActivationContext) -> Complete:
        raise Surrogate

    details = [result.dead_letter.detail for result in (await run(odd), await run(surrogate)) if result.dead_letter]
    assert details[0].startswith("<Odd, whose repr raises SystemExit> failed_at_step=0")
    assert details[1].startswith(r"bad \udc80 text failed_at_step=0")


async def test_a_failed_batch_says_its_size_in_the_one_dead_letter() -> None:
    async def agent(_ctx: ActivationContext) -> Complete:
        raise ValueError("x")

    async def exits(_ctx: ActivationContext) -> Complete:
        raise SystemExit(3)

    batch: dict[str, Any] = {"events": (b"a", b"b", b"c"), "batch_trigger": "size"}
    results = [await run(agent, **batch), await run(exits, **batch)]
    assert [result.dead_letter.detail for result in results if result.dead_letter] == [
        "ValueError('x') failed_at_step=0 after=ACTIVATION_START batch_size=3,trigger=size",
        "SystemExit(3) batch_size=3,trigger=size",
    ]
    assert "beam_agents.batch.size" not in results[0].events[0].attributes


async def test_a_failure_before_the_context_exists_has_no_position() -> None:
    result = await run(quiet, settings={"max_tokens_per_activation": 0})
    assert result.status == "failed"
    assert set(result.events[0].attributes) == {"beam_agents.reason", "error.type"}


# Time


async def test_a_timeout_tells_neither_error_nor_position() -> None:
    async def agent(_ctx: ActivationContext) -> Complete:
        await asyncio.sleep(60)
        return Complete()

    settings = {"activation_timeout_s": 0.01}
    result = await run(agent, settings=settings)
    assert (result.status, result.error) == ("timed_out", None)
    assert dict(result.events[0].attributes) == {"beam_agents.reason": "activation_timeout"}
    assert result.dead_letter is not None
    assert (result.dead_letter.reason, result.dead_letter.detail) == ("activation_timeout", "")
    batch = await run(agent, settings=settings, events=(b"a", b"b"), batch_trigger="timer")
    assert batch.dead_letter is not None
    assert batch.dead_letter.detail == "batch_size=2,trigger=timer"


async def test_an_agent_gets_its_grace_and_is_then_left_behind() -> None:
    cleaned: list[str] = []
    release = asyncio.Event()

    async def tidy(_ctx: ActivationContext) -> Complete:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("tidy")
        return Complete()

    async def stubborn(_ctx: ActivationContext) -> Complete:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                cleaned.append("refused")
        return Complete(b"too late")

    assert (await run(tidy, settings={"activation_timeout_s": 0.01, "cancel_grace_s": 5})).status == "timed_out"
    assert cleaned == ["tidy"]
    result = await run(stubborn, settings={"activation_timeout_s": 0.01, "cancel_grace_s": 0.02})
    assert (result.status, result.output, cleaned[1:]) == ("timed_out", None, ["refused"])
    release.set()


async def test_cancelling_from_outside_goes_through_and_ends_the_agent() -> None:
    ended: list[str] = []

    async def agent(_ctx: ActivationContext) -> Complete:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")
        return Complete()

    task = asyncio.create_task(run(agent))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]


def hooks(agent: Any, **settings: Any) -> AgentHooks:
    return AgentHooks(agent=agent, provider=answering(), config=ActivationSettings(**settings))


START = ActivationInput(entity_key=KEY, seq=0, now_ms=NOW, events=(b"event",))


def test_without_a_loop_the_result_is_the_same() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        return Complete((await ctx.call_model(ask("a"))).response)

    assert run_activation(START, hooks(agent)) == asyncio.run(activate(START, hooks(agent)))


def test_an_exit_inside_a_spawned_task_reaches_the_agent_and_stops_there() -> None:
    async def leave() -> None:
        raise SystemExit(4)

    async def agent(_ctx: ActivationContext) -> Complete:
        await asyncio.gather(leave(), asyncio.sleep(0))
        return Complete()

    result = run_activation(START, hooks(agent))
    assert isinstance(result.error, SystemExit)


def test_tasks_that_will_not_end_do_not_hold_up_the_result() -> None:
    async def stubborn(_ctx: ActivationContext) -> Complete:
        for _ in range(100):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue
        return Complete()

    config = {"activation_timeout_s": 0.01, "cancel_grace_s": 0.01}
    assert run_activation(START, hooks(stubborn, **config)).status == "timed_out"


# Concurrency


async def test_calls_at_once_take_steps_in_order_and_are_staged_as_they_return() -> None:
    class Slow:
        async def complete(self, request: Any) -> Any:
            await asyncio.sleep(0.02 if request.messages == ["slow"] else 0)
            return await answering().complete(request)

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
