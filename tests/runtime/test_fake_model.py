"""The scripted model."""

import pytest

from app.runtime.model.client import ServerError
from app.runtime.model.fake import (
    FakeLLM,
    UnmatchedRequestError,
    fail_then_succeed,
    match_contains,
    match_model_id,
    raise_error,
    respond_with,
)
from tests.runtime.running import ask


async def test_the_first_matching_rule_answers_after_its_wait() -> None:
    waits: list[int] = []

    async def delay(milliseconds: int) -> None:
        waits.append(milliseconds)

    fake = FakeLLM([(match_contains("model_id='m-2'"), respond_with(b"two", latency_ms=40))], delay=delay)
    fake.add_rule(match_model_id("m-2"), respond_with(b"never"))
    fake.add_rule(match_model_id("m-1"), respond_with(b"one"))
    assert (await fake.complete(ask("x", model="m-2"))).response == b"two"
    assert (await fake.complete(ask("x"))).response == b"one"
    assert waits == [40]
    with pytest.raises(UnmatchedRequestError, match="m-3"):
        await fake.complete(ask("x", model="m-3"))
    assert fake.call_count == 3
    assert fake.calls_for(ask("x")) == 1


async def test_errors_are_raised_as_the_same_object() -> None:
    error = ServerError(500)
    fake = FakeLLM([(match_contains("always"), raise_error(error))])
    fake.add_rule(match_contains("twice"), fail_then_succeed(error=error, times=2, payload=b"ok"))
    for text in ("always", "always", "twice", "twice"):
        with pytest.raises(ServerError) as raised:
            await fake.complete(ask(text))
        assert raised.value is error
    assert (await fake.complete(ask("twice"))).response == b"ok"


async def test_latency_is_slept_for_real_without_a_delay_of_ones_own() -> None:
    fake = FakeLLM([(match_model_id("m-1"), respond_with(b"x", latency_ms=1))])
    assert (await fake.complete(ask("x"))).response == b"x"
