"""Ask a running pipeline for a key's state, and know its answer when it comes.

Three steps, so that a crash between any two loses nothing: `prepare` says where the request will go and what clock it
will carry; whoever asks stores that with the request id; `publish` sends it. Sending the same request again is
harmless: equal answers are one, and different ones are all kept.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from app.kafka.answers import Answers
from app.kafka.client import TIMEOUT_S, Reader, Writer
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError, Cancelled
from app.kafka.partition import partition_of
from app.kafka.records import record_of
from app.kafka.tail import Tail, read_tail
from app.kafka.troubles import OUT_OF_RANGE
from app.wire.records import AgentEnvelope, serialize

__all__ = ["Exporter", "Request", "SnapshotTap", "Target", "export_once", "new_request_id"]

# New records do not wake a fetch that waits at librdkafka's mock cluster.
_PROMPT: Final = {"fetch.wait.max.ms": 20}


def new_request_id() -> str:
    """Make a request id that nobody can guess: 128 random bits in hex."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Target:
    """Where a key's export request goes, and which clock it may carry.

    `event_time_ms` is no later than the latest event time seen at the end of the partition (`latest_event_ms`), nor
    than the wall clock; 0 where no event was seen. `lag_ms` is how far the partition's events are behind the wall
    clock (negative: ahead of it), `behind` how many records the pipeline's consumer group has still to read, each None
    where that is not known. `chosen_by` says in words how the partition was chosen.
    """

    pipeline: str
    topic: str
    key: bytes
    partition: int
    partitions: int
    chosen_by: str
    event_time_ms: int
    timestamp_ms: int
    latest_event_ms: int | None
    wall_ms: int
    behind: int | None

    @property
    def lag_ms(self) -> int | None:
        return None if self.latest_event_ms is None else self.wall_ms - self.latest_event_ms


@dataclass(frozen=True)
class Request:
    """A published export request, and where it lies."""

    request_id: str
    key: bytes
    topic: str
    partition: int
    offset: int
    event_time_ms: int


class Exporter:
    """Publishes export requests to one pipeline. One thread at a time; `close` it, or use it in a `with`."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        timeout_s: float = TIMEOUT_S,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.pipeline = pipeline
        self._timeout_s = timeout_s
        self._now_ms = now_ms
        self._reader: Reader | None = None
        self._writer: Writer | None = None

    def prepare(self, key: bytes, *, cancelled: threading.Event | None = None) -> Target:
        """Find out where a request for a key goes, and when it is there; publishes nothing. Raises `BrokerError`."""
        topic = self._topic()
        reader = self._reading()
        self._writing()  # it takes its time to get ready, and may do so while we read
        partitions = reader.partitions(topic)
        partition, chosen_by = self._place(key, len(partitions))
        tail = read_tail(reader, topic, partition, cancelled=cancelled, stall_s=self._timeout_s)
        reader.assign({})
        wall = self._now_ms()
        return Target(
            self.pipeline.name,
            topic,
            key,
            partition,
            len(partitions),
            chosen_by,
            event_time_ms=min(tail.latest_event_ms or 0, wall),
            timestamp_ms=_record_time(tail, wall),
            latest_event_ms=tail.latest_event_ms,
            wall_ms=wall,
            behind=self._behind(topic, partition, tail.end),
        )

    def publish(self, target: Target, request_id: str) -> Request:
        """Send a request and wait until the broker has it. Raises `BrokerError`; see `Writer.send` about time-outs."""
        envelope = AgentEnvelope(entity_key=target.key, event_time_ms=target.event_time_ms)
        envelope.export_request.request_id = request_id
        partition, offset = self._writing().send(
            target.topic, target.partition, target.key, serialize(envelope), target.timestamp_ms
        )
        return Request(request_id, target.key, target.topic, partition, offset, target.event_time_ms)

    def close(self) -> None:
        """Let go of the connections; harmless when repeated."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _topic(self) -> str:
        topics = self.pipeline.topics
        if topics.exports_to is not None:
            return topics.exports_to
        if sum(one.kind == "envelope" for one in topics.events) > 1:
            raise BrokerError(
                self.pipeline.name,
                "several topics carry envelopes, and none is marked for export requests",
                "set `exports = true` for the one in `topics.events` that the pipeline takes them from",
            )
        raise BrokerError(
            self.pipeline.name,
            "no topic takes export requests",
            'name the topic of the pipeline\'s envelopes: `topics.events = "…"`',
        )

    def _place(self, key: bytes, partitions: int) -> tuple[int, str]:
        """Choose the partition as the pipeline's own producers do: elsewhere the request would overtake events."""
        partitioner = self.pipeline.partitioner
        if partitions == 1:
            return 0, "the topic has one partition"
        if partitioner is None:
            raise BrokerError(
                self.pipeline.name,
                "no partitioner is configured, so the partition of a key is not known",
                "set `partitioner` to what the producers of the events topic use (Java: murmur2; librdkafka:"
                " consistent_random; Sarama: fnv1a); `hindcast check` tells which ones fit the records",
            )
        own = partition_of(key, partitions, partitioner)
        if own is None:
            return secrets.randbelow(partitions), f"drawn by chance, as {partitioner} does for the empty key"
        return own, f"the key's own by {partitioner.told}"

    def _behind(self, topic: str, partition: int, end: int) -> int | None:
        """Count what the pipeline has still to read, where it commits offsets; a hint, so no failure of ours."""
        if self.pipeline.group is None:
            return None
        try:
            with Reader(self.pipeline, timeout_s=self._timeout_s, group=self.pipeline.group) as reader:
                committed = reader.committed(topic, partition)
        except BrokerError:
            return None
        return None if committed is None else max(0, end - committed)

    def _writing(self) -> Writer:
        if self._writer is None or self._writer.broken:
            self._writer = Writer(self.pipeline, timeout_s=self._timeout_s)
        return self._writer

    def _reading(self) -> Reader:
        if self._reader is None:
            self._reader = Reader(self.pipeline, timeout_s=self._timeout_s, extra=_PROMPT)
        return self._reader


class SnapshotTap:
    """Follows the snapshots topic from the moment it is made; make it before publishing, so that nothing is missed."""

    def __init__(self, pipeline: Pipeline, *, timeout_s: float = TIMEOUT_S) -> None:
        topic = pipeline.topics.snapshots
        if topic is None:
            raise BrokerError(
                pipeline.name,
                "no snapshots topic is configured, so no answer can be seen",
                "set `topics.snapshots` to the topic that the pipeline's `snapshots_to` names",
            )
        self._topic = topic
        self._reader = Reader(pipeline, timeout_s=timeout_s, extra=_PROMPT)
        try:
            self._next = self._reader.latest(topic, self._reader.partitions(topic))
            self._assign()
        except BaseException:
            self._reader.close()
            raise

    @property
    def trouble(self) -> str | None:
        """What keeps us from the broker at the moment."""
        return self._reader.trouble

    def wait(self, answers: Answers, timeout_s: float, *, cancelled: threading.Event | None = None) -> bool:
        """Offer what arrives to `answers` until it has learnt something new; False when the time is over first.

        Whatever has arrived by then is offered, so call it again for later answers. Raises `Cancelled`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if cancelled is not None and cancelled.is_set():
                raise Cancelled
            left = deadline - time.monotonic()
            news = False
            for message in self._reader.batch(100, min(max(left, 0.0), 0.2)):
                error = message.error()
                if error is None:
                    self._next[message.partition() or 0] = (message.offset() or 0) + 1
                    news = answers.offer(record_of(message)) or news
                elif error.code() == OUT_OF_RANGE:
                    self._next = self._reader.earliest(self._topic, self._next)
                    self._assign()
            if news or left <= 0:
                return news

    def close(self) -> None:
        """Let go of the connections; harmless when repeated."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _assign(self) -> None:
        self._reader.assign({(self._topic, partition): offset for partition, offset in self._next.items()})


def export_once(
    pipeline: Pipeline, key: bytes, *, timeout_s: float = 30.0, cancelled: threading.Event | None = None
) -> tuple[Request, Answers]:
    """Export a key from beginning to end, for a command line: the request, and its answers, if any came in time.

    Raises `BrokerError` and `Cancelled`.
    """
    request_id = new_request_id()
    answers = Answers({request_id: key})
    with SnapshotTap(pipeline) as tap, Exporter(pipeline) as exporter:
        request = exporter.publish(exporter.prepare(key, cancelled=cancelled), request_id)
        deadline = time.monotonic() + timeout_s
        while not answers.states(request_id) and time.monotonic() < deadline:
            tap.wait(answers, deadline - time.monotonic(), cancelled=cancelled)
    return request, answers


def _record_time(tail: Tail, wall: int) -> int:
    """The record's own timestamp, which some pipelines take for the event's: no later than the last one's either."""
    return wall if tail.latest_record_ms is None else min(tail.latest_record_ms, wall)
