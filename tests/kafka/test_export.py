"""An export request goes where the key's events go, carries a harmless clock, and its answers are known by its id."""

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from app.kafka.answers import Answers, Kind, recognise
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError, Cancelled
from app.kafka.export import Exporter, SnapshotTap, export_once, new_request_id
from app.kafka.partition import Partitioner
from app.kafka.records import Record
from app.kafka.scan import Query, scan
from app.wire.records import AgentEnvelope, StateSnapshot, parse, serialize
from tests.fixtures.kafka import Broker
from tests.waiting import PATIENCE_S, joined, until

NOW = 1_700_000_000_000
HOUR = 3_600_000


def event(key: bytes, time_ms: int) -> bytes:
    return serialize(AgentEnvelope(entity_key=key, event_time_ms=time_ms, external_event=b"e"))


def snapshot(key: bytes, request_id: str, seq: int = 3) -> bytes:
    return serialize(
        StateSnapshot(state_schema_version=1, entity_key=key, seq=seq, snapshot_at_ms=NOW, request_id=request_id)
    )


@pytest.fixture
def pipeline(broker: Broker) -> Pipeline:
    topics = {"events": broker.topic(5), "snapshots": broker.topic(2)}
    return broker.pipeline(topics=topics, partitioner="murmur2")


class Answerer:
    """The least of a pipeline: answers each export request it sees with what the test prepared for its key."""

    def __init__(self, broker: Broker, pipeline: Pipeline) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "answerer",
                "fetch.wait.max.ms": 20,
                "enable.auto.commit": False,
            }
        )
        topic = pipeline.topics.exports_to
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(5)])
        self._producer: Producer = broker.producer(linger_ms=0)
        self._snapshots = pipeline.topics.snapshots
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers = {}  # type: ignore[var-annotated]
        self.seen: list[AgentEnvelope] = []
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1, 0.05):
                if message.error() is not None:
                    continue
                envelope = parse(AgentEnvelope, message.value() or b"")
                if envelope.WhichOneof("payload") != "export_request":
                    continue
                self.seen.append(envelope)
                request_id = envelope.export_request.request_id
                default = [snapshot(envelope.entity_key, request_id)]
                make = self.answers.get(envelope.entity_key)
                for value in make(request_id) if make else default:
                    self._producer.produce(self._snapshots, value, key=envelope.entity_key)
                self._producer.flush(PATIENCE_S)

    def close(self) -> None:
        self._stop.set()
        joined(self._thread)
        self._consumer.close()


@pytest.fixture
def answerer(broker: Broker, pipeline: Pipeline) -> Iterator[Answerer]:
    made = Answerer(broker, pipeline)
    yield made
    made.close()


@pytest.mark.parametrize("partitioner", ["murmur2", "consistent_random", "fnv1a"])
def test_a_request_lands_where_the_keys_own_events_are(broker: Broker, partitioner: str) -> None:
    # complaint 31
    topic = broker.topic(7)
    keys = [b"customer-%d" % n for n in range(12)] + [b"\x00\xff\x80", "ключ".encode()]
    broker.write(topic, [(key, event(key, NOW)) for key in keys], partitioner=partitioner)
    pipeline = broker.pipeline(topics={"events": topic}, partitioner=partitioner)
    with Exporter(pipeline) as exporter:
        for key in keys:
            target = exporter.prepare(key)
            request = exporter.publish(target, new_request_id())
            assert (request.partition, request.key) == (target.partition, key)
    for key in keys:
        found = scan(broker.pipeline(), topic, Query(key=key, enough=None)).matches
        assert len({one.record.partition for one in found}) == 1
        assert len(found) == 2
        assert found[1].record.key == key
        envelope = parse(AgentEnvelope, found[1].record.value or b"")
        assert envelope.entity_key == key
        assert envelope.WhichOneof("payload") == "export_request"


def test_without_a_partitioner_nothing_is_published(broker: Broker) -> None:
    # complaint 31
    topic = broker.topic(3)
    told = r"no partitioner is configured.*set `partitioner` to what the producers"
    with Exporter(broker.pipeline(topics={"events": topic})) as exporter, pytest.raises(BrokerError, match=told):
        exporter.prepare(b"k")
    single = broker.topic(1)
    with Exporter(broker.pipeline(topics={"events": single})) as exporter:
        assert exporter.prepare(b"k").partition == 0  # one partition needs no rule


def test_the_empty_key_can_be_asked_for(broker: Broker) -> None:
    topic = broker.topic(3)
    with Exporter(broker.pipeline(topics={"events": topic}, partitioner="consistent_random")) as exporter:
        target = exporter.prepare(b"")
        assert "by chance" in target.chosen_by
        exporter.publish(target, "r-1")
    with Exporter(broker.pipeline(topics={"events": topic}, partitioner="murmur2")) as exporter:
        assert exporter.prepare(b"").chosen_by == f"the key's own by {Partitioner.MURMUR2.told}"
    (match,) = scan(broker.pipeline(), topic, Query(key=b"")).matches
    assert match.record.value == serialize(
        AgentEnvelope(export_request=AgentEnvelope.StateExportRequest(request_id="r-1"))
    )


def test_the_clock_of_a_request_is_never_ahead_of_its_partition(broker: Broker) -> None:
    topic = broker.topic(1)
    pipeline = broker.pipeline(topics={"events": topic})
    broker.write(topic, [(b"k", event(b"k", NOW + 500), NOW + 700), (b"k", event(b"k", NOW), NOW + 100)])
    with Exporter(pipeline, now_ms=lambda: NOW + HOUR) as exporter:
        target = exporter.prepare(b"k")
        assert target.event_time_ms == target.latest_event_ms == NOW + 500
        assert target.timestamp_ms == NOW + 700
        assert target.lag_ms == HOUR - 500
        exporter.publish(target, "r-1")
    record = scan(pipeline, topic, Query(key=b"k", enough=None)).matches[-1].record
    assert parse(AgentEnvelope, record.value or b"").event_time_ms == NOW + 500
    assert record.timestamp_ms == NOW + 700
    with Exporter(pipeline, now_ms=lambda: NOW - HOUR) as behind:  # our own clock is an hour slow
        slow = behind.prepare(b"k")
        assert slow.event_time_ms == NOW - HOUR
        assert slow.lag_ms == -HOUR - 500


def test_the_clock_is_learnt_past_whatever_else_is_at_the_tail(broker: Broker) -> None:
    topic = broker.topic(1)
    pipeline = broker.pipeline(topics={"events": topic})
    junk = itertools.chain(
        [(b"k", event(b"k", NOW), NOW)], ((b"j", b"\xff junk", NOW + 9) for _ in range(3000)), [(b"k", None, NOW)]
    )
    broker.write(topic, junk)
    with Exporter(pipeline) as exporter:
        target = exporter.prepare(b"k")
    assert target.event_time_ms == NOW
    assert target.timestamp_ms == NOW + 9


def test_an_empty_partition_tells_no_time(broker: Broker) -> None:
    pipeline = broker.pipeline(topics={"events": broker.topic(1)})
    with Exporter(pipeline, now_ms=lambda: NOW) as exporter:
        target = exporter.prepare(b"k")
    assert (target.event_time_ms, target.latest_event_ms, target.lag_ms) == (0, None, None)
    assert target.timestamp_ms == NOW


def test_how_far_the_pipeline_is_behind(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.write(topic, [(b"k", event(b"k", NOW)) for _ in range(10)])
    group = f"group-{new_request_id()}"
    pipeline = broker.pipeline(topics={"events": topic}, group=group)
    with Exporter(pipeline) as exporter:
        assert exporter.prepare(b"k").behind is None
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        consumer.close()
        assert exporter.prepare(b"k").behind == 6


def test_request_ids_cannot_be_guessed() -> None:
    made = {new_request_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(bytes.fromhex(one)) == 16 for one in made)


def test_an_answer_comes_back(broker: Broker, pipeline: Pipeline, answerer: Answerer) -> None:
    topic = pipeline.topics.exports_to or ""
    broker.write(topic, [(b"k", event(b"k", NOW))], partitioner="murmur2")
    request, answers = export_once(pipeline, b"k", timeout_s=PATIENCE_S)
    (answer,) = answers.states(request.request_id)
    assert (answer.entity_key, answer.seq, answer.request_id) == (b"k", 3, request.request_id)
    assert answer.record.value == snapshot(b"k", request.request_id)
    assert answer.record.key == b"k"
    (seen,) = answerer.seen
    assert seen.event_time_ms == NOW
    assert seen.export_request.request_id == request.request_id


def test_two_people_ask_at_once_and_each_has_their_answer(pipeline: Pipeline, answerer: Answerer) -> None:
    found = []

    def ask() -> None:
        found.append(export_once(pipeline, b"k", timeout_s=PATIENCE_S))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (one, first), (other, second) = found
    assert one.request_id != other.request_id
    assert [len(first.states(one.request_id)), len(second.states(other.request_id))] == [1, 1]


def test_all_states_under_one_request_are_kept_and_equal_ones_are_one(pipeline: Pipeline, answerer: Answerer) -> None:
    answerer.answers[b"k"] = lambda request: [
        snapshot(b"k", request, 3),
        snapshot(b"k", request, 3),
        snapshot(b"other", request, 9),
        snapshot(b"k", request, 4),
        snapshot(b"k", "somebody else's", 4),
        b"\xff no snapshot",
    ]
    request_id = new_request_id()
    answers = Answers({request_id: b"k"})
    with SnapshotTap(pipeline) as tap, Exporter(pipeline) as exporter:
        exporter.publish(exporter.prepare(b"k"), request_id)

        def all_there() -> bool:
            tap.wait(answers, 1.0)
            return len(answers.states(request_id)) == 2 and bool(answers.other_keys and answers.unreadable)

        until(all_there, lambda: tap.trouble, pause_s=0)
        # The request is delivered once more, and answered once more.
        exporter.publish(exporter.prepare(b"k"), request_id)

        def repeated() -> bool:
            tap.wait(answers, 1.0)
            return answers.repeats(request_id) >= 3

        until(repeated, lambda: tap.trouble, pause_s=0)
    assert sorted(one.seq for one in answers.states(request_id)) == [3, 4]
    (foreign,) = answers.other_keys
    assert (foreign.kind, foreign.entity_key, foreign.seq) == (Kind.OTHER_KEY, b"other", 9)
    assert answers.unreadable[0].record.value == b"\xff no snapshot"


def test_a_pipeline_that_never_answers(pipeline: Pipeline) -> None:
    begun = time.monotonic()
    request, answers = export_once(pipeline, b"k", timeout_s=1.0)
    assert time.monotonic() - begun >= 1.0
    assert answers.states(request.request_id) == ()
    assert request.offset >= 0


def test_waiting_can_be_given_up(pipeline: Pipeline) -> None:
    event = threading.Event()
    threading.Timer(0.3, event.set).start()
    with pytest.raises(Cancelled):
        export_once(pipeline, b"k", timeout_s=2 * PATIENCE_S, cancelled=event)


def test_what_a_record_on_the_snapshots_topic_is() -> None:
    def record(value: bytes | None) -> Record:
        return Record("s", 0, 7, NOW, "create", b"k", value)

    asked = {"r": b"k"}
    assert recognise(record(snapshot(b"k", "r")), asked).kind is Kind.ANSWER
    assert recognise(record(snapshot(b"K", "r")), asked).kind is Kind.OTHER_KEY
    assert recognise(record(snapshot(b"k", "R")), asked).kind is Kind.UNASKED
    assert recognise(record(snapshot(b"k", "")), {"": b"k"}).kind is Kind.UNASKED
    assert recognise(record(None), asked).kind is Kind.TOMBSTONE
    assert recognise(record(b"\xff"), asked).kind is Kind.UNREADABLE
    assert recognise(record(b""), {"": b""}).kind is Kind.UNASKED


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        ({}, "no topic takes export requests"),
        ({"events": [{"topic": "a", "records": "tool_result"}]}, "no topic takes export requests"),
        ({"events": ["a", "b"]}, "several topics carry envelopes.*`exports = true`"),
    ],
)
def test_where_requests_go_must_be_clear(mock_broker: Broker, topics: dict[str, object], told: str) -> None:
    with Exporter(mock_broker.pipeline(topics=topics)) as exporter, pytest.raises(BrokerError, match=told):
        exporter.prepare(b"k")


def test_without_a_snapshots_topic_nobody_waits(mock_broker: Broker) -> None:
    with pytest.raises(BrokerError, match="no snapshots topic is configured"):
        SnapshotTap(mock_broker.pipeline())
