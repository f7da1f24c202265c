"""Scans find what is there, and say honestly what they read: on the mock cluster and on a real Apache Kafka."""

import random
import threading

import pytest
from confluent_kafka import Consumer, Message

from app.kafka.client import Reader
from app.kafka.errors import BrokerError
from app.kafka.query import Progress
from app.kafka.scan import Query, ScanResult, Stop, scan
from app.kafka.sweep import Sweep
from app.kafka.windows import PROBING, Log
from app.wire.records import AgentEnvelope, parse, serialize
from tests.fixtures.kafka import Broker
from tests.waiting import PATIENCE_S

NOW = 1_700_000_000_000


def envelope(key: bytes, time_ms: int, text: bytes = b"x") -> bytes:
    return serialize(AgentEnvelope(entity_key=key, event_time_ms=time_ms, external_event=text))


def decode(data: bytes) -> AgentEnvelope:
    return parse(AgentEnvelope, data)


def offsets(result: ScanResult[AgentEnvelope]) -> list[tuple[int, int]]:
    return [(one.record.partition, one.record.offset) for one in result.matches]


def test_a_key_is_found_in_whichever_partition(broker: Broker) -> None:
    # complaint 26
    topic = broker.topic(3)
    places = broker.write(topic, [(b"k%d" % (n % 50), b"v%d" % n) for n in range(1000)])
    result = scan(broker.pipeline(), topic, Query(key=b"k7", enough=None))
    assert offsets(result) == sorted(
        place for n, place in enumerate(sorted_by_value(broker, topic, places)) if n % 50 == 7
    )
    assert result.outcome == "found"
    assert result.scanned == 1000
    for report in result.partitions:
        assert report.complete
        assert report.stop is Stop.READ
        assert (report.start, report.end) == (report.low, report.high)
        assert report.absent == 0
    assert sum(report.matched for report in result.partitions) == 20


def sorted_by_value(broker: Broker, topic: str, places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Delivery reports come by partition; put the places into the order of writing, by looking at the values."""
    found = scan(broker.pipeline(), topic, Query(decode=bytes, match=lambda *_: True, enough=None)).matches
    by_number = {
        int(one.record.value[1:]): (one.record.partition, one.record.offset) for one in found if one.record.value
    }
    assert sorted(by_number.values()) == sorted(places)
    return [by_number[number] for number in range(len(places))]


def test_not_found_is_said_only_when_everything_was_read(broker: Broker) -> None:
    # complaint 26
    topic = broker.topic(2)
    broker.write(topic, [(b"k", b"v", NOW + n) for n in range(500)], partition=0)
    absent = scan(broker.pipeline(), topic, Query(key=b"nobody", around_ms=NOW))
    assert absent.outcome == "not_found"
    assert all(report.complete for report in absent.partitions)
    cancelled = threading.Event()
    cancelled.set()
    unread = scan(broker.pipeline(), topic, Query(key=b"nobody"), cancelled=cancelled)
    assert unread.outcome == "incomplete"
    assert unread.stops[0] is Stop.CANCELLED
    assert unread.partitions[1].complete  # there is nothing in it


def test_the_newest_record_is_found(broker: Broker) -> None:
    # complaint 26
    topic = broker.topic(1)
    broker.write(topic, [(b"old", b"") for _ in range(2500)])
    broker.write(topic, [(b"newest", b"!")])
    result = scan(broker.pipeline(), topic, Query(key=b"newest"))
    assert offsets(result) == [(0, 2500)]


def test_a_scan_can_be_cancelled_and_tells_its_progress(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.write(topic, [(b"k", b"v" * 20) for _ in range(20_000)])
    event, seen = threading.Event(), []

    def progress(one: Progress) -> None:
        seen.append(one)

    def stop_at(_: object, __: object) -> bool:
        event.set()
        return False

    result = scan(
        broker.pipeline(),
        topic,
        Query(decode=bytes, match=stop_at),
        cancelled=event,
        progress=progress,
    )
    assert result.outcome == "incomplete"
    assert result.stops == {0: Stop.CANCELLED}
    assert 0 < result.scanned < 20_000
    assert result.partitions[0].spans == ((0, result.scanned),)
    assert seen[-1].read == result.scanned
    assert seen[-1].total == 20_000


@pytest.mark.parametrize("codec", ["lz4", "zstd", "gzip", "snappy"])
def test_records_of_a_compressed_batch_below_the_asked_offset_are_dropped(broker: Broker, codec: str) -> None:
    # complaint 29
    topic = broker.topic(1)
    broker.write(
        topic,
        [(b"k", b"value %d" % n) for n in range(300)],
        compression_type=codec,
        linger_ms=500,
        batch_num_messages=300,
    )
    got: list[int] = []
    with Reader(broker.pipeline()) as reader:

        def take(_: int, run: list) -> None:  # type: ignore[type-arg]
            got.extend(message.offset() for message in run)

        (lane,) = Sweep(reader, topic, take, cancelled=threading.Event()).read({0: (37, 161)})
    assert got == list(range(37, 161))
    assert (lane.stop, lane.scanned, lane.next) == (Stop.READ, 124, 161)


def test_one_reader_reads_range_after_range_exactly(broker: Broker) -> None:
    # complaint 29: nothing of one assignment is taken for a part of the next
    topic = broker.topic(3)
    for partition in range(3):
        broker.write(topic, [(b"k", b"v" * 50) for _ in range(5000)], partition=partition, compression_type="lz4")
    chance = random.Random(5)
    with Reader(broker.pipeline(), extra={"fetch.wait.max.ms": 20}) as reader:
        got: dict[int, list[int]] = {}

        def take(partition: int, run: list) -> None:  # type: ignore[type-arg]
            got.setdefault(partition, []).extend(message.offset() for message in run)

        sweep = Sweep(reader, topic, take, cancelled=threading.Event())
        for _ in range(60):
            got.clear()
            chosen = chance.sample(range(3), chance.randrange(1, 4))
            ranges = {one: tuple(sorted(chance.choices(range(5001), k=2))) for one in chosen}
            lanes = sweep.read(ranges)
            assert {lane.stop for lane in lanes} == {Stop.READ}
            assert got == {one: list(range(*span)) for one, span in ranges.items() if span[0] < span[1]}


def test_time_narrows_the_search(broker: Broker) -> None:
    topic = broker.topic(2)
    for partition in (0, 1):
        broker.write(
            topic,
            [(b"k%d" % n, envelope(b"k%d" % n, NOW + n * 1000), NOW + n * 1000) for n in range(6000)],
            partition=partition,
        )
    result = scan(broker.pipeline(), topic, Query(key=b"k3000", around_ms=NOW + 3_000_000, slack_ms=60_000, enough=2))
    assert offsets(result) == [(0, 3000), (1, 3000)]
    assert result.scanned < 1000
    assert not any(report.complete for report in result.partitions)
    assert all(report.stop is Stop.FOUND for report in result.partitions)
    first, second = result.partitions
    assert first.start <= 3000 < first.end
    assert second.start <= 3000 < second.end


def test_a_wrong_time_widens_until_found(broker: Broker) -> None:
    # complaint 26
    topic = broker.topic(1)
    broker.write(topic, [(b"k%d" % n, b"v", NOW + n * 1000) for n in range(3000)])
    result = scan(broker.pipeline(), topic, Query(key=b"k2990", around_ms=NOW, slack_ms=1000))
    assert offsets(result) == [(0, 2990)]
    long_ago = scan(broker.pipeline(), topic, Query(key=b"k2990", around_ms=0, slack_ms=1000))
    assert offsets(long_ago) == [(0, 2990)]
    assert long_ago.partitions[0].scanned == 3000  # each record once, however many windows
    future = scan(broker.pipeline(), topic, Query(key=b"k5", around_ms=NOW * 2, slack_ms=1000))
    assert offsets(future) == [(0, 5)]


def test_shuffled_timestamps_hide_nothing(broker: Broker) -> None:
    # complaint 30
    topic = broker.topic(1)
    times = [NOW + n * 500 for n in range(4000)]
    random.Random(7).shuffle(times)
    broker.write(topic, [(b"k%d" % ((time - NOW) // 500), b"v", time) for time in times])
    pipeline = broker.pipeline()
    for number in (0, 17, 2000, 3999):
        result = scan(pipeline, topic, Query(key=b"k%d" % number, around_ms=NOW + number * 500, slack_ms=1000))
        assert offsets(result) == [(0, times.index(NOW + number * 500))]
    assert scan(pipeline, topic, Query(key=b"none", around_ms=NOW + 5, slack_ms=1000)).outcome == "not_found"


def test_slightly_disordered_timestamps_cost_little(broker: Broker) -> None:
    # complaint 30
    topic = broker.topic(1)
    chance = random.Random(3)
    times = [NOW + n * 1000 + chance.randrange(-20_000, 20_000) for n in range(8000)]
    broker.write(topic, [(b"k%d" % n, b"v", time) for n, time in enumerate(times)])
    for number in (10, 4000, 7990):
        result = scan(broker.pipeline(), topic, Query(key=b"k%d" % number, around_ms=times[number], slack_ms=60_000))
        assert offsets(result) == [(0, number)]
        assert result.scanned < 1500


def test_one_wrong_clock_does_not_lead_the_search_astray(broker: Broker) -> None:
    # complaint 30
    topic = broker.topic(1)
    hour = 3_600_000
    # Every ninth record comes from a producer whose clock is an hour ahead, another one from one that is behind.
    skew = {0: hour, 4: -hour}
    times = [NOW + n * 1000 + skew.get(n % 9, 0) for n in range(20_000)]
    broker.write(topic, [(b"k%d" % n, b"v", time) for n, time in enumerate(times)])
    for number in (5, 9001, 10_001, 19_991):
        result = scan(broker.pipeline(), topic, Query(key=b"k%d" % number, around_ms=NOW + number * 1000))
        assert offsets(result) == [(0, number)]
        assert broker.kind == "apache" or result.scanned < 2000


def test_every_partition_is_read_unless_a_partitioner_is_named(broker: Broker) -> None:
    # complaint 31
    topic = broker.topic(6)
    broker.write(topic, [(b"k%d" % n, b"v") for n in range(600)], partitioner="murmur2_random")
    plain = broker.pipeline(topics={"events": topic})
    assert "no `partitioner`" in scan(plain, topic, Query(key=b"k1")).order
    assert scan(plain, topic, Query(key=b"k1")).scanned == 600
    named = broker.pipeline(topics={"events": topic}, partitioner="murmur2")
    result = scan(named, topic, Query(key=b"k1"))
    assert result.outcome == "found"
    assert "first, the key's own by murmur2, as Java clients do" in result.order
    assert len([one for one in result.partitions if one.scanned]) == 1
    assert result.partitions[result.matches[0].record.partition].stop is Stop.READ
    # Another stream's producer is the pipeline itself, whose partitioner nobody named.
    elsewhere = broker.pipeline(topics={"traces": topic}, partitioner="murmur2")
    assert scan(elsewhere, topic, Query(key=b"k1")).order == "all partitions"


def test_a_wrongly_named_partitioner_costs_time_and_finds_the_record(broker: Broker) -> None:
    # complaint 31
    topic = broker.topic(6)
    broker.write(topic, [(b"k%d" % n, b"v", NOW + n) for n in range(600)], partitioner="consistent_random")
    named = broker.pipeline(topics={"events": topic}, partitioner="murmur2")
    for number in range(0, 600, 60):
        key = b"k%d" % number
        assert len(scan(named, topic, Query(key=key)).matches) == 1
        assert len(scan(named, topic, Query(key=key, around_ms=NOW)).matches) == 1
    missing = scan(named, topic, Query(key=b"nobody"))
    assert missing.outcome == "not_found"
    assert missing.scanned == 600


def test_tombstones_and_empty_values_are_no_decode_errors(broker: Broker) -> None:
    # complaint 32
    topic = broker.topic(1)
    broker.write(topic, [(b"k", None), (b"k", b""), (b"k", envelope(b"k", NOW)), (b"other", None)])
    result = scan(broker.pipeline(), topic, Query(key=b"k", decode=decode, enough=None))
    assert [one.record.size_text for one in result.matches] == ["tombstone", "0 bytes", "13 bytes"]
    assert [one.record.value for one in result.matches][:2] == [None, b""]
    assert result.matches[0].message is None
    assert result.matches[1].message == AgentEnvelope()
    assert result.undecodable == ()
    assert result.partitions[0].tombstones == 1
    picky = scan(
        broker.pipeline(), topic, Query(decode=decode, match=lambda _, one: one.entity_key == b"k", enough=None)
    )
    assert offsets(picky) == [(0, 2)]
    assert picky.partitions[0].undecodable == 0


def test_poison_is_kept_and_counted_and_the_scan_goes_on(broker: Broker) -> None:
    # complaint 33
    topic = broker.topic(2)
    poison = b"\xff\xff\xff not a message"
    for partition in (0, 1):
        broker.write(
            topic,
            [(b"k", poison), (b"k", envelope(b"k", NOW)), (None, poison), (b"k", envelope(b"k", NOW + 1))],
            partition=partition,
        )
    result = scan(
        broker.pipeline(), topic, Query(decode=decode, match=lambda _, one: one.entity_key == b"k", enough=None)
    )
    assert offsets(result) == [(0, 1), (0, 3), (1, 1), (1, 3)]
    assert [(one.record.topic, one.record.partition, one.record.offset) for one in result.undecodable] == [
        (topic, 0, 0),
        (topic, 0, 2),
        (topic, 1, 0),
        (topic, 1, 2),
    ]
    assert all(one.record.value == poison for one in result.undecodable)
    assert all("AgentEnvelope" in one.error for one in result.undecodable)
    assert [report.undecodable for report in result.partitions] == [2, 2]


def test_a_decoder_that_raises_anything_stops_nothing(broker: Broker) -> None:
    # complaint 33
    topic = broker.topic(1)
    broker.write(topic, [(b"k", b"%d" % n) for n in range(10)])

    def hook(data: bytes) -> int:
        return [0][int(data)] or 1 // int(data)

    result = scan(broker.pipeline(), topic, Query(decode=hook, enough=None))
    assert result.partitions[0].undecodable == 10
    assert {one.error.split(":")[0] for one in result.undecodable} == {"IndexError", "ZeroDivisionError"}


def test_the_empty_key_is_a_key(broker: Broker) -> None:
    # complaint 31
    topic = broker.topic(4)
    broker.write(topic, [(b"", b"empty"), (None, b"none"), (b"k", b"some")])
    result = scan(broker.pipeline(), topic, Query(key=b"", enough=None))
    assert [one.record.value for one in result.matches] == [b"empty"]
    drawn = broker.pipeline(topics={"events": topic}, partitioner="consistent_random")
    assert "by chance for the empty key" in scan(drawn, topic, Query(key=b"")).order
    assert scan(drawn, topic, Query(key=b"")).outcome == "found"


def test_what_cannot_match_is_not_decoded(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.write(topic, [(b"k%d" % n, envelope(b"k", NOW + n, b"intent-%d" % n)) for n in range(200)])
    decoded = []

    def counting(data: bytes) -> AgentEnvelope:
        decoded.append(data)
        return decode(data)

    query = Query(contains=(b"intent-7",), decode=counting, match=lambda _, one: one.external_event == b"intent-7")
    assert offsets(scan(broker.pipeline(), topic, query)) == [(0, 7)]
    assert len(decoded) == 11


def test_limits_stop_a_search_that_matches_too_much(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.write(topic, [(b"k", b"v" * 100) for _ in range(3000)])
    result = scan(broker.pipeline(), topic, Query(key=b"k", enough=None, most=150))
    assert len(result.matches) == 150
    assert result.stops == {0: Stop.LIMIT}
    assert result.partitions[0].spans == ((0, 150),)
    small = scan(broker.pipeline(), topic, Query(key=b"k", enough=None, most_bytes=1010))
    assert len(small.matches) == 10


def test_a_search_can_stop_at_once(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.write(topic, [(b"k%d" % n, b"v") for n in range(3000)])
    result = scan(broker.pipeline(), topic, Query(key=b"k3", at_once=True))
    assert result.stops == {0: Stop.FOUND}
    assert result.partitions[0].spans == ((0, 4),)


class Prompt(Consumer):
    """A client that is never told to wait until so many messages are there: only for the first one."""

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        assert num_messages == 1 or timeout == 0
        assert timeout >= 0
        return super().consume(num_messages, timeout)


def test_nothing_waits_for_a_batch_to_fill(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    # complaint 49: in an empty topic, and behind the last short batch of another, a scan waited 5 s
    monkeypatch.setattr("app.kafka.client.Consumer", Prompt)
    empty = scan(broker.pipeline(), broker.topic(3), Query(key=b"k", around_ms=NOW))
    assert empty.outcome == "not_found"
    topic = broker.topic(1)
    broker.write(topic, [(b"k", b"v") for _ in range(1001)])
    result = scan(broker.pipeline(), topic, Query(key=b"none"))
    assert (result.outcome, result.scanned) == ("not_found", 1001)


def test_a_topic_that_is_not_there_is_named_and_not_made(broker: Broker) -> None:
    pipeline = broker.pipeline(topics={"traces": "no-such-topic"})
    with pytest.raises(BrokerError, match=r"'no-such-topic'.*create it, or correct `topics.traces`"):
        scan(pipeline, "no-such-topic", Query(key=b"k"))
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "look"})
    assert "no-such-topic" not in consumer.list_topics(timeout=PATIENCE_S).topics
    consumer.close()


def test_bisecting_agrees_with_the_time_index(broker: Broker) -> None:
    topic = broker.topic(3)
    for partition in range(2):
        broker.write(topic, [(None, b"v", NOW + n * 10) for n in range(5000)], partition=partition)
    with Reader(broker.pipeline(), uncommitted=True, extra=PROBING) as reader:
        log = Log(reader, topic)
        for wanted in (0, NOW - 1, NOW, NOW + 15, NOW + 30_001, NOW + 49_990, NOW + 50_001, NOW * 2):
            times = dict.fromkeys(range(3), wanted)
            exact = min(max(0, -(-(wanted - NOW) // 10)), 5000)
            bisected = log._bisect(times)
            for begin, end in ((log.begin(times), log.end(times)), bisected):
                assert begin[2] == end[2] == 0
                # Bisecting stops a little outside, never inside.
                for partition in range(2):
                    assert exact - 130 <= begin[partition] <= exact <= end[partition] <= exact + 130, wanted
