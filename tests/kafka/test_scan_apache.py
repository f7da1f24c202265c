"""What only a real Apache Kafka has: transactions and their markers, compaction, huge values, retention."""

import threading
import time
import uuid

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from app.kafka.client import Reader
from app.kafka.scan import PartitionReport, Query, Stop, scan
from app.kafka.sweep import Sweep
from tests.fixtures.kafka import Broker
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.timeout(1200)
NOW = 1_700_000_000_000


@pytest.fixture
def broker(apache_broker: Broker) -> Broker:
    return apache_broker


@pytest.fixture
def transactional(broker: Broker) -> Producer:
    producer = broker.producer(transactional_id=f"test-{uuid.uuid4()}", transaction_timeout_ms=60_000)
    producer.init_transactions(PATIENCE_S)
    return producer


def put(producer: Producer, topic: str, count: int, value: bytes = b"v") -> None:
    for _ in range(count):
        producer.produce(topic, value, key=b"k", partition=0)
    producer.flush(PATIENCE_S)


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_marker_at_the_tail_ends_the_scan(broker: Broker, transactional: Producer, end: str) -> None:
    # complaint 27
    topic = broker.topic()
    transactional.begin_transaction()
    put(transactional, topic, 5)
    getattr(transactional, end)()
    await_end(broker, topic, 6)  # the marker is written a moment after the answer
    result = scan(broker.pipeline(), topic, Query(key=b"nobody"), stall_s=PATIENCE_S)
    (report,) = result.partitions
    assert result.outcome == "not_found"
    assert report.stop is Stop.READ
    assert (report.low, report.high) == (0, 6)
    committed = end == "commit_transaction"
    assert (report.scanned, report.absent) == ((5, 1) if committed else (0, 6))
    # Whoever reads uncommitted sees the aborted ones, and still ends at the marker.
    bold = scan(broker.pipeline(isolation="read_uncommitted"), topic, Query(key=b"nobody"))
    assert (bold.partitions[0].scanned, bold.partitions[0].absent) == (5, 1)


def test_a_range_that_ends_at_a_marker_in_the_middle_ends_there(broker: Broker, transactional: Producer) -> None:
    # complaint 27
    topic = broker.topic()
    for end in (transactional.commit_transaction, transactional.abort_transaction, transactional.commit_transaction):
        transactional.begin_transaction()
        put(transactional, topic, 4)
        end()
    await_end(broker, topic, 15)
    with Reader(broker.pipeline()) as reader:
        sweep = Sweep(reader, topic, lambda *_: None, cancelled=threading.Event(), stall_s=PATIENCE_S)
        # Offsets 0-3 and marker 4 were committed, 5-8 and marker 9 aborted, 10-13 and marker 14 committed.
        for end_at, scanned in ((4, 4), (5, 4), (7, 4), (10, 4), (11, 5), (15, 8)):
            (lane,) = sweep.read({0: (0, end_at)})
            assert (lane.stop, lane.scanned, lane.next) == (Stop.READ, scanned, end_at)


def test_an_unfinished_transaction_is_told_and_not_called_read(broker: Broker, transactional: Producer) -> None:
    # complaint 27
    topic = broker.topic()
    broker.write(topic, [(b"before", b"v", NOW)] * 3)
    transactional.begin_transaction()
    put(transactional, topic, 4)
    broker.write(topic, [(b"behind", b"v", NOW)])
    result = scan(broker.pipeline(), topic, Query(key=b"behind", around_ms=NOW), stall_s=PATIENCE_S)
    (report,) = result.partitions
    assert result.outcome == "incomplete"
    assert report.stop is Stop.OPEN
    assert (report.spans, report.high) == (((0, 3),), 8)
    assert "offsets 3 to 7 are not committed yet" in report.detail
    transactional.commit_transaction()
    again = scan(broker.pipeline(), topic, Query(key=b"behind", around_ms=NOW))
    assert [one.record.offset for one in again.matches] == [7]


def test_compaction_leaves_gaps_that_are_counted(broker: Broker) -> None:
    # complaint 28
    topic = broker.topic(
        cleanup_policy="compact",
        segment_ms=100,
        min_cleanable_dirty_ratio=0.001,
        delete_retention_ms=0,
        max_compaction_lag_ms=100,
    )
    for round_ in range(6):
        broker.write(topic, [(b"k%d" % n, b"round %d" % round_) for n in range(50)])
        time.sleep(0.15)
    broker.write(topic, [(b"k0", None), (b"last", b"v")])

    def cleaned() -> PartitionReport | None:
        result = scan(broker.pipeline(), topic, Query(key=b"nobody"))
        (found,) = result.partitions
        assert result.outcome == "not_found"
        assert found.scanned + found.absent == found.high == 302
        return found if found.absent > 100 else None

    report = until(cleaned, "what the cleaner does", pause_s=0.5)
    assert report is not None
    assert f"{report.absent} offsets absent" in str(report)
    newest = scan(broker.pipeline(), topic, Query(key=b"k7", enough=None))
    assert newest.matches[-1].record.value == b"round 5"


def test_values_of_twenty_megabytes(broker: Broker) -> None:
    # complaint 34
    topic = broker.topic(max_message_bytes=60_000_000)
    huge = bytes(range(256)) * (20 * 4096)
    broker.write(topic, [(b"k%d" % n, huge) for n in range(5)] + [(b"small", b"v")])
    result = scan(broker.pipeline(), topic, Query(key=b"k3"))
    assert [len(one.record.value or b"") for one in result.matches] == [20 * 1024 * 1024]
    assert result.matches[0].record.value == huge
    assert result.partitions[0].complete
    capped = scan(broker.pipeline(), topic, Query(contains=(b"\xfe\xff\x00",), enough=None, most_bytes=30_000_000))
    assert len(capped.matches) == 2
    assert capped.stops == {0: Stop.LIMIT}


def test_a_value_of_fifty_megabytes(broker: Broker) -> None:
    topic = broker.topic(max_message_bytes=60_000_000)
    broker.write(topic, [(b"k", b"s" * 50_000_000), (b"k", b"after")])
    result = scan(broker.pipeline(), topic, Query(key=b"k", enough=None))
    assert [one.record.size for one in result.matches] == [50_000_001, 6]


def test_what_retention_has_removed_is_not_looked_for(broker: Broker) -> None:
    topic = broker.topic()
    broker.write(topic, [(b"k%d" % n, b"v") for n in range(100)])
    remove(broker, topic, 40)
    result = scan(broker.pipeline(), topic, Query(key=b"k10"))
    (report,) = result.partitions
    assert (report.low, report.scanned, report.absent) == (40, 60, 0)
    assert result.outcome == "not_found"


def test_retention_may_overtake_the_reader(broker: Broker) -> None:
    topic = broker.topic()
    broker.write(topic, [(b"k%d" % n, b"v") for n in range(100)])
    remove(broker, topic, 60)
    with Reader(broker.pipeline()) as reader:
        seen: list[int] = []
        sweep = Sweep(
            reader,
            topic,
            lambda _, run: seen.extend(one.offset() or 0 for one in run),
            cancelled=threading.Event(),
            stall_s=PATIENCE_S,
        )
        (lane,) = sweep.read({0: (20, 80)})
        assert seen == list(range(60, 80))
        assert (lane.stop, lane.scanned, lane.removed) == (Stop.READ, 20, 40)
        (gone,) = sweep.read({0: (20, 50)})
        assert (gone.stop, gone.scanned, gone.removed) == (Stop.READ, 0, 30)


def await_end(broker: Broker, topic: str, end: int) -> None:
    with Reader(broker.pipeline(), uncommitted=True) as reader:
        until(lambda: reader.latest(topic, [0])[0] >= end, f"offset {end} of {topic}")


def remove(broker: Broker, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for done in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        done.result(PATIENCE_S)
