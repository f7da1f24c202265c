"""A model call with cache, retries, circuit breaker, budget and typed output, for agents that drive it themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from app.runtime import trace
from app.runtime.model.budget import BudgetExceeded, TokenBudget
from app.runtime.model.client import LLMClient, LlmRequest, LlmResponse, ProviderError
from app.runtime.model.resilience import CircuitBreaker, CircuitOpenError, CircuitState, RetryPolicy, Uniform
from app.runtime.model.usage import Decode, DecodedResponse, TokenUsage, call_attributes
from app.runtime.replay_cache import ReplayEntry, request_text
from app.wire import identity
from app.wire.records import TraceEvent

if TYPE_CHECKING:
    from pydantic import BaseModel

    from app.runtime.probe import Probe

__all__ = [
    "BudgetExceeded",
    "CircuitBreaker",
    "CircuitOpenError",
    "CircuitState",
    "DecodedResponse",
    "FacadeResult",
    "LlmFacade",
    "OutputSchemaError",
    "RetryPolicy",
    "Staging",
    "TokenBudget",
    "TokenUsage",
]


@dataclass(frozen=True)
class FacadeResult:
    """A finished facade call; `attempts` is 0 for a cache hit."""

    response: LlmResponse
    parsed: Any
    usage: TokenUsage | None
    cache_hit: bool
    attempts: int


class OutputSchemaError(Exception):
    """The model's text does not fit the requested output schema."""

    def __init__(self, schema: str, problem: str) -> None:
        super().__init__(f"the model's answer does not fit {schema}: {problem}")


class Staging(Protocol):
    """Where a facade leaves its events and token counts, normally the activation context."""

    def stage_trace_event(self, event: TraceEvent) -> None: ...

    def accumulate_usage(self, usage: TokenUsage) -> None: ...


class Cache(Protocol):
    """What a facade needs of a replay cache."""

    def get(self, key: str) -> ReplayEntry | None: ...

    def put(self, key: str, response: bytes) -> None: ...


def with_output_schema(request: LlmRequest, schema: type[BaseModel]) -> LlmRequest:
    """Fold a model's JSON schema into the sampling parameters, which makes it part of the cache key."""
    params = request.sampling_params
    folded = dict(params) if isinstance(params, dict) else {"params": params}
    folded["response_schema"] = schema.model_json_schema()
    return replace(request, sampling_params=folded)


@dataclass(frozen=True)
class _Call:
    """One complete(): the request as sent, its cache key and the ids that its event carries."""

    request: LlmRequest
    cache_key: str
    entity_key: bytes
    seq: int
    step_index: int


class LlmFacade:
    """Drives one provider for one activation; `now_ms` is the activation's clock.

    `rng` needs only `uniform`, `sleep` awaits integer milliseconds. Only ProviderError and its
    subclasses are retried; anything else passes straight through and stages no event.
    """

    def __init__(
        self,
        provider: LLMClient,
        replay_cache: Cache,
        *,
        now_ms: int,
        rng: Uniform,
        sleep: Callable[[int], Awaitable[None]],
        breaker: CircuitBreaker,
        retry_policy: RetryPolicy,
        decode: Decode | None,
        staging: Staging,
        budget: TokenBudget | None = None,
    ) -> None:
        self._provider = provider
        self._cache = replay_cache
        self._now_ms = now_ms
        self._rng = rng
        self._sleep = sleep
        self._breaker = breaker
        self._retry = retry_policy
        self._decode = decode
        self._staging = staging
        self._budget = budget
        self._probe: Probe | None = getattr(replay_cache, "probe", None)

    async def complete(
        self,
        request: LlmRequest,
        *,
        entity_key: bytes,
        seq: int,
        step_index: int,
        output_schema: type[BaseModel] | None = None,
    ) -> FacadeResult:
        """Answer from the cache or the provider, and stage one LLM_CALL at the caller's step.

        Raises BudgetExceeded, CircuitOpenError, OutputSchemaError, or what the provider raised.
        """
        if self._budget is not None:
            self._budget.check()
        if output_schema is not None:
            request = with_output_schema(request, output_schema)
        material = request_text(request, entity_key=entity_key, seq=seq)
        call = _Call(request, identity.cache_key(material), entity_key, seq, step_index)
        if self._probe is not None:
            self._probe.model_request(request, call.cache_key, material, step_index)
        entry = self._cache.get(call.cache_key)
        if entry is not None and not entry.digest_only:
            return self._finish(call, LlmResponse(entry.response), 0, output_schema)
        response, attempts = await self._ask(call)
        self._cache.put(call.cache_key, response.response)
        return self._finish(call, response, attempts, output_schema)

    async def _ask(self, call: _Call) -> tuple[LlmResponse, int]:
        if not self._breaker.allow(self._now_ms):
            refused = CircuitOpenError(self._breaker.endpoint)
            self._stage(call, attempts=0, error=refused)
            raise refused
        attempt = 1
        while True:
            try:
                response = await self._provider.complete(call.request)
            except ProviderError as error:
                if attempt >= self._retry.max_attempts:
                    self._breaker.record_failure(self._now_ms)
                    self._stage(call, attempts=attempt, error=error)
                    raise
                delay = self._retry.delay_ms(attempt, error, self._rng)
            else:
                self._breaker.record_success()
                return response, attempt
            await self._sleep(delay)
            attempt += 1

    def _finish(
        self, call: _Call, response: LlmResponse, attempts: int, output_schema: type[BaseModel] | None
    ) -> FacadeResult:
        hit = attempts == 0
        if self._probe is not None:
            self._probe.model_answer(call.cache_key, response.response, hit, call.step_index)
        decoded = None if self._decode is None else self._decode(response.response)
        usage = None if decoded is None else decoded.usage
        if usage is not None and not hit:
            self._staging.accumulate_usage(usage)
        if self._budget is not None and usage is not None:
            try:
                self._budget.charge(usage.total_tokens)
            except BudgetExceeded as error:
                self._stage(call, attempts=attempts, hit=hit, usage=usage, error=error)
                raise
        parsed = None
        if output_schema is not None:
            text = response.response if decoded is None else decoded.text
            try:
                parsed = output_schema.model_validate_json(text)
            except ValueError as error:
                self._stage(call, attempts=attempts, hit=hit, usage=usage, error=error)
                raise OutputSchemaError(output_schema.__name__, str(error)) from error
        self._stage(call, attempts=attempts, hit=hit, usage=usage)
        return FacadeResult(response, parsed, usage, hit, attempts)

    def _stage(
        self,
        call: _Call,
        *,
        attempts: int,
        hit: bool = False,
        usage: TokenUsage | None = None,
        error: Exception | None = None,
    ) -> None:
        billed = not hit and usage is not None
        attributes = call_attributes(call.request.model_id, cache_hit=hit, billed=billed, usage=usage)
        attributes[trace.ATTEMPTS] = str(attempts)
        attributes[trace.CIRCUIT_STATE] = self._breaker.state.value
        if error is not None:
            attributes[trace.ERROR_TYPE] = type(error).__name__
        self._staging.stage_trace_event(
            TraceEvent(
                entity_key=call.entity_key,
                seq=call.seq,
                step_index=call.step_index,
                event_type=TraceEvent.LLM_CALL,
                attributes=attributes,
                start_ms=self._now_ms,
                end_ms=self._now_ms,
            )
        )
