"""librdkafka with manners: every call ends in time, and what goes wrong names the broker and the setting.

Importing this loads librdkafka; `config` and `topics` do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from app.kafka.config import Pipeline, Secret
from app.kafka.errors import BrokerError
from app.kafka.troubles import Troubles, explain

__all__ = ["TIMEOUT_S", "Offsets", "Reader", "Records", "Writer", "settings"]

TIMEOUT_S: Final = 5.0
"""How long one question to the broker may take, in seconds."""

Records = list["Message[Any, Any]"]
Offsets = dict[int, int]

_EARLIEST: Final = -2
_LATEST: Final = -1
# Settings that are files or words in `security`, by librdkafka's names.
_FILES: Final = {"ca": "ssl.ca.location", "certificate": "ssl.certificate.location", "key": "ssl.key.location"}
_SECRETS: Final = {"username": "sasl.username", "password": "sasl.password", "key_password": "ssl.key.password"}

_BOTH: Final[dict[str, Any]] = {
    "client.id": "hindcast",
    "socket.timeout.ms": 10_000,
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 2_000,
    # A snapshot of 50 MB has to fit into one response.
    "receive.message.max.bytes": 256 * 1024 * 1024,
    "log.connection.close": False,
}
_READER: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # Never a silent jump: whoever reads decides what a vanished offset means.
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    "check.crcs": True,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    # The default of a second starves a fast reader each time the queue has run full.
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 64 * 1024,
}
_WRITER: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "linger.ms": 0,
    "compression.type": "none",
    "allow.auto.create.topics": False,
}

T = TypeVar("T")


def settings(pipeline: Pipeline, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What librdkafka is told of brokers and security, secrets read in. Keep it out of logs and messages.

    Raises `BrokerError` where a secret cannot be read.
    """
    security = pipeline.security
    told: dict[str, Any] = {"bootstrap.servers": ",".join(pipeline.brokers), "security.protocol": security.protocol}
    if security.mechanism:
        told["sasl.mechanism"] = security.mechanism
    for name, theirs in _FILES.items():
        if path := getattr(security, name):
            told[theirs] = str(path)
    for name, theirs in _SECRETS.items():
        if secret := getattr(security, name):
            told[theirs] = secret.read(pipeline.name, f"security.{name}", environment)
    for name, value in pipeline.client.items():
        told[name] = value.read(pipeline.name, f"client.{name}", environment) if isinstance(value, Secret) else value
    return told


class _Client:
    """What readers and writers share: whose they are, what troubled them last, and errors in plain words."""

    def __init__(self, pipeline: Pipeline, timeout_s: float) -> None:
        self.pipeline = pipeline
        self.timeout_s = timeout_s
        self._troubles = Troubles(pipeline)

    @property
    def trouble(self) -> str | None:
        """What keeps us from the broker at the moment, in plain words; None when nothing does."""
        return self._troubles.told

    def _make(self, kind: Callable[..., T], told: dict[str, Any]) -> T:
        try:
            return kind({**told, "error_cb": self._troubles.note}, logger=self._troubles)
        except KafkaException as error:
            raise explain(self.pipeline, error.args[0], "cannot set up the client") from None
        except (TypeError, ValueError) as error:
            raise BrokerError(self.pipeline.name, f"cannot set up the client: {error}", "correct `client`") from None

    def _do(self, what: str, action: Callable[[], T], topic: str | None = None) -> T:
        """Have the client do something; a failure tells what was tried, and what keeps us from the broker."""
        try:
            return action()
        except KafkaException as error:
            self._wake()
            raise explain(self.pipeline, error.args[0], what, self._troubles, topic=topic) from None

    def _ask(self, what: str, question: Callable[[], T], topic: str | None = None) -> T:
        """Put a question to the broker, again while a partition changes its leader. Any answer means it is there."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                answer = self._do(what, question, topic)
            except BrokerError as error:
                if not error.moving or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                continue
            self._troubles.clear()
            return answer

    def _wake(self) -> None:
        """Let the client report what it knows of its connections."""


class Reader(_Client):
    """A consumer that is told where to read, joins no group and commits nothing.

    One thread at a time. `uncommitted` reads what open and aborted transactions wrote, too, whatever the pipeline
    does; watermarks are then the true ends of the log. `group` is whose committed offsets to look at. `extra`
    are librdkafka's settings, below the operator's.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        timeout_s: float = TIMEOUT_S,
        uncommitted: bool = False,
        group: str | None = None,
        extra: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(pipeline, timeout_s)
        self._paused: set[tuple[str, int]] = set()
        self._seen: set[str] = set()
        self.events = False
        isolation = "read_uncommitted" if uncommitted else pipeline.isolation
        told = {
            **_BOTH,
            **_READER,
            "group.id": group or pipeline.client_group,
            "isolation.level": isolation,
            **(extra or {}),
        }
        self._consumer: Consumer = self._make(Consumer, {**told, **settings(pipeline, environment)})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections; harmless when repeated."""
        self._consumer.close()

    def partitions(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic, ascending. Raises `BrokerError`, also where the topic does not exist."""

        def question() -> tuple[int, ...]:
            found = self._consumer.list_topics(topic, timeout=self.timeout_s).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            return tuple(sorted(found.partitions))

        partitions = self._ask(f"cannot look up the topic {topic!r}", question, topic)
        self._seen.add(topic)
        if not partitions:
            raise BrokerError(self.pipeline.name, f"the topic {topic!r} has no partition", retriable=True)
        return partitions

    def brokers(self) -> dict[int, str]:
        """The cluster's brokers, `host:port` by id."""
        found = self._ask("cannot list the brokers", lambda: self._consumer.list_topics(timeout=self.timeout_s).brokers)
        return {number: f"{one.host}:{one.port}" for number, one in found.items()}

    def earliest(self, topic: str, partitions: Iterable[int]) -> Offsets:
        """The first offset that each partition still holds."""
        return self._offsets(topic, dict.fromkeys(partitions, _EARLIEST))

    def latest(self, topic: str, partitions: Iterable[int]) -> Offsets:
        """The offset after each partition's last record (read committed: the last stable one)."""
        return self._offsets(topic, dict.fromkeys(partitions, _LATEST))

    def indexed(self, topic: str, times: Mapping[int, int]) -> Offsets:
        """Ask the broker's time index for the first offset stamped at or after a time, by partition.

        -1 where there is none, which is also what a broker without a time index answers, always.
        """
        return self._offsets(topic, {partition: max(time, 0) for partition, time in times.items()})

    def committed(self, topic: str, partition: int) -> int | None:
        """What this client's group has committed for a partition; None when nothing."""
        place = TopicPartition(topic, partition)
        found = self._ask(
            f"cannot read the committed offset of {topic}/{partition}",
            lambda: self._consumer.committed([place], timeout=self.timeout_s)[0],
        )
        return found.offset if found.error is None and found.offset >= 0 else None

    def known_end(self, topic: str, partition: int) -> int | None:
        """The end of a partition as its last fetch told it, without asking; None before the first."""
        try:
            _, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
        except KafkaException:
            return None
        return high if high >= 0 else None

    def assign(self, places: Mapping[tuple[str, int], int]) -> None:
        """Read from these offsets, by (topic, partition), and from nowhere else; from nowhere at all when empty."""
        for topic in {topic for topic, _ in places} - self._seen:
            # A client that hears of a topic for the first time may take a second to look for its leaders by itself.
            self.partitions(topic)
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in places.items()]
        self._do("cannot start to read", lambda: self._consumer.assign(wanted))
        # A pause outlives the assignment that it was made in.
        if again := [TopicPartition(*place) for place in places if place in self._paused]:
            self._do("cannot go on reading", lambda: self._consumer.resume(again))
            self._paused -= set(places)

    def pause(self, topic: str, partition: int) -> None:
        """Fetch no more of a partition."""
        self._paused.add((topic, partition))
        self._do("cannot pause", lambda: self._consumer.pause([TopicPartition(topic, partition)]))

    def batch(self, most: int, wait_s: float) -> Records:
        """Take what has arrived, up to `most`; when nothing has, wait up to `wait_s` for the first message.

        Never waits for a batch to fill. Messages with an error are partition ends and troubles of one partition;
        `events` says afterwards whether there are any.
        """
        consume = self._consumer.consume
        found = self._do("cannot read", lambda: consume(most, 0.0))
        if not found and wait_s > 0:
            found = self._do("cannot read", lambda: consume(1, wait_s))
            found += self._do("cannot read", lambda: consume(most - 1, 0.0)) if found and most > 1 else []
        # (Truth, not equality: comparing a KafkaError with None leaves an exception behind in the client.)
        self.events = any(map(Message.error, found))
        if self.events:
            # What concerns no topic concerns the consumer group, such as a missing right to use it: we need none.
            found = [message for message in found if message.topic() is not None]
        if found:
            self._troubles.clear()
        return found

    def _offsets(self, topic: str, wanted: Mapping[int, int]) -> Offsets:
        places = [TopicPartition(topic, partition, offset) for partition, offset in wanted.items()]

        def question() -> Offsets:
            found = self._consumer.offsets_for_times(places, timeout=self.timeout_s)
            for place in found:
                if place.error is not None:
                    raise KafkaException(place.error)
            return {place.partition: place.offset for place in found}

        return self._ask(f"cannot look up offsets of the topic {topic!r}", question, topic)

    def _wake(self) -> None:
        for _ in range(5):  # one call may hand over one report only
            self._consumer.consume(1, 0.01)


class Writer(_Client):
    """An idempotent producer of single records, each to a partition that the caller names. One thread at a time."""

    def __init__(
        self, pipeline: Pipeline, *, timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(pipeline, timeout_s)
        told = {**_BOTH, **_WRITER, "message.timeout.ms": int(timeout_s * 1000)}
        self._producer: Producer = self._make(Producer, {**told, **settings(pipeline, environment)})

    def send(self, topic: str, partition: int, key: bytes, value: bytes, timestamp_ms: int) -> tuple[int, int]:
        """Write one record and wait until the broker has it: (partition, offset).

        Raises `BrokerError`. One about time does not say that the record was not written: a broker that dies after
        writing and before answering leaves that open.
        """
        reports: list[tuple[KafkaError | None, Message[Any, Any]]] = []
        what = f"cannot publish to {topic}/{partition}"

        def produce() -> None:
            self._producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=lambda error, message: reports.append((error, message)),
                timestamp=timestamp_ms,
            )
            self._producer.flush(self.timeout_s + 1.0)

        self._do(what, produce)
        if not reports:
            self._producer.purge()
            self._producer.flush(1.0)
            raise BrokerError(self.pipeline.name, f"{what}: the broker did not answer in time", retriable=True)
        error, message = reports[0]
        if error is not None:
            raise explain(self.pipeline, error, what, self._troubles, topic=topic)
        self._troubles.clear()
        return message.partition() or 0, message.offset() or 0

    @property
    def broken(self) -> bool:
        """Whether the client has given up for good and has to be made anew."""
        return self._troubles.fatal
