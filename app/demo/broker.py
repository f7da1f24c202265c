"""A Kafka broker inside this process, for the demo and the tests: librdkafka's mock cluster behind real sockets.

Other processes reach it by its address. It keeps records in memory, about 5 MB a partition, and is gone with the
process. It has no time index, no administration and no aborted transactions, and is no place for anything of value.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import Any, Final, Self

from confluent_kafka import cimpl

__all__ = ["EmbeddedBroker", "EmbeddedBrokerError"]

_PRODUCER: Final = 0
_OK: Final = 0


class EmbeddedBrokerError(Exception):
    """The in-process broker could not do what was asked."""


class EmbeddedBroker:
    """One cluster of in-process brokers from `start` to `stop`; a context manager does both.

    `topics` gives the number of partitions of each topic that is to be there from the start; others come to be when
    somebody writes to them, with librdkafka's four partitions.
    """

    def __init__(self, topics: Mapping[str, int] | None = None, *, brokers: int = 1) -> None:
        self._topics = dict(topics or {})
        self._brokers = brokers
        self._library = _library()
        self._lock = threading.Lock()
        self._client: int | None = None
        self._cluster: int | None = None

    def start(self) -> str:
        """Open the sockets and make the topics; the address, as `host:port[,host:port]`."""
        with self._lock:
            if self._cluster is not None:
                raise EmbeddedBrokerError("the in-process broker is already running")
            self._client = self._new_client()
            self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, self._brokers)
            if not self._cluster:
                self._library.rd_kafka_destroy(self._client)
                self._client = self._cluster = None
                raise EmbeddedBrokerError("librdkafka could not open the sockets of the in-process broker")
        try:
            for topic, partitions in self._topics.items():
                self.create(topic, partitions)
        except BaseException:
            self.stop()
            raise
        return self.address

    @property
    def address(self) -> str:
        """Where clients find it, as `host:port[,host:port]`."""
        address: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._running())
        return address.decode()

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic. Raises `EmbeddedBrokerError` where there is one of that name."""
        code = self._library.rd_kafka_mock_topic_create(self._running(), topic.encode(), partitions, self._brokers)
        self._check(code, f"create the topic {topic!r}")

    def take_down(self, broker: int = 1) -> None:
        """Let a broker hang up on everybody and answer nobody, until `bring_up`; its records stay."""
        self._check(self._library.rd_kafka_mock_broker_set_down(self._running(), broker), "take a broker down")

    def bring_up(self, broker: int = 1) -> None:
        """Let a broker answer again."""
        self._check(self._library.rd_kafka_mock_broker_set_up(self._running(), broker), "bring a broker up")

    def slow_down(self, milliseconds: int, broker: int = 1) -> None:
        """Let every answer of a broker take that much longer."""
        code = self._library.rd_kafka_mock_broker_set_rtt(self._running(), broker, milliseconds)
        self._check(code, "slow a broker down")

    def stop(self) -> None:
        """Close the sockets and forget all records; harmless when it is not running."""
        with self._lock:
            if self._cluster is not None:
                self._library.rd_kafka_mock_cluster_destroy(self._cluster)
                self._library.rd_kafka_destroy(self._client)
            self._client = self._cluster = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _new_client(self) -> int:
        """Make the client that the cluster's thread belongs to; it connects nowhere, and says so unless silenced."""
        problem = ctypes.create_string_buffer(512)
        configuration = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(configuration, b"log_level", b"2", problem, len(problem))
        client: int | None = self._library.rd_kafka_new(_PRODUCER, configuration, problem, len(problem))
        if not client:
            raise EmbeddedBrokerError(f"librdkafka could not start: {problem.value.decode(errors='replace')}")
        return client

    def _running(self) -> int:
        if self._cluster is None:
            raise EmbeddedBrokerError("the in-process broker is not running")
        return self._cluster

    def _check(self, code: int, what: str) -> None:
        if code != _OK:
            why: bytes = self._library.rd_kafka_err2str(code)
            raise EmbeddedBrokerError(f"the in-process broker could not {what}: {why.decode(errors='replace')}")


def _library() -> Any:
    """Load the librdkafka that the client module is linked with, wherever the wheel keeps it."""
    library = ctypes.CDLL(cimpl.__file__)
    handle, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    size = ctypes.c_size_t
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_conf_new": (handle, []),
        "rd_kafka_conf_set": (number, [handle, text, text, text, size]),
        "rd_kafka_new": (handle, [number, handle, text, size]),
        "rd_kafka_destroy": (None, [handle]),
        "rd_kafka_err2str": (text, [number]),
        "rd_kafka_mock_cluster_new": (handle, [handle, number]),
        "rd_kafka_mock_cluster_destroy": (None, [handle]),
        "rd_kafka_mock_cluster_bootstraps": (text, [handle]),
        "rd_kafka_mock_topic_create": (number, [handle, text, number, number]),
        "rd_kafka_mock_broker_set_down": (number, [handle, ctypes.c_int32]),
        "rd_kafka_mock_broker_set_up": (number, [handle, ctypes.c_int32]),
        "rd_kafka_mock_broker_set_rtt": (number, [handle, ctypes.c_int32, number]),
    }
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise EmbeddedBrokerError(
                f"this librdkafka has no {name}: its mock cluster was left out; install the confluent-kafka wheel"
            ) from error
        function.restype, function.argtypes = result, arguments
    return library
