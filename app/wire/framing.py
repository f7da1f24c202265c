"""Varint-framed record streams: each frame is a length and that many bytes.

Lengths come from files and brokers, so both the varint and the frame are bounded before anything
is allocated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MAX_VARINT_BYTES: Final = 10
DEFAULT_FRAME_CAP: Final = 64 * 1024 * 1024


class FramingError(ValueError):
    """A stream that is not varint-framed: says at which byte and what was expected."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"byte {offset}: {problem}")
        self.offset = offset
        self.problem = problem


@dataclass(frozen=True)
class TornFrame:
    """The incomplete frame that ends a stream.

    `offset` is where its length starts; `expected` is the number of payload bytes it announces, or
    None when the length itself is cut; `found` is how many payload bytes are there.
    """

    offset: int
    expected: int | None
    found: int

    def __str__(self) -> str:
        if self.expected is None:
            return f"the stream ends inside a frame length at byte {self.offset}"
        return f"the last frame, at byte {self.offset}, announces {self.expected} bytes and holds {self.found}"


@dataclass(frozen=True)
class Frames:
    """The complete frames of a stream in order, and the torn one at its end if there is one."""

    payloads: list[bytes]
    torn: TornFrame | None = None


def read_varint(data: bytes, offset: int) -> tuple[int, int] | None:
    """Decode one varint; (value, next offset), or None when the data ends inside it.

    Raises FramingError for a varint longer than 10 bytes or beyond 64 bits.
    """
    value = 0
    for index in range(MAX_VARINT_BYTES):
        position = offset + index
        if position >= len(data):
            return None
        byte = data[position]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >= 1 << 64:
                raise FramingError(offset, "a frame length does not fit in 64 bits")
            return value, position + 1
    raise FramingError(offset, f"a frame length is longer than {MAX_VARINT_BYTES} bytes")


def read_frames(data: bytes, *, cap: int = DEFAULT_FRAME_CAP) -> Frames:
    """Split a stream into its frames; a torn last frame is reported, not raised.

    `cap` is the largest frame accepted, in bytes. Raises FramingError for a malformed length or a
    frame above the cap.
    """
    payloads: list[bytes] = []
    offset, size = 0, len(data)
    while offset < size:
        head = read_varint(data, offset)
        if head is None:
            return Frames(payloads, TornFrame(offset, None, 0))
        length, start = head
        if length > cap:
            raise FramingError(offset, f"a frame of {length} bytes is above the limit of {cap} bytes")
        end = start + length
        if end > size:
            return Frames(payloads, TornFrame(offset, length, size - start))
        payloads.append(data[start:end])
        offset = end
    return Frames(payloads)


def varint(value: int) -> bytes:
    """Encode a non-negative integer below 2**64."""
    if not 0 <= value < 1 << 64:
        raise ValueError(f"a varint holds 0 to 2**64 - 1, not {value}")
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def write_frames(payloads: Iterable[bytes]) -> bytes:
    """Join payloads into one varint-framed stream."""
    return b"".join(part for payload in payloads for part in (varint(len(payload)), payload))
