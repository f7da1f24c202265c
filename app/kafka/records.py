"""One record as the broker delivered it, untouched, and where it was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

_TIMES: Final = {TIMESTAMP_CREATE_TIME: "create", TIMESTAMP_LOG_APPEND_TIME: "append"}


class Record(NamedTuple):
    """A record and its place. A tuple, because intake makes a hundred thousand of them a second.

    `timestamp_ms` is None where the record carries none; `timestamp_type` says who stamped it: the producer
    (`create`) or the broker (`append`). `value` None is a tombstone, which is not the same as no bytes.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    timestamp_type: str | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def size(self) -> int:
        """Bytes of key and value together."""
        return len(self.key or b"") + len(self.value or b"")

    @property
    def size_text(self) -> str:
        """The value's size in words: `tombstone`, `0 bytes`, `17 bytes`."""
        if self.value is None:
            return "tombstone"
        return f"{len(self.value)} byte{'s' * (len(self.value) != 1)}"


def record_of(message: Message[Any, Any]) -> Record:
    """Take a record out of the client's message."""
    kind, time = message.timestamp()
    headers = message.headers()
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        None if kind == TIMESTAMP_NOT_AVAILABLE else time,
        _TIMES.get(kind),
        message.key(),
        message.value(),
        tuple(_pairs(headers)) if headers else (),
    )


def _pairs(headers: Any) -> Iterable[tuple[str, bytes | None]]:
    items = headers.items() if isinstance(headers, dict) else headers
    for name, value in items:
        yield name, value.encode() if isinstance(value, str) else value
