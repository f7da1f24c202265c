"""The facade: retries, breaker, cache, budget and typed output, and the one event that each call stages."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from app.runtime.activation import ActivationResult
from app.runtime.context import ActivationContext
from app.runtime.model.client import (
    LlmRequest,
    LlmResponse,
    ProviderError,
    ProviderRequestError,
    ProviderTimeout,
    RateLimitError,
    ServerError,
)
from app.runtime.model.decoders import anthropic_decode, openai_compat_decode
from app.runtime.model.facade import (
    BudgetExceeded,
    CircuitBreaker,
    CircuitOpenError,
    CircuitState,
    DecodedResponse,
    FacadeResult,
    LlmFacade,
    OutputSchemaError,
    RetryPolicy,
    TokenBudget,
    TokenUsage,
)
from app.runtime.model.fake import FakeLLM, fail_then_succeed, match_any, raise_error, respond_with
from app.runtime.outcome import Complete
from app.runtime.replay_cache import ReplayCache
from app.wire.records import TraceEvent
from tests.runtime.running import KEY, NOW, Recorder, ask, decode, names, run


class Desk:
    """Collects what a facade stages, and what it waited for."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []
        self.usage: list[TokenUsage] = []
        self.slept: list[int] = []

    def stage_trace_event(self, event: TraceEvent) -> None:
        self.events.append(event)

    def accumulate_usage(self, usage: TokenUsage) -> None:
        self.usage.append(usage)

    async def sleep(self, milliseconds: int) -> None:
        self.slept.append(milliseconds)


class Highest:
    """A draw that always gives the ceiling."""

    def uniform(self, _low: float, high: float) -> float:
        return high


def breaker(threshold: int = 3, cooldown_ms: int = 1_000) -> CircuitBreaker:
    return CircuitBreaker(endpoint="e", threshold=threshold, cooldown_ms=cooldown_ms)


def facade(provider: Any, desk: Desk, *, cache: ReplayCache | None = None, **changes: Any) -> LlmFacade:
    options: dict[str, Any] = {
        "now_ms": NOW,
        "rng": Highest(),
        "sleep": desk.sleep,
        "breaker": breaker(),
        "retry_policy": RetryPolicy(max_attempts=3, base_ms=100, max_ms=150),
        "decode": decode,
        "staging": desk,
    }
    return LlmFacade(provider, ReplayCache(now_ms=NOW) if cache is None else cache, **{**options, **changes})


async def call(of: LlmFacade, text: str = "hi", **more: Any) -> FacadeResult:
    return await of.complete(ask(text), entity_key=KEY, seq=0, step_index=4, **more)


def scripted(behavior: Any) -> FakeLLM:
    async def no_wait(_milliseconds: int) -> None:
        return

    return FakeLLM([(match_any(), behavior)], delay=no_wait)


async def test_a_call_and_then_a_hit() -> None:
    desk, cache, circuit = Desk(), ReplayCache(now_ms=NOW), breaker()
    circuit.record_failure(NOW)
    of = facade(scripted(respond_with(b"pong")), desk, cache=cache, breaker=circuit)
    first = await call(of)
    circuit.record_failure(NOW)
    circuit.record_failure(NOW)
    second = await call(of)
    assert first == FacadeResult(LlmResponse(b"pong"), None, TokenUsage(3, 2, 6), False, 1)
    assert second == FacadeResult(LlmResponse(b"pong"), None, TokenUsage(3, 2, 6), True, 0)
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m-1",
        "gen_ai.usage.input_tokens": "3",
        "gen_ai.usage.output_tokens": "2",
        "beam_agents.circuit_state": "closed",
    }
    reached = {"beam_agents.cache_hit": "false", "beam_agents.billed": "true", "beam_agents.attempts": "1"}
    hit = {"beam_agents.cache_hit": "true", "beam_agents.billed": "false", "beam_agents.attempts": "0"}
    assert [dict(event.attributes) for event in desk.events] == [common | reached, common | hit]
    assert [(event.entity_key, event.seq, event.step_index, event.start_ms) for event in desk.events] == [
        (KEY, 0, 4, NOW)
    ] * 2
    assert desk.usage == [TokenUsage(3, 2, 6)]


async def test_provider_errors_are_retried_with_growing_waits() -> None:
    desk = Desk()
    result = await call(facade(scripted(fail_then_succeed(error=ServerError(503), times=2, payload=b"ok")), desk))
    assert (result.attempts, desk.slept) == (3, [100, 150])
    assert len(desk.events) == 1


async def test_a_rate_limit_may_ask_for_more() -> None:
    desk = Desk()
    await call(facade(scripted(fail_then_succeed(error=RateLimitError(900), times=1, payload=b"ok")), desk))
    await call(facade(scripted(fail_then_succeed(error=RateLimitError(), times=1, payload=b"ok")), desk), "again")
    assert desk.slept == [900, 100]


@given(st.integers(1, 12), st.integers(0, 500), st.integers(0, 5_000), st.integers(0, 9))
def test_waits_stay_below_the_ceiling(attempt: int, base: int, ceiling: int, seed: int) -> None:
    policy = RetryPolicy(max_attempts=20, base_ms=base, max_ms=ceiling)
    delay = policy.delay_ms(attempt, ProviderTimeout(), random.Random(seed))
    expected = int(random.Random(seed).uniform(0, min(base * 2 ** (attempt - 1), ceiling)))
    assert delay == expected
    assert 0 <= delay <= ceiling


async def test_one_failed_call_counts_once_however_often_it_was_tried() -> None:
    desk, circuit = Desk(), breaker(threshold=2)
    of = facade(scripted(raise_error(ServerError(500))), desk, breaker=circuit)
    for state in ("closed", "open"):
        with pytest.raises(ServerError):
            await call(of)
        assert circuit.state.value == state
        assert dict(desk.events[-1].attributes) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m-1",
            "beam_agents.cache_hit": "false",
            "beam_agents.billed": "false",
            "beam_agents.attempts": "3",
            "beam_agents.circuit_state": state,
            "error.type": "ServerError",
        }
    with pytest.raises(CircuitOpenError) as refused:
        await call(of)
    assert refused.value.endpoint == "e"
    attributes = desk.events[-1].attributes
    assert (attributes["beam_agents.attempts"], attributes["error.type"]) == ("0", "CircuitOpenError")
    assert attributes["beam_agents.circuit_state"] == "open"


def test_the_breaker_lets_one_try_after_its_cooldown() -> None:
    circuit = breaker(threshold=1)
    circuit.record_failure(NOW)
    assert not circuit.allow(NOW + 999)
    assert circuit.allow(NOW + 1_000)
    assert circuit.state is CircuitState.HALF_OPEN
    circuit.record_failure(NOW + 1_000)
    assert not circuit.allow(NOW + 1_999)
    assert circuit.allow(NOW + 2_000)
    circuit.record_success()
    assert circuit.state is CircuitState.CLOSED


@pytest.mark.parametrize("error", [ProviderRequestError(400), KeyError("x")])
async def test_other_errors_pass_straight_through(error: Exception) -> None:
    desk, circuit = Desk(), breaker(threshold=1)
    with pytest.raises(type(error)):
        await call(facade(scripted(raise_error(error)), desk, breaker=circuit))
    assert (desk.events, desk.slept, circuit.state) == ([], [], CircuitState.CLOSED)
    assert not isinstance(ProviderRequestError(400), ProviderError)


async def test_a_decoder_that_raises_comes_after_cache_and_breaker() -> None:
    def broken(_data: bytes) -> DecodedResponse:
        raise ValueError("unreadable")

    desk, cache, circuit = Desk(), ReplayCache(now_ms=NOW), breaker(threshold=1)
    circuit.record_failure(NOW - 5_000)
    with pytest.raises(ValueError, match="unreadable"):
        await call(facade(scripted(respond_with(b"x")), desk, cache=cache, breaker=circuit, decode=broken))
    assert (desk.events, desk.usage, len(cache), circuit.state) == ([], [], 1, CircuitState.CLOSED)


async def test_a_tripped_budget_stages_the_call_and_then_refuses_at_the_door() -> None:
    desk, budget = Desk(), TokenBudget(6)
    of = facade(scripted(respond_with(b"pong")), desk, budget=budget)
    await call(of)
    with pytest.raises(BudgetExceeded):
        await call(of)
    assert desk.events[-1].attributes["error.type"] == "BudgetExceeded"
    assert desk.events[-1].attributes["gen_ai.usage.input_tokens"] == "3"
    with pytest.raises(BudgetExceeded):
        await call(of)
    assert (len(desk.events), budget.consumed) == (2, 12)


class Verdict(BaseModel):
    """What the model is asked to fill in."""

    risk: float


async def test_typed_output_and_its_cache_key() -> None:
    desk, cache = Desk(), ReplayCache(now_ms=NOW)
    provider = scripted(respond_with(b'{"risk": 0.5}'))
    of = facade(provider, desk, cache=cache)
    result = await call(of, output_schema=Verdict)
    assert result.parsed == Verdict(risk=0.5)
    schema = Verdict.model_json_schema()
    assert provider.requests[0].sampling_params == {"params": None, "response_schema": schema}
    keyed = LlmRequest("m-1", ["hi"], None, {"temperature": 0})
    await of.complete(keyed, entity_key=KEY, seq=0, step_index=0, output_schema=Verdict)
    assert provider.requests[1].sampling_params == {"temperature": 0, "response_schema": schema}
    await call(of)
    assert (provider.call_count, len(cache)) == (3, 3)


async def test_output_of_another_shape_names_the_parser_on_the_event() -> None:
    desk = Desk()
    with pytest.raises(OutputSchemaError, match="Verdict"):
        await call(facade(scripted(respond_with(b"prose")), desk), output_schema=Verdict)
    attributes = desk.events[0].attributes
    assert (attributes["error.type"], attributes["gen_ai.usage.output_tokens"]) == ("ValidationError", "2")
    assert attributes["beam_agents.billed"] == "true"


async def test_without_a_decoder_nothing_is_billed() -> None:
    desk = Desk()
    result = await call(facade(scripted(respond_with(b'{"risk": 1}')), desk, decode=None), output_schema=Verdict)
    assert (result.usage, result.parsed) == (None, Verdict(risk=1))
    assert desk.events[0].attributes["beam_agents.billed"] == "false"
    assert "gen_ai.usage.input_tokens" not in desk.events[0].attributes


def driving(do: Callable[[LlmFacade, ActivationContext], Awaitable[Any]]) -> Callable[..., Awaitable[Complete]]:
    """An agent that drives a facade over its context's own provider and cache."""

    async def agent(ctx: ActivationContext) -> Complete:
        desk = Desk()
        of = facade(ctx._provider, desk, cache=ctx._replay_cache, staging=ctx)
        await do(of, ctx)
        return Complete()

    return agent


async def facade_then_context(probe: Recorder | None) -> ActivationResult:
    async def do(of: LlmFacade, ctx: ActivationContext) -> None:
        await of.complete(ask("hi"), entity_key=ctx.entity_key, seq=ctx.seq, step_index=7)
        await ctx.call_model(ask("hi"))

    return await run(driving(do), decode=decode, probe=probe)


async def test_facade_and_context_share_provider_cache_and_trace() -> None:
    result = await facade_then_context(None)
    assert names(result.events) == ["ACTIVATION_START", "LLM_CALL", "LLM_CALL", "ACTIVATION_END"]
    by_facade, by_context = result.events[1:3]
    assert (by_facade.step_index, by_context.step_index) == (7, 0)
    assert (by_facade.attributes["beam_agents.cache_hit"], by_context.attributes["beam_agents.cache_hit"]) == (
        "false",
        "true",
    )
    assert by_facade.parent_span_id == by_context.parent_span_id == result.events[0].span_id
    assert result.events[-1].step_index == 1


async def test_the_probe_hears_of_facade_calls() -> None:
    probe = Recorder()
    assert await facade_then_context(probe) == await facade_then_context(None)
    requests, answers = probe.of("model_request"), probe.of("model_answer")
    assert [report[3] for report in requests] == [7, 0]
    assert requests[0][1] == requests[1][1]
    assert requests[0][2].startswith('{"key":"636172642d34323432"')
    assert [report[1:] for report in answers] == [(b"pong", False, 7), (b"pong", True, 0)]


async def test_failures_through_a_facade_are_not_the_contexts_calls() -> None:
    async def do(of: LlmFacade, _ctx: ActivationContext) -> None:
        await call(of)
        raise RuntimeError

    result = await run(driving(do), decode=decode)
    attributes = result.events[0].attributes
    assert attributes["beam_agents.failure.llm_calls"] == "0"
    assert attributes["beam_agents.failure.last_event"] == "LLM_CALL"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ServerError(503), "ServerError('server error (status=503)')"),
        (RateLimitError(5), "RateLimitError('rate limited (retry_after_ms=5)')"),
        (ProviderTimeout(), "ProviderTimeout('provider timeout')"),
    ],
)
def test_messages_are_fixed_by_the_class(error: Exception, text: str) -> None:
    assert repr(error) == text


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        RetryPolicy(max_attempts=0, base_ms=1, max_ms=1)
    with pytest.raises(ValueError, match="base_ms"):
        RetryPolicy(max_attempts=1, base_ms=-1, max_ms=1)
    with pytest.raises(ValueError, match="threshold"):
        breaker(threshold=0)
    with pytest.raises(ValueError, match="cooldown_ms"):
        breaker(cooldown_ms=-1)
    with pytest.raises(ValueError, match="budget"):
        TokenBudget(0)


def test_two_common_bodies() -> None:
    chat = (
        b'{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":9}}'
    )
    assert openai_compat_decode(chat) == DecodedResponse(TokenUsage(1, 2, 9), "hi")
    blocks = b'{"content":[{"type":"text","text":"a"},{"type":"tool_use"},{"type":"text","text":"b"}],'
    usage = b'"usage":{"input_tokens":1,"output_tokens":2}}'
    assert anthropic_decode(blocks + usage) == DecodedResponse(TokenUsage(1, 2, 3), "ab")
