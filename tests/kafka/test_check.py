"""`hindcast check` says per topic what it found, what is missing, and how to mend it."""

import re
import socket
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from app.kafka.check import CheckReport, Level, check, render
from app.kafka.told import topic_settings
from app.wire.records import (
    ActivationErrorRecord,
    AgentEnvelope,
    StateSnapshot,
    ToolIntent,
    TraceEvent,
    serialize,
)
from tests.fixtures.kafka import Broker
from tests.waiting import PATIENCE_S

NOW = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _soon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-process broker answers no question about settings, so that is not waited for as patiently as the rest."""
    if "mock" in request.node.name:
        monkeypatch.setattr("app.kafka.check.topic_settings", lambda *asked: topic_settings(*asked[:2], 1.0))


def whole(broker: Broker, **settings: object) -> dict[str, str]:
    """Make a pipeline's topics with records as they should be; topic by stream."""
    topics = {
        name: broker.topic(3, **settings) for name in ("events", "traces", "snapshots", "intents", "outputs", "errors")
    }
    keys = [b"key-%d" % n for n in range(30)]
    dead = serialize(ActivationErrorRecord(entity_key=b"k", reason="activation_error"))
    records = {
        "events": lambda key: AgentEnvelope(entity_key=key, event_time_ms=NOW, external_event=b"e"),
        "traces": lambda key: TraceEvent(entity_key=key, trace_id=b"t" * 16, event_type=1),
        "snapshots": lambda key: StateSnapshot(entity_key=key, state_schema_version=1),
        "intents": lambda key: ToolIntent(entity_key=key, intent_id="i"),
        "errors": lambda key: AgentEnvelope(entity_key=key, event_time_ms=NOW, external_event=dead),
    }
    for stream, make in records.items():
        written = [(key, serialize(make(key)), NOW) for key in keys]
        broker.write(topics[stream], written, partitioner="murmur2_random")
    broker.write(topics["outputs"], [(b"k", b"\xff anything", NOW)])
    return topics


def lines(report: CheckReport, subject: str) -> list[tuple[Level, str, str]]:
    return [(one.level, one.found, one.mend) for one in report.findings if one.subject.startswith(subject)]


def test_a_pipeline_in_order(broker: Broker) -> None:
    topics = whole(broker, max_message_bytes=4_000_000)
    pipeline = broker.pipeline(topics=topics, partitioner="murmur2")
    report = check(pipeline, now_ms=lambda: NOW + 90_000, timeout_s=PATIENCE_S)
    assert report.ok
    odd = [one for one in report.findings if one.level is not Level.OK]
    assert [one.subject for one in odd] == (["topics"] if broker.kind == "mock" else [])
    ((_, found, _),) = lines(report, "topics.traces")
    assert found == "3 partitions, about 30 records, the newest of 1 minute ago"
    assert lines(report, "partitioner") == [(Level.OK, "murmur2 fits all 30 keys looked at", "")]
    text = render([report])
    assert text.startswith("pipeline test\n  ok       brokers: connected; the cluster has 127.0.0.1:")
    assert "problem" not in text


def test_nothing_is_configured(broker: Broker) -> None:
    report = check(broker.pipeline())
    assert not report.ok
    assert [(one.level, one.subject) for one in report.findings] == [
        (Level.OK, "brokers"),
        (Level.PROBLEM, "topics.events"),
        (Level.PROBLEM, "topics.traces"),
        (Level.PROBLEM, "topics.snapshots"),
        (Level.WARNING, "topics.intents"),
        (Level.WARNING, "topics.outputs"),
        (Level.WARNING, "topics.errors"),
    ]
    assert "→ set `topics.snapshots`" in render([report])
    assert render([]) == "no pipeline is configured\n"


def test_no_broker() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        broker = Broker("none", address, lambda *_: None)
        report = check(broker.pipeline(), timeout_s=1)
    (finding,) = report.findings
    assert (finding.level, finding.subject) == (Level.PROBLEM, "brokers")
    assert address in finding.found
    assert "check `brokers`" in finding.mend


def test_missing_topics_and_wrong_records(broker: Broker) -> None:
    topics = whole(broker)
    topics["intents"] = f"{topics['intents']}-not-there"
    topics["traces"], topics["snapshots"] = topics["snapshots"], topics["traces"]
    broker.write(topics["errors"], [(b"k", b"\xff poison", NOW)])
    report = check(broker.pipeline(topics=topics, partitioner="murmur2"), now_ms=lambda: NOW, timeout_s=PATIENCE_S)
    assert not report.ok
    ((level, _, mend),) = lines(report, "topics.intents")
    assert (level, mend) == (Level.PROBLEM, "create it, or correct `topics.intents`")
    ((level, found, mend), *_) = lines(report, "topics.traces")
    assert level is Level.PROBLEM
    assert "30 of 30 looked at are not a TraceEvent" in found
    assert mend == "correct `topics.traces`, or what its records are"
    ((level, found, _), *_) = lines(report, "topics.snapshots")
    assert (level, "30 of 30 looked at are not a StateSnapshot" in found) == (Level.PROBLEM, True)
    ((level, found, _), *_) = lines(report, "topics.errors")
    assert (level, "1 of 31 looked at are not an AgentEnvelope" in found) == (Level.WARNING, True)


def test_the_partitioner_is_held_against_the_records(broker: Broker) -> None:
    # complaint 31
    topics = whole(broker)
    wrong = check(broker.pipeline(topics=topics, partitioner="consistent_random"), timeout_s=PATIENCE_S)
    ((level, found, mend),) = lines(wrong, "partitioner")
    assert level is Level.PROBLEM
    assert re.search(
        r"\d+ of 30 keys looked at are not where consistent_random puts them: b'key-\d+' is in partition", found
    )
    assert mend == '`partitioner = "murmur2"` fits all 30 keys looked at'
    unset = check(broker.pipeline(topics=topics), timeout_s=PATIENCE_S)
    ((level, found, mend),) = lines(unset, "partitioner")
    assert (level, found) == (Level.PROBLEM, "not configured, so no export can be asked for")
    assert mend == '`partitioner = "murmur2"` fits all 30 keys looked at'
    broker.write(topics["events"], [(b"stray-%d" % n, b"", NOW) for n in range(9)], partition=0)
    ((level, found, mend),) = lines(
        check(broker.pipeline(topics=topics, partitioner="murmur2"), timeout_s=PATIENCE_S), "partitioner"
    )
    assert level is Level.WARNING
    assert "was the topic given more partitions?" in mend


def test_where_exports_go_must_be_clear(broker: Broker) -> None:
    first, second = broker.topic(1), broker.topic(1)
    report = check(broker.pipeline(topics={"events": [first, second]}), timeout_s=PATIENCE_S)
    assert (Level.PROBLEM, "topics.events", "set `exports = true` for one of them") in [
        (one.level, one.subject, one.mend) for one in report.findings
    ]


def test_events_that_are_keyed_otherwise_are_told(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.write(
        topic, [(b"other", serialize(AgentEnvelope(entity_key=b"k", event_time_ms=NOW)), NOW) for _ in range(4)]
    )
    report = check(
        broker.pipeline(topics={"events": topic}, partitioner="murmur2"), now_ms=lambda: NOW, timeout_s=PATIENCE_S
    )
    assert "4 of 4 records looked at are not keyed by their entity key" in render([report])


def test_a_clock_an_hour_ahead_is_told(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.write(topic, [(b"k", serialize(TraceEvent(entity_key=b"k", trace_id=b"t" * 16)), NOW)])
    report = check(broker.pipeline(topics={"traces": topic}), now_ms=lambda: NOW - 3_600_000, timeout_s=PATIENCE_S)
    assert "its newest record is stamped 1 hour ahead of this machine's clock" in render([report])


def test_how_far_the_group_is_behind(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.write(topic, [(b"k", serialize(AgentEnvelope(entity_key=b"k", event_time_ms=NOW)))] * 10)
    group = f"check-{time.time_ns()}"
    pipeline = broker.pipeline(topics={"events": topic}, group=group)
    assert f"group ({group}): has committed nothing for {topic}" in render([check(pipeline, timeout_s=PATIENCE_S)])
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    consumer.close()
    assert f"group ({group}): 3 records behind" in render([check(pipeline, timeout_s=PATIENCE_S)])


@pytest.mark.timeout(1200)
def test_how_topics_are_set_up(apache_broker: Broker) -> None:
    topics = {
        "events": apache_broker.topic(1),
        "traces": apache_broker.topic(1, cleanup_policy="compact"),
        "snapshots": apache_broker.topic(1, max_message_bytes=1_048_588),
        "errors": apache_broker.topic(1, retention_ms=600_000),
    }
    text = render([check(apache_broker.pipeline(topics=topics))])
    assert "cleanup.policy is compact" in text
    assert "takes records up to 1,048,588 bytes" in text
    assert "→ raise max.message.bytes to 2097152 or more" in text
    assert "records are kept for 10 minutes only" in text
