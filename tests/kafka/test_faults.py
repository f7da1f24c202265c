"""The broker is away, silent, slow or unwilling at every step: calls end in time and say what to mend."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from app.demo.broker import EmbeddedBroker, EmbeddedBrokerError
from app.kafka.answers import Answers
from app.kafka.client import Reader
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError
from app.kafka.export import Exporter, Request, SnapshotTap, export_once
from app.kafka.intake import Follower
from app.kafka.scan import Query, Stop, scan
from app.wire.records import AgentEnvelope, serialize
from scripts.kafka import PASSWORD, USER
from tests.fixtures.kafka import Broker
from tests.waiting import PATIENCE_S, until

NOW = 1_700_000_000_000
TOPICS = {"events": "events", "traces": "traces", "snapshots": "snapshots"}


def describe(address: str, **changes: Any) -> Pipeline:
    told = {"name": "desk", "brokers": [address], "topics": TOPICS, "partitioner": "murmur2", **changes}
    return Pipeline.model_validate(told)


def steps(pipeline: Pipeline, timeout_s: float = 1.0) -> dict[str, Callable[[], object]]:
    """Every way in which we turn to the broker."""
    return {
        "scan": lambda: scan(pipeline, "traces", Query(key=b"k"), timeout_s=timeout_s),
        "prepare": lambda: Exporter(pipeline, timeout_s=timeout_s).prepare(b"k"),
        "tap": lambda: SnapshotTap(pipeline, timeout_s=timeout_s),
        "export": lambda: export_once(pipeline, b"k"),
        "brokers": lambda: Reader(pipeline, timeout_s=timeout_s).brokers(),
    }


def told(pipeline: Pipeline, step: str, words: str) -> BrokerError:
    """What a step fails with; asked with ever more patience until the client has heard why, on however slow a machine.

    In a second it may not have got as far as the broker's refusal, and then says truly that no answer came.
    """
    timeout_s = 1.0
    while True:
        with pytest.raises(BrokerError) as caught:
            steps(pipeline, timeout_s)[step]()
        if re.search(words, str(caught.value)) or timeout_s > 60:
            return caught.value
        timeout_s *= 3


@pytest.fixture
def own() -> Iterator[EmbeddedBroker]:
    """Run a broker that the test may take down."""
    with EmbeddedBroker({"events": 3, "traces": 3, "snapshots": 1}) as broker:
        yield broker


def fill(own: EmbeddedBroker, topic: str, count: int, size: int = 10) -> None:
    Broker("mock", own.address, lambda *_: None).write(
        topic, [(b"k%d" % n, b"v" * size, NOW + n) for n in range(count)]
    )


@pytest.mark.parametrize("step", ["scan", "prepare", "tap", "export", "brokers"])
def test_a_refused_port_is_named(step: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        error = told(describe(address), step, "Connection refused")
    assert address in str(error)
    assert "Connection refused" in str(error)
    assert "check `brokers`" in str(error)
    assert error.retriable


@pytest.mark.parametrize("step", ["scan", "prepare", "tap", "brokers"])
def test_a_port_that_never_answers_is_given_up(step: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(BrokerError, match=f"no answer from {address}"):
            steps(describe(address))[step]()


def test_a_name_that_is_not_known_is_told() -> None:
    with pytest.raises(BrokerError, match=r"no answer from broker.invalid:9092 .*check `brokers`"):
        steps(describe("broker.invalid:9092"))["scan"]()


def test_a_follower_waits_for_a_broker_that_is_not_there_yet() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with Follower(describe(address), {}, timeout_s=0.5) as follower:
            assert follower.pull(0.2) == []
            assert follower.trouble is not None
            assert address in follower.trouble
            assert not follower.caught_up


def test_a_broker_that_goes_down_during_a_scan(own: EmbeddedBroker) -> None:
    fill(own, "traces", 30_000)
    seen = []

    def down(*_: object) -> bool:
        if len(seen) == 0:
            own.take_down()
        seen.append(1)
        return False

    slow = {"queued.max.messages.kbytes": 64, "fetch.message.max.bytes": 1000, "queued.min.messages": 100}
    result = scan(describe(own.address, client=slow), "traces", Query(decode=bytes, match=down), stall_s=2)
    assert result.outcome == "incomplete"
    unread = [report for report in result.partitions if not report.complete]
    assert unread
    assert {report.stop for report in unread} == {Stop.STALLED}
    assert "check `brokers`" in unread[0].detail
    assert sum(report.scanned for report in result.partitions) == len(seen)
    own.bring_up()
    again = scan(describe(own.address), "traces", Query(key=b"k29999"), timeout_s=PATIENCE_S)
    assert again.outcome == "found"


def test_a_follower_outlives_a_broker_that_comes_back(own: EmbeddedBroker) -> None:
    fill(own, "traces", 1000)
    got: list[tuple[int, int]] = []

    def pull_until(done: Callable[[], bool]) -> None:
        def pulled() -> bool:
            if not done():
                for batch in follower.pull(0.2):
                    got.extend((one.partition, one.offset) for one in getattr(batch, "records", ()))
            return done()

        until(pulled, lambda: follower.trouble, pause_s=0)

    with Follower(describe(own.address), {}, timeout_s=1.0, most_records=100) as follower:
        pull_until(lambda: len(got) >= 300)
        own.take_down()
        pull_until(lambda: follower.trouble is not None)
        assert "check `brokers`" in (follower.trouble or "")
        own.bring_up()
        fill(own, "traces", 500)
        pull_until(lambda: len(got) >= 1500)
        pull_until(lambda: follower.trouble is None)
    assert len(got) == len(set(got)) == 1500


def test_a_broker_that_is_down_when_a_request_is_published(own: EmbeddedBroker) -> None:
    pipeline = describe(own.address)
    with Exporter(pipeline) as exporter:
        target = exporter.prepare(b"k")
        own.take_down()
        with pytest.raises(BrokerError, match=r"cannot publish to events/\d.*check `brokers`") as caught:
            exporter.publish(target, "r-1")
        assert caught.value.retriable
        own.bring_up()

        def published() -> Request | None:
            with contextlib.suppress(BrokerError):
                return exporter.publish(target, "r-1")
            return None

        request = until(published)
    assert request is not None
    found = scan(pipeline, "events", Query(key=b"k", enough=None)).matches
    assert found[-1].record.offset == request.offset
    wanted = AgentEnvelope(entity_key=b"k", event_time_ms=target.event_time_ms)
    wanted.export_request.request_id = "r-1"
    assert {one.record.value for one in found} == {serialize(wanted)}


def test_a_broker_that_goes_down_while_an_answer_is_awaited(own: EmbeddedBroker) -> None:
    answers = Answers({"r": b"k"})
    with SnapshotTap(describe(own.address)) as tap:
        own.take_down()

        def troubled() -> bool:
            assert not tap.wait(answers, 0.5)
            return tap.trouble is not None

        until(troubled)
        assert "check `brokers`" in (tap.trouble or "")
        own.bring_up()
        fill(own, "snapshots", 1)

        def answered() -> bool:
            tap.wait(answers, 0.5)
            return bool(answers.unreadable)

        until(answered, lambda: tap.trouble, pause_s=0)


def test_a_slow_broker_is_only_slow(own: EmbeddedBroker) -> None:
    fill(own, "traces", 100)
    own.slow_down(300)
    assert scan(describe(own.address), "traces", Query(key=b"k7")).outcome == "found"


def test_a_scan_can_be_cancelled_while_nobody_answers(own: EmbeddedBroker) -> None:
    fill(own, "traces", 30_000)
    event = threading.Event()
    seen = []

    def down(*_: object) -> bool:
        if not seen:
            own.take_down()
            threading.Timer(0.5, event.set).start()
        seen.append(1)
        return False

    slow = {"queued.max.messages.kbytes": 64, "fetch.message.max.bytes": 1000, "queued.min.messages": 100}
    query = Query(decode=bytes, match=down)
    result = scan(describe(own.address, client=slow), "traces", query, cancelled=event, stall_s=2 * PATIENCE_S)
    assert result.outcome == "incomplete"
    assert Stop.CANCELLED in result.stops.values()


def test_a_setting_that_librdkafka_does_not_know() -> None:
    with pytest.raises(BrokerError, match=r"librdkafka knows no setting 'fetch.wiat.max.ms'.*correct `client`"):
        Reader(describe("127.0.0.1:9092", client={"fetch.wiat.max.ms": 5}))
    with pytest.raises(BrokerError, match=r"fetch.wait.max.ms.*correct `client`"):
        Reader(describe("127.0.0.1:9092", client={"fetch.wait.max.ms": -5}))


def test_the_embedded_broker_says_what_it_cannot_do(own: EmbeddedBroker) -> None:
    with pytest.raises(EmbeddedBrokerError, match="could not create the topic 'events'"):
        own.create("events", 3)
    with pytest.raises(EmbeddedBrokerError, match="already running"):
        own.start()
    own.stop()
    own.stop()
    with pytest.raises(EmbeddedBrokerError, match="not running"):
        own.create("more", 1)


@pytest.mark.timeout(1200)
class TestUnwilling:
    """A real broker that wants proof of who we are."""

    @staticmethod
    def security(**changes: object) -> dict[str, object]:
        return {
            "protocol": "sasl_plaintext",
            "mechanism": "PLAIN",
            "username": {"env": "TEST_KAFKA_USER"},
            "password": {"env": "TEST_KAFKA_PASSWORD"},
            **changes,
        }

    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TEST_KAFKA_USER", USER)
        monkeypatch.setenv("TEST_KAFKA_PASSWORD", PASSWORD)

    def test_the_right_password_opens(self, apache_broker: Broker) -> None:
        topic = apache_broker.topic(1)
        apache_broker.write(topic, [(b"k", b"v")])
        pipeline = describe(apache_broker.sasl, security=self.security())
        assert scan(pipeline, topic, Query(key=b"k")).outcome == "found"

    def test_a_wrong_password_is_told_and_not_shown(
        self, apache_broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("TEST_KAFKA_PASSWORD", "hunter2-canary")
        caplog.set_level("DEBUG")
        pipeline = describe(apache_broker.sasl, security=self.security(), client={"debug": "security,broker"})
        remedy = "check `security.mechanism`, `security.username` and `security.password`"
        error = told(pipeline, "scan", remedy)
        assert remedy in str(error)
        assert "hunter2-canary" not in f"{error!r} {pipeline!r} {caplog.text}"

    def test_a_client_without_proof_is_told_about_the_protocol(self, apache_broker: Broker) -> None:
        remedy = r"check .*`security\.protocol`"
        assert re.search(remedy, str(told(describe(apache_broker.sasl), "scan", remedy)))

    def test_tls_to_a_port_without_is_told(self, apache_broker: Broker) -> None:
        remedy = r"check `security\.protocol`"
        error = told(describe(apache_broker.address, security={"protocol": "ssl"}), "scan", remedy)
        assert re.search(remedy, str(error))

    @staticmethod
    def reserve(broker: Broker, kind: ResourceType, name: str) -> None:
        """Let somebody else alone use a topic or a group."""
        rule = AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:other", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        admin = AdminClient({"bootstrap.servers": broker.address})
        for done in admin.create_acls([rule]).values():
            done.result(PATIENCE_S)
        # The controller has the rule; the broker goes by it when it is among those that it tells.
        same = AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, "User:other", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        until(lambda: admin.describe_acls(same).result(PATIENCE_S), "the broker's knowledge of the rule")

    def test_a_group_that_we_may_not_use_does_not_matter(self, apache_broker: Broker) -> None:
        topic, group = apache_broker.topic(2), f"group-{time.time_ns()}"
        apache_broker.write(topic, [(b"k%d" % n, b"v") for n in range(50)])
        self.reserve(apache_broker, ResourceType.GROUP, group)
        pipeline = describe(
            apache_broker.sasl,
            security=self.security(),
            client_group=group,
            topics={"traces": topic, "events": topic + "-"},
        )
        result = scan(pipeline, topic, Query(decode=bytes, match=lambda *_: True, enough=None))
        assert len(result.matches) == 50
        assert all(report.complete for report in result.partitions)
        with Follower(pipeline, {}) as follower:
            seen = 0

            def all_there() -> bool:
                nonlocal seen
                seen += sum(len(getattr(one, "records", ())) for one in follower.pull(0.2))
                return seen >= 50

            until(all_there, lambda: follower.trouble, pause_s=0)
            assert follower.trouble is None

    def test_a_topic_that_we_may_not_read_is_told(self, apache_broker: Broker) -> None:
        topic = apache_broker.topic(1)
        self.reserve(apache_broker, ResourceType.TOPIC, topic)
        pipeline = describe(apache_broker.sasl, security=self.security(), topics={"traces": topic})
        with pytest.raises(BrokerError, match=f"{topic}.*grant it to Hindcast's user") as caught:
            scan(pipeline, topic, Query(key=b"k"), timeout_s=PATIENCE_S)
        assert not caught.value.retriable
        with Follower(pipeline, {}, timeout_s=PATIENCE_S) as follower:
            assert follower.pull(0.2) == []
            assert "grant it to Hindcast's user" in follower.missing[topic]
