"""Raw records as they lie in the database: many of one partition in one compressed piece, each exactly as it came.

Columns before values: offsets, times and lengths compress to next to nothing when they stand side by side.
"""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, Protocol

# At this level a trace event takes about thirty bytes, at 30 MB/s; the next ones gain little and cost double.
_LEVEL: Final = 5
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BBIq")
_NONE: Final = -1
_SAME: Final = -2
_NO_TIME: Final = -(1 << 63)
_GAPS: Final = 1
_HEADERS: Final = 2

Headers = tuple[tuple[str, bytes | None], ...]


class Delivered(Protocol):
    """What intake asks of a record from the broker."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Raw(NamedTuple):
    """One record as it came. `value` None is a tombstone, which is not the same as no bytes."""

    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def pack(records: Sequence[Delivered]) -> tuple[bytes, int]:
    """Compress records of one partition, ascending by offset: (bytes, how many there were before)."""
    first = records[0].offset
    offsets = [record.offset for record in records]
    times = [_NO_TIME if (time := record.timestamp_ms) is None else time for record in records]
    values = [record.value for record in records]
    gaps = offsets[-1] - first != len(records) - 1
    headers = _headers(records)
    lengths, keys = _keys(records)
    plain = b"".join(
        (
            _HEAD.pack(_VERSION, _GAPS * gaps | _HEADERS * bool(headers), len(records), first),
            _numbers("q", [b - a for a, b in pairwise(offsets)]) if gaps else b"",
            _numbers("q", _steps(times)),
            _numbers("i", lengths),
            _numbers("i", [_NONE if value is None else len(value) for value in values]),
            struct.pack("<I", len(headers)) if headers else b"",
            headers,
            keys,
            b"".join([value for value in values if value is not None]),
        )
    )
    return zlib.compress(plain, _LEVEL), len(plain)


def unpack(data: bytes, wanted: Callable[[int], bool] | None = None) -> list[Raw]:
    """Undo `pack`; `wanted` picks records by their offsets, which spares making the others."""
    plain = zlib.decompress(data)
    version, flags, count, first = _HEAD.unpack_from(plain)
    if version != _VERSION:
        raise ValueError(f"a segment of version {version} was written by a newer Hindcast; upgrade this one")
    at = _HEAD.size
    offsets: Sequence[int] = range(first, first + count)
    if flags & _GAPS:
        offsets = list(accumulate(struct.unpack_from(f"<{count - 1}q", plain, at), initial=first))
        at += 8 * (count - 1)
    times = _times(struct.unpack_from(f"<{count}q", plain, at))
    key_lengths = struct.unpack_from(f"<{count}i", plain, at + 8 * count)
    lengths = struct.unpack_from(f"<{count}i", plain, at + 12 * count)
    at += 16 * count
    headers: dict[int, Headers] = {}
    if flags & _HEADERS:
        (size,) = struct.unpack_from("<I", plain, at)
        headers = _read_headers(plain[at + 4 : at + 4 + size])
        at += 4 + size
    keys: list[bytes | None] = []
    for length in key_lengths:
        if length >= 0:
            keys.append(plain[at : at + length])
            at += length
        else:
            keys.append(None if length == _NONE else keys[-1])
    starts = list(accumulate((max(length, 0) for length in lengths), initial=at))
    return [
        Raw(
            offset,
            times[index],
            keys[index],
            None if lengths[index] == _NONE else plain[starts[index] : starts[index + 1]],
            headers.get(index, ()),
        )
        for index, offset in enumerate(offsets)
        if wanted is None or wanted(offset)
    ]


def _numbers(kind: str, values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}{kind}", *values)


def _steps(times: Sequence[int]) -> list[int]:
    """Turn times into differences; one that is not there stands as it is, and the next one counts from the last."""
    if _NO_TIME not in times:
        return [times[0], *(b - a for a, b in pairwise(times))]
    steps, last = [], 0
    for time in times:
        steps.append(time if time == _NO_TIME else time - last)
        last = last if time == _NO_TIME else time
    return steps


def _times(steps: Sequence[int]) -> list[int | None]:
    if _NO_TIME not in steps:
        return list(accumulate(steps))
    times: list[int | None] = []
    last = 0
    for step in steps:
        last = last if step == _NO_TIME else last + step
        times.append(None if step == _NO_TIME else last)
    return times


def _keys(records: Sequence[Delivered]) -> tuple[list[int], bytes]:
    """Lengths of the keys, and the keys themselves; one that repeats the one before is not written again."""
    lengths, keys = [], []
    last: bytes | None = None
    for record in records:
        key = record.key
        if key is None:
            lengths.append(_NONE)
        elif key == last:
            lengths.append(_SAME)
        else:
            lengths.append(len(key))
            keys.append(key)
        last = key
    return lengths, b"".join(keys)


def _headers(records: Sequence[Delivered]) -> bytes:
    told = {
        str(index): [[name, None if value is None else b64encode(value).decode()] for name, value in record.headers]
        for index, record in enumerate(records)
        if record.headers
    }
    return json.dumps(told, separators=(",", ":")).encode() if told else b""


def _read_headers(data: bytes) -> dict[int, Headers]:
    return {
        int(index): tuple((name, None if value is None else b64decode(value)) for name, value in pairs)
        for index, pairs in json.loads(data).items()
    }
