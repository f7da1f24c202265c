"""Reading and writing whole topics of the in-process broker."""

from collections.abc import Callable, Iterable
from typing import Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from app.pipeline.embedded import Topics
from app.pipeline.keyed import Stream
from app.wire.records import AgentEnvelope, serialize
from tests.waiting import PATIENCE_S, until


class Cluster(Protocol):
    """Any broker in which topics can be made."""

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic."""


def make(broker: Cluster, topics: Topics, events_partitions: int = 1) -> None:
    """Make a pipeline's topics; one partition each, so that each has one order."""
    broker.create(topics.events, events_partitions)
    make_streams(broker, topics)


def make_streams(broker: Cluster, topics: Topics) -> None:
    """Make all but the events topic."""
    for stream in Stream:
        broker.create(topics.of(stream), 1)


class Writer:
    """Sends envelopes to events topics."""

    def __init__(self, address: str) -> None:
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "enable.idempotence": True})

    def send(self, topic: str, *envelopes: AgentEnvelope, partition: int = 0) -> None:
        """Send them and wait until they are there."""
        for envelope in envelopes:
            self.send_bytes(topic, envelope.entity_key, serialize(envelope), partition)
        self.flush()

    def send_bytes(self, topic: str, key: bytes, value: bytes | None, partition: int = 0) -> None:
        self._producer.produce(topic, value, key, partition=partition)

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0


class Reader:
    """Reads the topics of a pipeline's streams from their beginning on; `records` holds (key, value) pairs."""

    def __init__(self, address: str, topics: Topics) -> None:
        self._streams = {topics.of(stream): stream for stream in Stream}
        self._passed = dict.fromkeys(self._streams, 0)
        self.forget()
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False, "fetch.wait.max.ms": 20}
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in self._streams])

    def forget(self) -> None:
        """Drop what was read so far, and only that."""
        self.records: dict[Stream, list[tuple[bytes, bytes]]] = {stream: [] for stream in Stream}

    def values(self) -> dict[Stream, list[bytes]]:
        return {stream: [value for _, value in pairs] for stream, pairs in self.records.items()}

    def read_up(self) -> None:
        """Read up to the present ends."""
        wanted = {
            topic: self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)[1]
            for topic in self._streams
        }
        self.read_until(lambda: all(self._passed[topic] >= end for topic, end in wanted.items()))

    def read_until(self, done: Callable[[], bool]) -> None:
        """Read on until a condition holds."""

        def read() -> bool:
            if not done():
                self._read()
            return done()

        until(read, lambda: {stream: len(pairs) for stream, pairs in self.records.items()}, pause_s=0)

    def _read(self) -> None:
        for message in self._consumer.consume(500, 0.05):
            error, topic, key, value = message.error(), message.topic(), message.key(), message.value()
            assert error is None, error
            assert topic is not None
            self._passed[topic] += 1
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            self.records[self._streams[topic]].append((key, value))

    def close(self) -> None:
        self._consumer.close()


def first_occurrences(values: Iterable[bytes]) -> list[bytes]:
    """What a stream holds when repetitions are left out."""
    return list(dict.fromkeys(values))
