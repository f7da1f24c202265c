"""Following a pipeline's streams: every record once, in order, with what is lost told; whatever happens in between."""

import itertools
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from app.kafka.config import Pipeline
from app.kafka.intake import Batch, Follower, Gap, GapReason, Place, Start
from app.kafka.records import Record
from app.kafka.topics import Stream
from tests.fixtures.kafka import Broker
from tests.waiting import PATIENCE_S, until

NOW = 1_700_000_000_000


@pytest.fixture
def pipeline(broker: Broker) -> Pipeline:
    return broker.pipeline(
        topics={
            "traces": broker.topic(3),
            "snapshots": broker.topic(1),
            "intents": broker.topic(2),
            "outputs": broker.topic(1),
            "errors": broker.topic(1),
        }
    )


def gather(
    follower: Follower,
    done: Callable[[], bool] | None = None,
    *,
    enough: Callable[[list[Batch | Gap]], bool] | None = None,
) -> list[Batch | Gap]:
    """Pull until the follower has caught up, or until something else is true, or until there is enough."""
    got: list[Batch | Gap] = []

    def over() -> bool:
        if enough is not None:
            return enough(got)
        return follower.caught_up if done is None else done()

    def pulled() -> bool:
        if not over():
            got.extend(follower.pull(0.2))
        return over()

    until(pulled, lambda: f"all of it; trouble: {follower.trouble}", pause_s=0)
    return got


def records(got: list[Batch | Gap]) -> list[Record]:
    return [record for one in got if isinstance(one, Batch) for record in one.records]


def places(got: list[Batch | Gap]) -> list[tuple[str, int, int]]:
    return [(record.topic, record.partition, record.offset) for record in records(got)]


def traces(pipeline: Pipeline) -> str:
    return pipeline.topics.traces or ""


def test_everything_is_delivered_once_and_raw(broker: Broker, pipeline: Pipeline) -> None:
    written = {}
    for stream, topic in pipeline.topics.followed().items():
        written[stream] = broker.write(
            topic, [(b"k%d" % n, b"%s %d" % (stream.encode(), n), NOW + n) for n in range(700)]
        )
    with Follower(pipeline, {}, most_records=300) as follower:
        got = gather(follower)
        assert follower.trouble is None
        assert follower.missing == {}
        assert all(lag == 0 for lag in follower.lags().values())
    for stream, topic in pipeline.topics.followed().items():
        mine = [one for one in records(got) if one.topic == topic]
        assert sorted((one.partition, one.offset) for one in mine) == sorted(written[stream])
        assert len({one.value for one in mine}) == 700
        assert all(one.timestamp_type == "create" and one.timestamp_ms is not None for one in mine)
        assert {one.stream for one in got if one.topic == topic} == {stream}
    for batch in got:
        assert isinstance(batch, Batch)
        assert batch.absent == 0
        assert [one.offset for one in batch.records] == list(range(batch.expected, batch.next_offset))


def test_headers_keys_and_tombstones_are_kept(broker: Broker, pipeline: Pipeline) -> None:
    # complaint 32
    producer = broker.producer()
    topic = pipeline.topics.snapshots or ""
    producer.produce(topic, None, key=b"\x00\xff", headers=[("a", b"1"), ("a", None), ("b", b"")], timestamp=NOW)
    producer.produce(topic, b"", key=None, timestamp=NOW + 1)
    producer.flush(PATIENCE_S)
    with Follower(pipeline, {}) as follower:
        first, second = records(gather(follower))
    assert first == (topic, 0, 0, NOW, "create", b"\x00\xff", None, (("a", b"1"), ("a", None), ("b", b"")))
    assert second == (topic, 0, 1, NOW + 1, "create", None, b"", ())
    assert [first.size_text, second.size_text] == ["tombstone", "0 bytes"]


def test_it_goes_on_from_stored_offsets(broker: Broker, pipeline: Pipeline) -> None:
    topic = traces(pipeline)
    broker.write(topic, [(b"k%d" % n, b"v%d" % n) for n in range(2000)])
    stored: dict[Place, int] = {}
    seen: list[tuple[str, int, int]] = []
    # A process that dies after every pull, having stored what it was handed.
    while len(seen) < 2000:
        with Follower(pipeline, stored, most_records=150) as follower:
            got = gather(follower, enough=bool)
            seen += places(got)
            stored |= {(one.topic, one.partition): one.next_offset for one in got}
    assert len(seen) == len(set(seen)) == 2000


def test_what_could_not_be_stored_comes_again(broker: Broker, pipeline: Pipeline) -> None:
    topic = traces(pipeline)
    broker.write(topic, [(b"k%d" % n, b"v") for n in range(900)])
    with Follower(pipeline, {}, most_records=200) as follower:
        kept: list[tuple[str, int, int]] = []
        stored = dict.fromkeys(((topic, partition) for partition in range(3)), 0)
        for turn in itertools.count():
            got = gather(follower, enough=bool)
            if turn % 2:
                follower.rewind(stored)  # the transaction was rolled back
                continue
            kept += places(got)
            stored |= {(one.topic, one.partition): one.next_offset for one in got}
            if len(kept) >= 900:
                break
    assert sorted(kept) == sorted(set(kept))
    assert len(kept) == 900


def test_where_to_begin_without_a_stored_offset(broker: Broker, pipeline: Pipeline) -> None:
    topic = traces(pipeline)
    for partition in range(3):
        broker.write(topic, [(b"old", b"v", NOW + n * 1000) for n in range(1000)], partition=partition)
    with Follower(pipeline, {}, start=Start.END, streams=[Stream.TRACES]) as follower:
        assert gather(follower) == []
        broker.write(topic, [(b"new", b"v", NOW + 2_000_000)])
        got = gather(follower, enough=bool)
        assert [one.key for one in records(got)] == [b"new"]
    with Follower(pipeline, {}, start=NOW + 900_000, streams=[Stream.TRACES]) as follower:
        found = records(gather(follower))
        old = [one for one in found if one.key == b"old"]
        # No record of that time or later is left out, and not many earlier ones come along.
        assert 300 <= len(old) <= 300 + 3 * 130
        assert {one.offset for one in old} >= set(range(900, 1000))


def test_a_pull_is_bounded(broker: Broker, pipeline: Pipeline) -> None:
    broker.write(pipeline.topics.outputs or "", [(b"k", b"v" * 1000) for _ in range(3000)])

    def pulls(most_records: int, most_bytes: int) -> list[int]:
        limits = {"most_records": most_records, "most_bytes": most_bytes}
        sizes: list[int] = []
        with Follower(pipeline, {}, streams=[Stream.OUTPUTS], **limits) as follower:

            def all_there() -> bool:
                sizes.append(len(records(follower.pull(1.0))))
                return sum(sizes) >= 3000

            until(all_there, lambda: sizes, pause_s=0)
        return sizes

    assert max(pulls(1100, 10_000_000)) <= 1100
    assert max(pulls(100_000, 1_000_000)) <= 2000  # the limit, and one chunk of the client more


def test_a_topic_that_comes_later_is_read_from_its_beginning(broker: Broker) -> None:
    late = f"late-{uuid.uuid4().hex}"
    pipeline = broker.pipeline(topics={"traces": broker.topic(1), "errors": late})
    with Follower(pipeline, {}, start=Start.END, refresh_s=0.1) as follower:
        gather(follower, lambda: late in follower.missing)
        assert "create it, or correct `topics.errors`" in follower.missing[late]
        broker.write(pipeline.topics.traces or "", [(b"k", b"v")])
        broker.create(late, 2, {})
        broker.write(late, [(b"k", b"first")], partition=1)
        got = gather(follower, enough=lambda got: len(records(got)) >= 2)
        assert {one.value for one in records(got)} == {b"v", b"first"}
        assert follower.missing == {}


@pytest.mark.timeout(1200)
class TestApache:
    """What only a real broker can do."""

    def test_markers_and_aborted_records_are_absent(self, apache_broker: Broker) -> None:
        # complaint 27
        topic = apache_broker.topic(1)
        producer = apache_broker.producer(transactional_id=f"intake-{uuid.uuid4()}")
        producer.init_transactions(PATIENCE_S)
        for keep in (True, False, True):
            producer.begin_transaction()
            for n in range(10):
                producer.produce(topic, b"%d" % n, partition=0)
            producer.flush(PATIENCE_S)
            (producer.commit_transaction if keep else producer.abort_transaction)()
        with Follower(apache_broker.pipeline(topics={"traces": topic}), {}) as follower:
            got = gather(follower, lambda: bool(follower.positions) and follower.positions[topic, 0] >= 32)
            assert len(records(got)) == 20
            assert sum(one.absent for one in got if isinstance(one, Batch)) == 12
            gather(follower)  # the marker at the tail does not hold it back

    def test_new_partitions_are_found_and_read_from_their_beginning(self, apache_broker: Broker) -> None:
        from confluent_kafka.admin import NewPartitions

        topic = apache_broker.topic(1)
        pipeline = apache_broker.pipeline(topics={"traces": topic})
        with Follower(pipeline, {}, start=Start.END, refresh_s=0.1) as follower:
            gather(follower)
            admin = AdminClient({"bootstrap.servers": apache_broker.address})
            for done in admin.create_partitions([NewPartitions(topic, 3)]).values():
                done.result(PATIENCE_S)
            apache_broker.write(topic, [(b"k", b"v")], partition=2)
            got = gather(follower, enough=bool)
            assert places(got) == [(topic, 2, 0)]

    def test_what_retention_removed_meanwhile_is_told(self, apache_broker: Broker) -> None:
        topic = apache_broker.topic(2)
        admin = AdminClient({"bootstrap.servers": apache_broker.address})
        for partition in range(2):
            apache_broker.write(topic, [(b"k", b"v") for _ in range(50)], partition=partition)
        for done in admin.delete_records([TopicPartition(topic, 1, 30)]).values():
            done.result(PATIENCE_S)
        with Follower(apache_broker.pipeline(topics={"traces": topic}), {(topic, 0): 10, (topic, 1): 10}) as follower:
            got = gather(follower)
        assert [one for one in got if isinstance(one, Gap)] == [Gap(Stream.TRACES, topic, 1, 10, 30, GapReason.REMOVED)]
        assert sorted(places(got)) == [(topic, 0, n) for n in range(10, 50)] + [(topic, 1, n) for n in range(30, 50)]
        assert all(one.absent == 0 for one in got if isinstance(one, Batch))

    def test_a_topic_that_was_made_anew_is_told(self, apache_broker: Broker) -> None:
        topic = apache_broker.topic(1)
        apache_broker.write(topic, [(b"k", b"v") for _ in range(5)])
        with Follower(apache_broker.pipeline(topics={"traces": topic}), {(topic, 0): 5000}) as follower:
            got = gather(follower)
        assert got[0] == Gap(Stream.TRACES, topic, 0, 5000, 0, GapReason.ANEW)
        assert len(records(got)) == 5

    def test_snapshots_of_many_megabytes(self, apache_broker: Broker) -> None:
        # complaint 34
        topic = apache_broker.topic(1, max_message_bytes=60_000_000)
        apache_broker.write(topic, [(b"k", bytes([n]) * 20_000_000) for n in range(4)] + [(b"k", b"s" * 50_000_000)])
        with Follower(apache_broker.pipeline(topics={"snapshots": topic}), {}) as follower:
            pulls: list[list[Record]] = []

            def all_there() -> bool:
                pulls.append(records(follower.pull(1.0)))
                return sum(map(len, pulls)) >= 5

            until(all_there, lambda: follower.trouble, pause_s=0)
        assert [len(one.value or b"") for pull in pulls for one in pull] == [20_000_000] * 4 + [50_000_000]
        # What is fetched ahead is bounded: never everything at once.
        assert max(sum(one.size for one in pull) for pull in pulls) < 110_000_000
