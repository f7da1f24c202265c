"""Column types that say once how our values lie in PostgreSQL: times, texts and JSON from untrusted records."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import DateTime, Text, cast, func
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class EpochMs(TypeDecorator[int]):
    """A `timestamptz` that Python sees as integer epoch milliseconds, the only form of time in the core."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _EPOCH + value * _MILLISECOND

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else (value - _EPOCH) // _MILLISECOND


class PlainText(TypeDecorator[str]):
    """Text that PostgreSQL can hold whatever a record says: NUL and lone surrogates become visible stand-ins.

    Only for what people read and filter by; the exact values stand in the JSON columns and in the blobs.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else plain(value)


def plain(text: str) -> str:
    """Replace what a PostgreSQL text cannot hold: NUL by its picture, lone surrogates by the replacement mark."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\u2400").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# `json`, not `jsonb`: it keeps member order, and holds the escaped NULs and surrogates that agents do send.
Json = JSON(none_as_null=True)


def dumps(value: Any) -> str:
    """Write JSON as pure ASCII, which PostgreSQL stores as it is, escapes of NUL and surrogates included."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


# PostgreSQL keeps such escapes, but picks no member out of JSON that holds one. What `dumps` writes is pure ASCII, so
# these two can stand for `\\` and for the `\u` of an escape, as long as they are put in in this order.
_VEILS: Final = (("\\\\", "\u29f5"), ("\\u", "\u29f6"))


def members(column: Any) -> Any:
    """A JSON column whose members a query may pick, whatever they hold; all texts in them are as `veiled` has them."""
    text: Any = cast(column, Text)
    for escape, veil in _VEILS:
        text = func.replace(text, escape, veil)
    return cast(text, JSON)


def veiled(escaped: str) -> str:
    """Write a part of JSON as `members` does."""
    for escape, veil in _VEILS:
        escaped = escaped.replace(escape, veil)
    return escaped


def unveiled(text: str) -> Any:
    """Read JSON that a query picked by way of `members`, as text."""
    for escape, veil in reversed(_VEILS):
        text = text.replace(veil, escape)
    return json.loads(text)
