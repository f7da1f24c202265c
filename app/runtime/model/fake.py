"""A scripted model for tests and demonstrations: the first matching rule answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from app.runtime.model.client import LlmRequest, LlmResponse

Matcher: TypeAlias = Callable[[LlmRequest], bool]
Delay: TypeAlias = Callable[[int], Awaitable[None]]
Behavior: TypeAlias = Callable[[Delay], Awaitable[bytes]]
Rule: TypeAlias = tuple[Matcher, Behavior]


class UnmatchedRequestError(Exception):
    """No rule of the fake matches the request."""

    def __init__(self, request: LlmRequest) -> None:
        super().__init__(f"no rule of the fake model matches {request!r}: add one, for example with match_any()")
        self.request = request


def match_any() -> Matcher:
    """Match every request."""
    return lambda _request: True


def match_contains(needle: str) -> Matcher:
    """Match when the repr of the whole request contains the text."""
    return lambda request: needle in repr(request)


def match_model_id(model_id: str) -> Matcher:
    """Match requests to one model."""
    return lambda request: request.model_id == model_id


def respond_with(payload: bytes, *, latency_ms: int = 0) -> Behavior:
    """Answer with these bytes after a wait in milliseconds."""

    async def behave(delay: Delay) -> bytes:
        if latency_ms > 0:
            await delay(latency_ms)
        return payload

    return behave


def raise_error(error: BaseException, *, latency_ms: int = 0) -> Behavior:
    """Raise this same object each time."""

    async def behave(delay: Delay) -> bytes:
        if latency_ms > 0:
            await delay(latency_ms)
        raise error

    return behave


def fail_then_succeed(*, error: BaseException, times: int, payload: bytes, latency_ms: int = 0) -> Behavior:
    """Raise `error` for the first `times` calls of this rule, then answer."""
    left = times

    async def behave(delay: Delay) -> bytes:
        nonlocal left
        if latency_ms > 0:
            await delay(latency_ms)
        if left > 0:
            left -= 1
            raise error
        return payload

    return behave


async def _sleep(latency_ms: int) -> None:
    await asyncio.sleep(latency_ms / 1000)


class FakeLLM:
    """Answers by its rules and remembers what it was asked; `delay` replaces real sleeping (milliseconds)."""

    def __init__(self, rules: Iterable[Rule] = (), *, delay: Delay | None = None) -> None:
        self._rules = list(rules)
        self._delay = _sleep if delay is None else delay
        self.requests: list[LlmRequest] = []

    def add_rule(self, matcher: Matcher, behavior: Behavior) -> None:
        """Append a rule; earlier ones win."""
        self._rules.append((matcher, behavior))

    @property
    def call_count(self) -> int:
        """How many requests came, answered or not."""
        return len(self.requests)

    def calls_for(self, request: LlmRequest) -> int:
        """How often exactly this request came."""
        return self.requests.count(request)

    async def complete(self, request: LlmRequest) -> LlmResponse:
        """Answer by the first matching rule; raises UnmatchedRequestError when there is none."""
        self.requests.append(request)
        for matcher, behavior in self._rules:
            if matcher(request):
                return LlmResponse(await behavior(self._delay))
        raise UnmatchedRequestError(request)
