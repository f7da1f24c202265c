"""What a capture is made of, and the rules that its writer and its reader both hold to."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

FORMAT: Final = "hindcast-capture"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
KEYS: Final = "keys.jsonl"
ENCODINGS: Final = ("json", "bytes")


class CaptureError(Exception):
    """A capture is not whole, or cannot be written: `place` names the file and line, `what` what is wrong there."""

    def __init__(self, place: str, what: str, remedy: str = "") -> None:
        self.place = place
        self.what = what
        self.remedy = remedy
        super().__init__(f"{place}: {what}" + (f". {remedy}" if remedy else ""))


@dataclass(frozen=True)
class Captured:
    """One input as the agent got it. Times are epoch milliseconds; None where the stream had none yet.

    `seq` counts the inputs of its key, one by one. `key` and `payload` are JSON values, or bytes, as the manifest says.
    """

    key: Any
    seq: int
    event_time: int | None
    watermark: int | None
    payload: Any


@dataclass(frozen=True)
class Typed:
    """How a key or payload was written: its type in the job, its serializer there, and `json` or `bytes` here."""

    type: str
    serializer: str
    encoding: str = "json"


@dataclass(frozen=True)
class SourcePosition:
    """Where a partition of a source stood: positions of the first and last captured record, as the source counts."""

    source: str
    partition: str
    first: str
    last: str


@dataclass(frozen=True)
class Operator:
    """An operator of the job, so that a savepoint's state finds it again."""

    name: str
    id: str
    uid: str | None = None


@dataclass(frozen=True)
class About:
    """What a capture is of. `plan_hash` is the sha256 of the agent's plan as JSON, `versions` are by package."""

    job: str
    key: Typed
    payload: Typed
    max_parallelism: int
    plan_hash: str
    operators: Sequence[Operator] = ()
    sources: Sequence[SourcePosition] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One file of records, all of one subtask, in the order in which they came."""

    file: str
    subtask: int
    records: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All that is said of a capture outside its records."""

    about: About
    parts: tuple[Part, ...]
    records: int
    keys: int
    keys_sha256: str


@dataclass
class Span:
    key: Any
    first: int
    last: int


def follow(spans: dict[str, Span], known: str, seq: int, place: str, key: Any) -> None:
    """See that a record is the next one of its key."""
    span = spans.get(known)
    if span is None:
        spans[known] = Span(key, seq, seq)
        return
    if seq == span.last + 1:
        span.last = seq
        return
    if seq > span.last:
        missing = f"{span.last + 1} is" if seq == span.last + 2 else f"{span.last + 1} to {seq - 1} are"
        raise CaptureError(place, f"a gap: key {key!r} goes from {span.last} to {seq}; {missing} missing")
    what = "a repetition" if span.first <= seq else "out of order"
    raise CaptureError(place, f"{what}: key {key!r} is at {span.last}, and here comes {seq}")


def rise(watermarks: dict[int, int], subtask: int, watermark: int | None, place: str) -> None:
    """See that time does not go back within a subtask."""
    before = watermarks.get(subtask)
    if before is not None and (watermark is None or watermark < before):
        raise CaptureError(place, f"out of order: the watermark of subtask {subtask} goes from {before} to {watermark}")
    if watermark is not None:
        watermarks[subtask] = watermark


def known(key: Any) -> str:
    """Equal for equal keys, whatever the order of their members."""
    if isinstance(key, bytes):
        return base64.b64encode(key).decode("ascii")
    try:
        return json.dumps(key, sort_keys=True)
    except TypeError as error:
        raise CaptureError(f"key {key!r}", f"is no JSON value ({error})") from error


def encoded(value: Any, encoding: str, place: str) -> Any:
    if encoding == "json":
        if isinstance(value, bytes):
            raise CaptureError(place, "holds bytes, but its encoding is json", 'Say Typed(..., encoding="bytes").')
        return value
    if not isinstance(value, bytes):
        raise CaptureError(place, f"holds a {type(value).__name__}, but its encoding is bytes")
    return base64.b64encode(value).decode("ascii")


def decoded(value: Any, encoding: str, place: str) -> Any:
    if encoding == "json":
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise CaptureError(place, f"is not base64 ({error})") from error


def json_bytes(value: Any, place: str) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CaptureError(place, f"cannot be written as JSON ({error})") from error


def check_about(about: About, place: str) -> None:
    for name, typed in (("key", about.key), ("payload", about.payload)):
        if typed.encoding not in ENCODINGS:
            raise CaptureError(place, f"the encoding of the {name} is {typed.encoding!r}, not one of {ENCODINGS}")
    if about.max_parallelism < 1:
        raise CaptureError(place, f"a max parallelism of {about.max_parallelism} is none")
    if not about.job:
        raise CaptureError(place, "the job has no identifier")
