"""Nothing that an agent does gets past its attempt: errors, exits, cancellations, time, tokens."""

import asyncio
from typing import Any

import pytest

from app.runtime.activation import activate, run_activation
from app.runtime.context import ActivationContext
from app.runtime.outcome import Complete
from tests.runtime.running import KEY, NOW, START, ask, decode, hooks, names, run


async def quiet(_ctx: ActivationContext) -> Complete:
    return Complete()


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

    assert (await run(tidy, settings={"activation_timeout_s": 0.01, "cancel_grace_s": 300})).status == "timed_out"
    assert cleaned == ["tidy"]
    result = await run(stubborn, settings={"activation_timeout_s": 0.01, "cancel_grace_s": 0.02})
    assert (result.status, result.output, cleaned[1:]) == ("timed_out", None, ["refused"])
    release.set()


async def test_cancelling_from_outside_goes_through_and_ends_the_agent() -> None:
    ended: list[str] = []
    began = asyncio.Event()

    async def agent(_ctx: ActivationContext) -> Complete:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")
        return Complete()

    task = asyncio.create_task(run(agent))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]


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
