"""Takes bytes apart for a reader: frames of a stream, fields of a record with their offsets, and plain hex.

Whatever the bytes are, there is an answer: what cannot be read as fields is told as bytes, with the reason. Nothing is
copied but what is shown, and nothing is believed: lengths come from files.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from app.replay.evidence import SINGLE, Role
from app.wire.framing import FramingError, read_varint
from app.wire.records import ActivationErrorRecord, AgentEnvelope, StateSnapshot, ToolIntent, TraceEvent

DEEPEST: Final = 16
HEAD: Final = 240  # bytes of a value that are shown
LARGE: Final = 32 * 1024  # bytes beyond which a value is told with its digest


def _described(record: type[Message]) -> Descriptor:
    return cast(Descriptor, record.DESCRIPTOR)


_RECORDS: Final = {
    Role.SNAPSHOT: _described(StateSnapshot),
    Role.SNAPSHOTS: _described(StateSnapshot),
    Role.TRACES: _described(TraceEvent),
    Role.EVENT: _described(AgentEnvelope),
    Role.EVENTS: _described(AgentEnvelope),
    Role.INTENTS: _described(ToolIntent),
    Role.ERRORS: _described(AgentEnvelope),
}
_FD: Final = FieldDescriptor
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE: Final = {_VARINT: "varint", _FIXED64: "64 bits", _BYTES: "bytes", _FIXED32: "32 bits"}
_ZIGZAG: Final = frozenset({_FD.TYPE_SINT32, _FD.TYPE_SINT64})
_SIGNED: Final = frozenset({_FD.TYPE_INT32, _FD.TYPE_INT64, _FD.TYPE_ENUM})
_FLOATING: Final = frozenset({_FD.TYPE_DOUBLE, _FD.TYPE_FLOAT})
_FIXED_SIGNED: Final = frozenset({_FD.TYPE_SFIXED32, _FD.TYPE_SFIXED64})
# Which wire type a field's type is written with; everything else is a varint.
_WIRE_OF: Final = {
    **dict.fromkeys((_FD.TYPE_STRING, _FD.TYPE_BYTES, _FD.TYPE_MESSAGE), _BYTES),
    **dict.fromkeys((_FD.TYPE_DOUBLE, _FD.TYPE_FIXED64, _FD.TYPE_SFIXED64), _FIXED64),
    **dict.fromkeys((_FD.TYPE_FLOAT, _FD.TYPE_FIXED32, _FD.TYPE_SFIXED32), _FIXED32),
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One record of a stream: `offset` is where its length stands, `start` where its `size` bytes begin."""

    index: int
    offset: int
    start: int
    size: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """One field, or bytes that are none. `offset` is where it begins in the file, `length` all that it takes.

    `start` and `size` are its value alone. `name` is empty where the record's description does not know the number;
    `text` is the value's head as a reader sees it, `more` how many bytes follow, `sha256` of the whole where large.
    """

    depth: int
    offset: int
    length: int
    start: int
    size: int
    number: int
    name: str
    kind: str
    text: str
    more: int = 0
    sha256: str = ""
    problem: str = ""


def is_stream(role: Role) -> bool:
    """Whether a file of this role holds framed records rather than one."""
    return role not in SINGLE


def record_of(role: Role) -> Descriptor | None:
    """What a record of this role is described by; None for bytes that are the agent's own."""
    return _RECORDS.get(role)


def frames(data: bytes) -> Iterator[Frame]:
    """List the frames of a stream; the last one tells what is wrong where the bytes are none, or are cut."""
    offset, index = 0, 0
    while offset < len(data):
        left = len(data) - offset
        try:
            head = read_varint(data, offset)
        except FramingError as error:
            yield Frame(index, offset, offset, left, f"{error.problem}: what follows is no stream of frames")
            return
        if head is None:
            yield Frame(index, offset, offset, left, "the stream ends inside a frame's length")
            return
        size, start = head
        if size > len(data) - start:
            problem = f"the frame announces {size} bytes and {len(data) - start} are there"
            yield Frame(index, offset, start, len(data) - start, problem)
            return
        yield Frame(index, offset, start, size)
        offset, index = start + size, index + 1


def fields(data: bytes, record: Descriptor | None, start: int = 0, size: int | None = None) -> Iterator[Piece]:
    """Go through the fields of a record, those of records within it after it, one level deeper."""
    end = len(data) if size is None else min(len(data), start + size)
    yield from _fields(data, record, max(0, start), end, 0)


def _fields(data: bytes, record: Descriptor | None, at: int, end: int, depth: int) -> Iterator[Piece]:
    while at < end:
        read = _read(data, at, end)
        if isinstance(read, str):
            yield _rest(data, at, end, depth, read)
            return
        number, wire, start, size, after = read
        field = None if record is None else record.fields_by_number.get(number)
        piece = _piece(data, field, depth, at, after - at, start, size, number, wire)
        yield piece
        inner = _inner(field, wire)
        if inner is not None:
            if depth < DEEPEST:
                yield from _fields(data, inner, start, start + size, depth + 1)
            elif size:
                yield _rest(data, start, start + size, depth + 1, f"more than {DEEPEST} records within one another")
        at = after


def _read(data: bytes, at: int, end: int) -> tuple[int, int, int, int, int] | str:
    """One field: (number, wire type, start of the value, its size, offset after it), or why there is none."""
    tag = _varint(data, at, end)
    if tag is None:
        return "no field begins here"
    number, wire = tag[0] >> 3, tag[0] & 7
    start = tag[1]
    if not 0 < number < 1 << 29:
        return f"{number} is no number of a field"
    if wire == _VARINT:
        value = _varint(data, start, end)
        return "the number is cut, or too long" if value is None else (number, wire, start, value[1] - start, value[1])
    if wire in (_FIXED64, _FIXED32):
        size = 8 if wire == _FIXED64 else 4
        if start + size > end:
            return f"{size} bytes should follow, and {end - start} are there"
        return number, wire, start, size, start + size
    if wire == _BYTES:
        length = _varint(data, start, end)
        if length is None:
            return "the length is cut, or too long"
        if length[0] > end - length[1]:
            return f"{length[0]} bytes should follow, and {end - length[1]} are there"
        return number, wire, length[1], length[0], length[1] + length[0]
    return f"wire type {wire} is not used in these records"


def _varint(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    try:
        found = read_varint(data[at : min(end, at + 10)], 0)
    except FramingError:
        return None
    return None if found is None else (found[0], at + found[1])


def _inner(field: FieldDescriptor | None, wire: int) -> Descriptor | None:
    if field is None or wire != _BYTES:
        return None
    return field.message_type if field.type == _FD.TYPE_MESSAGE else None


def dead_letter(data: bytes, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The same pieces, with the record of the error taken apart that a dead letter carries as its event."""
    for piece in pieces:
        yield piece
        if piece.name == "external_event" and piece.depth == 0:
            end = piece.start + piece.size
            yield from _fields(data, _described(ActivationErrorRecord), piece.start, end, 1)


def _piece(
    data: bytes,
    field: FieldDescriptor | None,
    depth: int,
    offset: int,
    length: int,
    start: int,
    size: int,
    number: int,
    wire: int,
) -> Piece:
    name = "" if field is None else field.name
    if field is not None and _WIRE_OF.get(field.type, _VARINT) != wire and not _packed(field, wire):
        problem = f"written as {_WIRE[wire]}, which `{name}` is not"
        return _bytes(data, depth, offset, length, start, size, number, name, _WIRE[wire], problem)
    if wire == _BYTES:
        if field is not None and field.type == _FD.TYPE_MESSAGE:
            kind = field.message_type.name
            return Piece(depth, offset, length, start, size, number, name, kind, "" if size else "empty")
        kind = "string" if field is not None and field.type == _FD.TYPE_STRING else "bytes"
        return _bytes(data, depth, offset, length, start, size, number, name, kind)
    text = _scalar(field, wire, data[start : start + size])
    kind = _WIRE[wire] if field is None else _kind(field)
    return Piece(depth, offset, length, start, size, number, name, kind, text)


def _packed(field: FieldDescriptor, wire: int) -> bool:
    return wire == _BYTES and field.is_repeated and field.type not in (_FD.TYPE_STRING, _FD.TYPE_MESSAGE)


def _kind(field: FieldDescriptor) -> str:
    if field.type == _FD.TYPE_ENUM:
        return str(field.enum_type.name)
    return {_FD.TYPE_BOOL: "bool", _FD.TYPE_DOUBLE: "double", _FD.TYPE_FLOAT: "float"}.get(field.type, "number")


def _scalar(field: FieldDescriptor | None, wire: int, raw: bytes) -> str:
    if wire != _VARINT:
        wide = wire == _FIXED64
        if field is not None and field.type in _FLOATING:
            return repr(struct.unpack("<d" if wide else "<f", raw)[0])
        return str(int.from_bytes(raw, "little", signed=field is not None and field.type in _FIXED_SIGNED))
    found = read_varint(raw, 0)
    value = 0 if found is None else found[0]
    if field is None:
        return str(value)
    if field.type in _ZIGZAG:
        return str((value >> 1) ^ -(value & 1))
    if field.type in _SIGNED and value >= 1 << 63:
        value -= 1 << 64
    if field.type == _FD.TYPE_BOOL:
        return "true" if value else "false"
    if field.type == _FD.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return f"{value}, unknown" if known is None else f"{known.name} ({value})"
    return str(value)


def _bytes(
    data: bytes,
    depth: int,
    offset: int,
    length: int,
    start: int,
    size: int,
    number: int,
    name: str,
    kind: str,
    problem: str = "",
) -> Piece:
    text, kind = shown(data[start : start + min(size, HEAD)], kind, cut=size > HEAD)
    large = hashlib.sha256(memoryview(data)[start : start + size]).hexdigest() if size > LARGE else ""
    more = max(0, size - HEAD)
    return Piece(depth, offset, length, start, size, number, name, kind, text, more, large, problem)


def _rest(data: bytes, at: int, end: int, depth: int, problem: str) -> Piece:
    return _bytes(data, depth, at, end - at, at, end - at, 0, "", "no field", problem)


def shown(head: bytes, kind: str = "bytes", *, cut: bool = False) -> tuple[str, str]:
    """The head of a value as text where it is text, else as hex; and what to call it."""
    if not head:
        return "empty", kind
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A head may end within a character; anything else is no text.
        if not (cut and error.reason == "unexpected end of data" and error.start > len(head) - 4 and error.start):
            return head[: HEAD // 2].hex(" "), kind if kind != "string" else "string that is no UTF-8"
        text = head[: error.start].decode("utf-8")
    if all(character.isprintable() or character in "\n\t\r" for character in text):
        return text, "text" if kind == "bytes" else kind
    return head[: HEAD // 2].hex(" "), kind


# Plain bytes ---------------------------------------------------------------------------------------------------------

ROW: Final = 16


def hex_rows(data: bytes, start: int, rows: int) -> Iterator[str]:
    """Lines of offset, hex and printable ASCII, from the row in which byte `start` stands."""
    first = start // ROW * ROW
    for at in range(first, min(len(data), first + rows * ROW), ROW):
        piece = data[at : at + ROW]
        left, right = piece[:8].hex(" "), piece[8:].hex(" ")
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in piece)
        yield f"{at:08x}  {left:<23}  {right:<23}  {text}"
