"""Configuration is refused where it is written, naming the field and what it should be."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from app.runtime import batching, hitl
from app.runtime.batching import BatchPolicy, BatchSettings
from app.runtime.compaction import DropOldestCompactor, FlushToLongterm
from app.runtime.config import AgentConfig
from app.runtime.hitl import Deny, Drop, Escalate, HitlPolicy
from app.runtime.outcome import FallbackContext
from app.runtime.sinks import DefaultSinkResolver, SinkAddress, UnknownSinkSchemeError, parse_sink_uri
from app.runtime.stores import InMemoryMemoryStore
from app.runtime.tools import ToolRegistry
from app.runtime.transform import RunAgent, ShardKeys, shard_key, unshard_key
from app.wire.records import ToolIntent, ToolResult
from tests.runtime.running import answering, decode


def test_defaults() -> None:
    config = AgentConfig(answering)
    assert (config.activation_timeout_s, config.cancel_grace_s, config.ttl_ms) == (30.0, 5.0, 3_600_000)
    assert (config.hitl_policy, config.decode, config.tool_registry) == (HitlPolicy(), None, None)
    assert isinstance(config.compactor, DropOldestCompactor)
    assert config.compactor.target_bytes == 524_288
    assert config.batch_settings() is None
    assert config.open_store() is None
    with pytest.raises(FrozenInstanceError):
        config.ttl_ms = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        AgentConfig(answering, decode)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"activation_timeout_s": 0}, "activation_timeout_s must be above 0"),
        ({"ttl_ms": -1}, "ttl_ms must be above 0"),
        ({"cancel_grace_s": 0}, "cancel_grace_s must be above 0"),
        ({"max_tokens_per_activation": 0, "decode": decode}, "max_tokens_per_activation must be above 0"),
        ({"max_tokens_per_activation": 5}, "needs decode"),
        ({"on_expire": FlushToLongterm()}, "needs longterm_memory"),
        ({"max_batch_size": 5}, "max_batch_size is 5 but batch_policy is NONE"),
        ({"batch_policy": BatchPolicy.ADAPTIVE, "max_wait_ms": 0}, "max_wait_ms must be above 0"),
        (
            {"batch_policy": BatchPolicy.ADAPTIVE, "max_batch_size": 9, "max_buffered_events": 8},
            r"max_buffered_events \(8\) must hold at least one batch of 9",
        ),
        ({"traces_to": "topic"}, "traces_to='topic' is not a sink URI"),
        ({"traces_to": "kafka://broker/topic"}, "expected kafka://host:port"),
        ({"errors_to": "kafka://broker:9092"}, "errors_to=.* is malformed"),
        ({"intents_to": "kafka://a:1,b/topic"}, "intents_to=.* is malformed"),
        ({"intents_to": "pubsub://project/a/b"}, "expected pubsub://project/topic"),
        ({"traces_to": "bigquery://project/dataset"}, "expected bigquery://project/dataset/table"),
        ({"traces_to": "otlp://host:port"}, "expected otlp://host"),
        ({"snapshots_to": "bigquery://p/d/t"}, "bigquery sink cannot take this stream"),
        ({"snapshots_to": "otlp://host"}, "otlp sink cannot take this stream"),
        ({"longterm_memory": "redis"}, "longterm_memory='redis' is not a store URI"),
        ({"longterm_memory": "redis://"}, "names no redis server"),
        ({"longterm_memory": "memory://x"}, "takes nothing after the slashes"),
        ({"longterm_memory": "bigtable://project/instance"}, "expected bigtable://project/instance/table"),
        ({"longterm_memory": "firestore://project/"}, "expected firestore://project/collection"),
    ],
)
def test_refusals(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AgentConfig(answering, **settings)


def test_what_an_activation_runs_under() -> None:
    tools = ToolRegistry()
    config = AgentConfig(
        answering,
        decode=decode,
        tool_registry=tools,
        compactor=None,
        max_tokens_per_activation=9,
        longterm_memory="memory://",
        on_expire=FlushToLongterm(),
        activation_timeout_s=2,
    )
    store = config.open_store()
    assert isinstance(store, InMemoryMemoryStore)
    hooks = config.hooks(test_defaults, store)
    assert (hooks.agent, hooks.registry, hooks.decode) == (test_defaults, tools, decode)
    assert hooks.provider.call_count == 0
    settings = hooks.config
    assert (settings.compactor, settings.max_tokens_per_activation, settings.activation_timeout_s) == (None, 9, 2)
    assert settings.longterm_store is store


def test_addresses() -> None:
    assert parse_sink_uri("kafka://a:1,b:2/t", field="f") == SinkAddress("kafka", ("a:1", "b:2"), ("t",))
    assert parse_sink_uri("otlp://h:4318", field="f") == SinkAddress("otlp", ("h:4318",), ())
    assert parse_sink_uri("otlp://h", field="f").hosts == ("h",)
    with pytest.raises(UnknownSinkSchemeError, match="scheme 'amqp'; known are kafka"):
        AgentConfig(answering, traces_to="amqp://broker/queue")
    resolver: Any = object()
    assert AgentConfig(answering, traces_to="amqp://broker/queue", sink_resolver=resolver).sink_resolver is resolver
    with pytest.raises(UnknownSinkSchemeError):
        DefaultSinkResolver()("amqp://broker/queue")
    with pytest.raises(RuntimeError, match="kafka sink needs Apache Beam"):
        DefaultSinkResolver()("kafka://a:1/t")


@pytest.mark.parametrize("name", [RunAgent, ShardKeys, shard_key, unshard_key])
def test_the_transform_says_what_to_install_when_it_is_used(name: Any) -> None:
    with pytest.raises(RuntimeError, match=rf"{name.__name__} belongs to the pipeline.*install"):
        name(agent=None) if isinstance(name, type) else name(b"key", 3)


def test_batching_numbers() -> None:
    settings = batching.resolve_batch_settings(BatchPolicy.ADAPTIVE)
    assert settings == BatchSettings(10, 500, 40)
    assert batching.resolve_batch_settings(BatchPolicy.ADAPTIVE, 2) == BatchSettings(2, 500, 8)
    assert batching.resolve_batch_settings(BatchPolicy.ADAPTIVE, 2, 7, 2) == BatchSettings(2, 7, 2)
    assert settings is not None
    assert batching.should_flush_on_size(settings, 10, suspended=False)
    assert not batching.should_flush_on_size(settings, 9, suspended=False)
    assert not batching.should_flush_on_size(settings, 11, suspended=True)
    assert batching.should_flush_on_timer(1, suspended=False)
    assert not batching.should_flush_on_timer(0, suspended=False)
    assert not batching.should_flush_on_timer(1, suspended=True)
    assert batching.buffer_is_full(settings, 40)
    assert not batching.buffer_is_full(settings, 39)
    assert [policy.value for policy in BatchPolicy] == ["none", "adaptive"]


def test_routes_of_a_passed_deadline() -> None:
    assert HitlPolicy().on_timeout(FallbackContext()) == Deny(b"__hitl_timeout__")
    assert Drop().reason == "hitl_timeout"
    assert Escalate("pager") == Escalate("pager", "{}", 86_400_000)
    assert FallbackContext() == FallbackContext(b"", 0, b"", "timer", 0, 0, ())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"intent_ttl_ms": -5}, "intent_ttl_ms"),
        ({"max_escalations": -1}, "max_escalations"),
        ({"approval_channel": ""}, "approval_channel"),
    ],
)
def test_policies_that_make_no_sense(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        HitlPolicy(**settings)


@pytest.mark.parametrize(("expires", "now", "expired"), [(100, 99, False), (100, 100, True), (0, 0, True)])
def test_an_expired_intent_is_answered_as_such(expires: int, now: int, expired: bool) -> None:
    intent = ToolIntent(intent_id="i", entity_key=b"k", seq=3, expires_at_ms=expires)
    assert hitl.intent_expired(intent, now) is expired
    answer = hitl.refuse_expired(intent, now)
    assert (answer is not None) is expired
    if answer is not None:
        assert (answer.intent_id, answer.entity_key, answer.seq) == ("i", b"k", 3)
        assert (answer.status, answer.completed_at_ms) == (ToolResult.EXPIRED, now)
