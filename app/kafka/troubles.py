"""librdkafka's errors in an operator's words: what happened, at which broker, and which setting to look at."""

# ruff: noqa: SLF001  (librdkafka's own codes begin with an underscore)

from __future__ import annotations

import logging
import re
import threading
from typing import Final

from confluent_kafka import KafkaError

from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError

_LOG: Final = logging.getLogger("hindcast.kafka")

END_OF_PARTITION: Final[int] = KafkaError._PARTITION_EOF
OUT_OF_RANGE: Final[int] = KafkaError._AUTO_OFFSET_RESET

_UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_MOVING: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
_PASSING: Final = (
    _UNREACHABLE
    | _MOVING
    | frozenset(
        {
            KafkaError.BROKER_NOT_AVAILABLE,
            KafkaError.NETWORK_EXCEPTION,
            KafkaError.NOT_ENOUGH_REPLICAS,
            KafkaError._PURGE_QUEUE,
            KafkaError._PURGE_INFLIGHT,
        }
    )
)
_REFUSED: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_FORBIDDEN: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_MISSING: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_HUNG_UP: Final = ("disconnected", "broken pipe", "connection reset", "send failed", "receive failed")
# librdkafka's remarks on its own state machine say nothing to an operator.
_INNER: Final = re.compile(
    r" \(after \d+ms in state [A-Z_]+(, \d+ identical error\(s\) suppressed)?\)|/bootstrap|^\w+://"
)


class Troubles:
    """The last thing that a client complained of; its callbacks may come from any call, so it locks."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._lock = threading.Lock()
        self._last: KafkaError | None = None
        self._failure = ""
        self.fatal = False

    def note(self, error: KafkaError) -> None:
        """Take what librdkafka reports of itself."""
        with self._lock:
            self.fatal = self.fatal or error.fatal()
            if self._last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
                self._last = error

    def log(self, level: int, form: str, *arguments: object) -> None:
        """Take a line of librdkafka's log: it is handed on, and what it says of a broken connection remembered."""
        _LOG.log(level, form, *arguments)
        if level >= logging.ERROR and arguments[0] == "FAIL":
            self._failure = re.sub(r"^\[thrd:[^]]*\]: ", "", str(arguments[-1]))

    def clear(self) -> None:
        """The broker has answered."""
        if self._last is not None:
            with self._lock:
                self._last = None

    @property
    def last(self) -> KafkaError | None:
        """The complaint itself. "All brokers are down" says less than what the log has about one of them."""
        last = self._last
        if last is not None and last.code() == KafkaError._ALL_BROKERS_DOWN and self._failure:
            return KafkaError(last.code(), self._failure)
        return last

    @property
    def told(self) -> str | None:
        """The complaint with its remedy, in plain words."""
        last = self.last
        if last is None:
            return None
        remedy = remedy_of(self._pipeline, last)
        return plain(last) + (f"; {remedy}" if remedy else "")


def explain(
    pipeline: Pipeline, error: KafkaError, what: str, troubles: Troubles | None = None, *, topic: str | None = None
) -> BrokerError:
    """Put a failure into words: what was tried, why it failed, what to look at."""
    cause = error
    if troubles is not None and error.code() in _UNREACHABLE and troubles.last is not None:
        cause = troubles.last
    why = plain(cause)
    if cause.code() in _UNREACHABLE:
        why = f"no answer from {', '.join(pipeline.brokers)} ({why})"
    remedy, code = remedy_of(pipeline, cause, topic), cause.code()
    return BrokerError(pipeline.name, f"{what}: {why}", remedy, retriable=code in _PASSING, moving=code in _MOVING)


def plain(error: KafkaError) -> str:
    """The error's own words without the client's inner state."""
    text = " ".join(_INNER.sub("", error.str() or error.name()).split())
    if (unknown := re.search(r'No such configuration property: "([^"]+)"', text)) is not None:
        return f"librdkafka knows no setting {unknown[1]!r}"
    return text.removeprefix("Broker: ").removeprefix("Local: ")


def remedy_of(pipeline: Pipeline, error: KafkaError, topic: str | None = None) -> str:
    """What to look at, in the words of the configuration; empty where there is nothing to advise."""
    code = error.code()
    text = error.str().lower()
    setting = pipeline.topics.setting_of(topic) if topic else "topics"
    if code in _REFUSED:
        return "check `security.mechanism`, `security.username` and `security.password`"
    if code == KafkaError._SSL or "ssl" in text:
        return "check `security.protocol` and `security.ca`, and that the port speaks TLS"
    if code in _UNREACHABLE:
        if any(sign in text for sign in _HUNG_UP):
            return "check `security.protocol`: a port that expects TLS or SASL hangs up on a client that does not"
        # librdkafka tells no more where every connection was closed at once.
        also = " and `security.protocol`" if "brokers are down" in text else ""
        return f"check `brokers`{also}, and that the cluster is up"
    if code in _MISSING:
        return f"create it, or correct `{setting}`"
    if code in _FORBIDDEN:
        return (
            "grant it to Hindcast's user: Describe and Read on every topic, Write on the events topic,"
            " Read on its group"
        )
    if code == KafkaError._INVALID_ARG:
        return "correct `client`"
    return ""
