"""A pipeline's configuration: mistakes are told in plain words, and secrets are never in it."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.kafka.client import settings
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError
from app.kafka.partition import Partitioner
from app.kafka.topics import RecordKind, Stream, decoder
from app.wire.records import AgentEnvelope, RecordError, ToolResult, serialize

WHOLE = """
name = "support-desk"
brokers = ["broker-1.example:9092", "[::1]:9092"]
partitioner = "murmur2"
isolation = "read_uncommitted"
group = "support-desk"
client_group = "hindcast-eu"
builds = ["2026-05-01"]

[security]
protocol = "sasl_ssl"
mechanism = "SCRAM-SHA-512"
username = { env = "DESK_USER" }
password = { file = "secrets/desk" }
ca = "ca.pem"

[topics]
events = ["events", { topic = "tickets", records = "desk.codec:decode" }, { topic = "more", records = "tool_result" }]
results = "results"
approvals = "approvals"
traces = "traces"
snapshots = "snapshots"
intents = "intents"
outputs = "outputs"
errors = "errors"

[client]
"fetch.wait.max.ms" = 20
"ssl.key.pem" = { file = "key.pem" }
"""


def whole(**changes: Any) -> dict[str, Any]:
    return tomllib.loads(WHOLE) | changes


def test_the_whole_of_it(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "desk").write_text("hunter2\n")
    (tmp_path / "key.pem").write_text("-----BEGIN-----\n")
    pipeline = Pipeline.model_validate(whole()).placed(tmp_path)
    assert pipeline.partitioner is Partitioner.MURMUR2
    topics = pipeline.topics
    assert topics.exports_to == "events"
    assert [(one.topic, one.kind, one.hook) for one in topics.sources()] == [
        ("events", RecordKind.ENVELOPE, None),
        ("tickets", None, "desk.codec:decode"),
        ("more", RecordKind.TOOL_RESULT, None),
        ("results", RecordKind.TOOL_RESULT, None),
        ("approvals", RecordKind.APPROVAL, None),
    ]
    assert topics.followed() == {
        Stream.TRACES: "traces",
        Stream.ERRORS: "errors",
        Stream.INTENTS: "intents",
        Stream.OUTPUTS: "outputs",
        Stream.SNAPSHOTS: "snapshots",
    }
    assert (topics.stream_of("tickets"), topics.kind_of("tickets")) == (Stream.EVENTS, None)
    assert (topics.stream_of("errors"), topics.kind_of("errors")) == (Stream.ERRORS, RecordKind.ENVELOPE)
    assert topics.stream_of("unknown") is None
    told = settings(pipeline, {"DESK_USER": "desk"})
    assert told == {
        "bootstrap.servers": "broker-1.example:9092,[::1]:9092",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "sasl.username": "desk",
        "sasl.password": "hunter2",
        "fetch.wait.max.ms": 20,
        "ssl.key.pem": "-----BEGIN-----",
    }
    assert "hunter2" not in repr(pipeline) + str(pipeline) + pipeline.model_dump_json()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"brokers": []}, "at least 1 item"),
        ({"brokers": ["broker"]}, "'broker' is not the address of a broker: expected host:port"),
        ({"brokers": ["broker:0"]}, "not the address of a broker"),
        ({"brokers": ["kafka://broker:9092"]}, "not the address of a broker"),
        ({"brokers": ["user:pass@broker:9092"]}, "not the address of a broker"),
        ({"brokers": ["::1:9092"]}, "not the address of a broker"),
        ({"partitioner": "java"}, "murmur2"),
        ({"name": "support desk"}, "string_pattern_mismatch|should match pattern"),
        ({"unknown": 1}, "Extra inputs are not permitted"),
        ({"topics": {"traces": "with blank"}}, "'with blank' cannot be a topic's name"),
        ({"topics": {"traces": "a", "errors": "a"}}, "topics.traces and topics.errors both name 'a'"),
        ({"topics": {"events": "a", "results": "a"}}, r"topics.events\[0\] and topics.results both name 'a'"),
        ({"topics": {"events": [{"topic": "a", "records": "json"}]}}, "'json' is no kind of record"),
        (
            {"topics": {"events": [{"topic": "a", "records": "approval", "exports": True}]}},
            "cannot take export requests",
        ),
        (
            {"topics": {"events": [{"topic": "a", "exports": True}, {"topic": "b", "exports": True}]}},
            "several of events have `exports = true`",
        ),
        ({"client": {"group.id": "g"}}, "'group.id' is decided by Hindcast"),
        ({"client": {"sasl.password": "hunter2"}}, "'sasl.password' may be secret"),
        ({"client": {"sasl.oauthbearer.client.secret": "hunter2"}}, "may be secret"),
        ({"security": {"protocol": "sasl_ssl"}}, "needs a mechanism"),
        ({"security": {"protocol": "sasl_ssl", "mechanism": "PLAIN"}}, "PLAIN needs username and password"),
        ({"security": {"mechanism": "PLAIN"}}, "need protocol sasl_ssl or sasl_plaintext, not plaintext"),
        ({"security": {"ca": "ca.pem"}}, "need protocol ssl or sasl_ssl, not plaintext"),
        ({"security": {"protocol": "ssl", "key": "key.pem"}}, "certificate and key go together"),
        ({"security": {"protocol": "ssl", "key_password": "hunter2"}}, "Input should be a valid dictionary"),
        ({"security": {"protocol": "ssl", "key_password": {}}}, "a secret is given by reference"),
        (
            {"security": {"protocol": "ssl", "key_password": {"env": "A", "file": "b"}}},
            "a secret is given by reference",
        ),
    ],
)
def test_mistakes_are_told_and_no_secret_with_them(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told) as caught:
        Pipeline.model_validate(whole(**changes))
    assert "hunter2" not in str(caught.value)


def test_a_secret_that_is_not_there(tmp_path: Path) -> None:
    pipeline = Pipeline.model_validate(whole(client={})).placed(tmp_path)
    with pytest.raises(BrokerError, match=r"security.username .* environment variable DESK_USER, which is not set"):
        settings(pipeline, {})
    with pytest.raises(BrokerError, match=r"security.password .*/secrets/desk, which cannot be read: No such file"):
        settings(pipeline, {"DESK_USER": "desk"})
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "desk").write_text("\n")
    with pytest.raises(BrokerError, match="which is empty"):
        settings(pipeline, {"DESK_USER": "desk"})
    (tmp_path / "secrets" / "desk").write_bytes(b"\xff")
    with pytest.raises(BrokerError, match="not UTF-8"):
        settings(pipeline, {"DESK_USER": "desk"})


def test_which_topic_takes_exports() -> None:
    def exports_to(*events: dict[str, Any]) -> str | None:
        return Pipeline.model_validate(whole(topics={"events": list(events)})).topics.exports_to

    assert exports_to({"topic": "a"}, {"topic": "b", "records": "approval"}) == "a"
    assert exports_to({"topic": "a"}, {"topic": "b", "exports": True}) == "b"
    assert exports_to({"topic": "a"}, {"topic": "b"}) is None
    assert exports_to({"topic": "a", "records": "x:y"}) is None
    assert exports_to() is None


def test_decoders() -> None:
    envelope = AgentEnvelope(entity_key=b"k", event_time_ms=5)
    assert decoder(RecordKind.ENVELOPE)(serialize(envelope)) == envelope
    assert decoder(RecordKind.TOOL_RESULT)(b"") == ToolResult()
    assert decoder(RecordKind.OUTPUT)(b"\xff") == b"\xff"
    with pytest.raises(RecordError, match="not a StateSnapshot"):
        decoder(RecordKind.SNAPSHOT)(b"\xff")


def test_a_configuration_loads_no_client() -> None:
    code = "import sys, app.kafka.config; sys.exit('confluent_kafka' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
