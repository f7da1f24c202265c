"""The pipeline in one process on one Kafka consumer: for the demo and the tests, not for production.

Production runs the same processor on Beam (`app.pipeline.beam`). Here one process reads every partition, states
live in its memory, and nothing takes over when the machine is gone. What it does promise: after a kill at any
moment nothing is lost, and what is sent again has the same bytes. Each group of turns is written to the journal -
states, offsets and outgoing records in one piece - before any of it is sent; a restart goes on from there and
sends again what may not have arrived. Topics therefore get every record at least once, in order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from app.pipeline.emission import Stream, encode
from app.pipeline.journal import Journal, Outgoing
from app.pipeline.keyspace import EVENT_TIME, PROCESSING_TIME, Keyspace, Turned
from app.pipeline.state import KeyState, Timer
from app.pipeline.turn import KeySettings
from app.pipeline.watermark import EventTimeWatermark, Watermark
from app.runtime.config import AgentConfig
from app.wire.records import AgentEnvelope, RecordError, parse

__all__ = ["EmbeddedPipeline", "PipelineStopped", "Topics"]

_log = logging.getLogger(__name__)

_BATCH: Final = 500
_IDLE_POLL_S: Final = 0.05
_GROUP_S: Final = 0.05
_GROUP_BYTES: Final = 4 * 1024 * 1024
_START_S: Final = 30.0

_PRODUCER: Final = {"message.max.bytes": 16 * 1024 * 1024, "linger.ms": 2}
_OUR_PRODUCER: Final = {"enable.idempotence": True}
_CONSUMER: Final = {"group.id": "hindcast-embedded", "fetch.wait.max.ms": 20}
_OUR_CONSUMER: Final = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # The journal knows where to go on. Where the topic does not, that is for a person to decide.
    "auto.offset.reset": "error",
}
_PASSING: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})  # noqa: SLF001


class PipelineStopped(Exception):
    """The pipeline cannot go on; the text says what happened and what to do. A restart loses nothing."""


@dataclass(frozen=True)
class Topics:
    """The topic that is read, and one for each stream that leaves."""

    events: str
    traces: str
    snapshots: str
    intents: str
    outputs: str
    errors: str

    @classmethod
    def below(cls, prefix: str) -> Topics:
        """The usual names: `<prefix>.events`, `<prefix>.traces`, and so on."""
        return cls(*(f"{prefix}.{name}" for name in ("events", "traces", "snapshots", "intents", "outputs", "errors")))

    def of(self, stream: Stream) -> str:
        """The topic of a stream."""
        name: str = getattr(self, stream)
        return name


class EmbeddedPipeline:
    """One pipeline from `open` to `close`; a context manager does both. After an exception it is of no more use.

    `kafka` holds librdkafka settings for both clients, at least `bootstrap.servers`. `wall` is the wall clock in
    epoch milliseconds. Not for several threads, except for `stop`.
    """

    def __init__(
        self,
        agent: Callable[..., Any],
        config: AgentConfig,
        topics: Topics,
        kafka: Mapping[str, Any],
        journal: Path,
        *,
        sync: bool = False,
        wall: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        watermark: Watermark | None = None,
    ) -> None:
        _refuse_sinks(config)
        self._topics = topics
        self._kafka = dict(kafka)
        self._path, self._sync = journal, sync
        self._agent, self._config = agent, config
        self._wall = wall
        self._given_watermark = watermark
        self._stopping = threading.Event()
        self._undeliverable: list[str] = []
        self._group = _Group()
        self.unreadable = 0

    # Life

    def open(self) -> None:
        """Read the journal, send again what may not have arrived, and take up reading where it says.

        Raises JournalError, or PipelineStopped where the events topic is not there.
        """
        with ExitStack() as opened:
            self._journal = opened.enter_context(Journal(self._path, sync=self._sync))
            kept, settings = self._journal.kept, KeySettings.open(self._agent, self._config)
            self._keys = opened.enter_context(closing(Keyspace(settings, self._wall, kept.states)))
            self._producer = Producer({**_PRODUCER, **self._kafka, **_OUR_PRODUCER}, logger=_log)
            opened.callback(self._forget_queue)
            self._consumer = Consumer({**_CONSUMER, **self._kafka, **_OUR_CONSUMER}, logger=_log)
            opened.callback(self._stop_reading)
            self._send(kept.unsent)
            self._deliver()
            partitions = self._partitions()
            self._watermark = self._given_watermark or EventTimeWatermark(partitions, kept.watermark_ms)
            self._consumer.assign(
                [
                    TopicPartition(self._topics.events, partition, kept.offsets.get(partition, OFFSET_BEGINNING))
                    for partition in partitions
                ]
            )
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Leave; what has not arrived yet is sent again by the next start."""
        self._opened.close()

    def _stop_reading(self) -> None:
        self._consumer.close()

    def _forget_queue(self) -> None:
        self._producer.purge()
        self._producer.flush(1.0)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Work

    def run(self) -> None:
        """Take elements and fire timers until `stop`; raises PipelineStopped, or what `poll` raises."""
        while not self._stopping.is_set():
            self.poll(_IDLE_POLL_S)
            self.fire_due()

    def stop(self) -> None:
        """Let `run` return after the turn it is in; may be called from another thread or a signal handler."""
        self._stopping.set()

    def poll(self, timeout_s: float) -> int:
        """Take what is there to read, waiting up to `timeout_s` for the first; returns how many elements that were.

        When it returns, all of it is committed and sent. Raises PipelineStopped where the broker refuses, NotBytes
        for an output that is none, StateMigrationError for state of another version; nothing is lost then.
        """
        first = self._consumer.poll(timeout_s)
        if first is None:
            return 0
        taken = 0
        for message in (first, *self._consumer.consume(_BATCH - 1, 0)):
            taken += self._take(message)
            if self._stopping.is_set():
                break
        self._commit()
        return taken

    def fire_due(self, timers: tuple[Timer, ...] = (*EVENT_TIME, *PROCESSING_TIME)) -> None:
        """Fire what is due by the watermark or by the wall clock; raises what `poll` raises."""
        wall_ms = self._wall()
        if set(timers) & set(EVENT_TIME):
            self._gather_all(self._keys.fire_due(EVENT_TIME, self._watermark.value(wall_ms)))
        if set(timers) & set(PROCESSING_TIME):
            self._gather_all(self._keys.fire_due(PROCESSING_TIME, wall_ms))
        self._commit()

    def _take(self, message: Message) -> int:
        error, partition, offset = message.error(), message.partition(), message.offset()
        assert partition is not None
        if error is not None:
            self._trouble(error, partition)
            return 0
        assert offset is not None
        self._group.offsets[partition] = offset + 1
        envelope = self._read(message)
        if envelope is None:
            return 0
        self._gather(self._keys.process(envelope.entity_key, envelope))
        # An export request changes nothing, so its stamp does not move time either.
        if not envelope.HasField("export_request"):
            self._watermark.saw(partition, envelope.event_time_ms)
        self._gather_all(self._keys.fire_due(EVENT_TIME, self._watermark.value(self._wall())))
        return 1

    def _read(self, message: Message) -> AgentEnvelope | None:
        """The envelope in a record; what is none cannot be taken by anybody, so it is told and passed over."""
        value = message.value()
        try:
            return None if value is None else parse(AgentEnvelope, value)
        except RecordError as error:
            self.unreadable += 1
            _log.warning("%s[%d] offset %d: %s", message.topic(), message.partition(), message.offset(), error)
            return None

    def _trouble(self, error: KafkaError, partition: int) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - that is its public name
            self._watermark.drained(partition)
        elif error.retriable() or error.code() in _PASSING:
            _log.warning("reading %s[%d]: %s", self._topics.events, partition, error.str())
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            raise PipelineStopped(
                f"{self._topics.events}[{partition}] no longer holds the offset at which {self._path} goes on"
                f" ({error.str()}): the topic was cut or made anew; remove the journal to begin from what is there"
            )
        else:
            raise PipelineStopped(f"cannot read {self._topics.events}[{partition}]: {error.str()}")

    # Commit and delivery

    def _gather_all(self, turns: Iterable[Turned]) -> None:
        for turned in turns:
            self._gather(turned)

    def _gather(self, turned: Turned) -> None:
        self._group.add(turned)
        # A slow turn does not hold up what earlier ones have to say.
        if self._group.bytes > _GROUP_BYTES or time.monotonic() - self._group.began > _GROUP_S:
            self._commit()

    def _commit(self) -> None:
        """Write the turns since the last commit down, then send what they came to."""
        group, self._group = self._group, _Group()
        if not group.offsets and not group.states:
            return
        self._journal.append(
            states=group.states,
            records=group.records,
            offsets=group.offsets,
            watermark_ms=self._watermark.value(self._wall()),
        )
        self._send(group.records)
        self._deliver()

    def _send(self, records: Iterable[Outgoing]) -> None:
        for record in records:
            topic = self._topics.of(record.stream)
            while True:
                try:
                    self._producer.produce(topic, record.value, record.key, on_delivery=self._on_delivery)
                    break
                except BufferError:
                    self._producer.poll(0.1)
                except KafkaException as error:
                    raise PipelineStopped(
                        f"cannot send a record of {len(record.value)} bytes to {topic}: {error.args[0].str()};"
                        " raise message.max.bytes here and on the broker if it is too large"
                    ) from error

    def _deliver(self) -> None:
        """Wait until everything has arrived, or until `stop`; the journal then still knows what did not."""
        while self._producer.flush(0.2):
            if self._stopping.is_set():
                return
        if self._undeliverable:
            raise PipelineStopped(f"the broker did not take a record: {self._undeliverable[0]}")
        self._journal.delivered()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._undeliverable.append(f"{message.topic()}: {error.str()}")

    def _partitions(self) -> list[int]:
        """The partitions of the events topic, waiting for it to be made; none where `stop` was called meanwhile."""
        topic, deadline = self._topics.events, time.monotonic() + _START_S
        problem = "the broker does not answer"
        while time.monotonic() < deadline:
            if self._stopping.is_set():
                return []
            try:
                found = self._producer.list_topics(topic, timeout=2.0).topics[topic]
            except KafkaException as error:
                problem = error.args[0].str()
                continue
            if found.partitions:
                return sorted(found.partitions)
            problem = "it does not exist" if found.error is None else found.error.str()
            time.sleep(0.05)
        raise PipelineStopped(
            f"cannot read the topic {topic} at {self._kafka.get('bootstrap.servers')}: {problem};"
            " make the topic, or check the name and the brokers"
        )


class _Group:
    """Turns that are committed together: the last state of each key, all records in order."""

    def __init__(self) -> None:
        self.states: dict[bytes, KeyState] = {}
        self.records: list[Outgoing] = []
        self.offsets: dict[int, int] = {}
        self.bytes = 0
        self.began = time.monotonic()

    def add(self, turned: Turned) -> None:
        """Take a turn in; raises NotBytes."""
        key, step = turned
        records = [Outgoing(one.stream, one.key, encode(one)) for one in step.emissions]
        self.states[key] = step.state
        self.records += records
        self.bytes += sum(len(record.value) for record in records) + len(step.state.memory or b"")


def _refuse_sinks(config: AgentConfig) -> None:
    for name in ("intents_to", "traces_to", "errors_to", "snapshots_to"):
        if getattr(config, name) is not None:
            raise ValueError(f"AgentConfig.{name} is for a Beam pipeline; the embedded one is given its topics")
