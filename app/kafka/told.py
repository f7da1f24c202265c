"""What the broker tells of its topics, where it does: how long records are kept, and what Hindcast's user may do."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, and not marked so
    AdminClient,
    ConfigResource,
    ResourceType,
)

from app.kafka.client import settings
from app.kafka.config import Pipeline
from app.kafka.troubles import Troubles


@dataclass(frozen=True)
class TopicSettings:
    """One topic's; None where the broker does not tell. `may` are the operations granted to us, by Kafka's names."""

    compacted: bool | None = None
    retention_ms: int | None = None
    max_bytes: int | None = None
    may: frozenset[str] | None = None


def topic_settings(pipeline: Pipeline, topics: Iterable[str], timeout_s: float) -> dict[str, TopicSettings] | None:
    """Look the settings of topics up; None where the broker does not answer such questions at all.

    Topics that do not exist, or about which we may not know, are left out.
    """
    told = {**settings(pipeline), "socket.timeout.ms": 10_000}
    client = AdminClient(told, logger=Troubles(pipeline))
    wanted = list(topics)
    if not wanted:
        return {}
    try:
        # A broker without administration lets the first question run out; it is not asked another.
        described = client.describe_topics(
            TopicCollection(wanted), include_authorized_operations=True, request_timeout=timeout_s
        )
        may = {name: _granted(future, timeout_s) for name, future in described.items()}
        asked = [ConfigResource(ResourceType.TOPIC, name) for name, granted in may.items() if granted is not None]
        configured = client.describe_configs(asked, request_timeout=timeout_s) if asked else {}
        return {one.name: _configured(future, timeout_s, may[one.name]) for one, future in configured.items()}
    except (KafkaException, FutureTimeout):
        return None


def _granted(future: Any, timeout_s: float) -> frozenset[str] | None:
    """The operations granted on a topic; empty sets are not told apart from untold ones by brokers, so we do not."""
    try:
        found = future.result(timeout_s + 1.0)
    except KafkaException as error:
        if error.args[0].code() < 0:
            raise  # the client's own: nobody answered
        return None
    return frozenset(operation.name for operation in found.authorized_operations or ())


def _configured(future: Any, timeout_s: float, may: frozenset[str] | None) -> TopicSettings:
    try:
        found = {name: entry.value for name, entry in future.result(timeout_s + 1.0).items()}
    except KafkaException as error:
        if error.args[0].code() < 0:
            raise
        found = {}
    return TopicSettings(
        "compact" in found["cleanup.policy"] if found.get("cleanup.policy") else None,
        _number(found.get("retention.ms")),
        _number(found.get("max.message.bytes")),
        may or None,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text else None
