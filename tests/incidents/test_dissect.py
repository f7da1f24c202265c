"""Whatever bytes are looked at, there is an answer that covers all of them, and it agrees with the real parser."""

from __future__ import annotations

import hashlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from app.incidents import dissect
from app.incidents.dissect import Piece
from app.replay.evidence import Role
from app.wire.framing import read_frames, write_frames
from app.wire.records import ActivationErrorRecord, AgentEnvelope, StateSnapshot, TraceEvent
from tests.golden import corpus

SCENARIO = corpus() / "corpus" / "a05_suspended_start"
FOREIGN = st.binary(max_size=400)
TAGS = st.builds(
    lambda number, wire, rest: bytes([number << 3 | wire]) + rest,
    st.integers(1, 15),
    st.integers(0, 7),
    st.binary(max_size=12),
)
ALMOST = st.lists(TAGS, max_size=12).map(b"".join)
ROLES = st.sampled_from(list(Role))


def pieces(data: bytes, role: Role = Role.SNAPSHOT) -> list[Piece]:
    return list(dissect.fields(data, dissect.record_of(role)))


def covers(data: bytes, found: list[Piece], depth: int = 0, at: int = 0, end: int | None = None) -> None:
    """The pieces of a level lie end to end over all of its bytes."""
    for piece in (one for one in found if one.depth == depth):
        assert piece.offset == at
        assert piece.offset <= piece.start
        assert piece.start + piece.size <= piece.offset + piece.length
        at += piece.length
    assert at == (len(data) if end is None else end)


@given(FOREIGN | ALMOST, ROLES)
def test_foreign_bytes_are_covered_and_never_crash(data: bytes, role: Role) -> None:
    found = pieces(data, role)
    covers(data, found)
    assert all(piece.problem for piece in found if piece.kind == "no field")
    assert sum(piece.depth for piece in found) <= len(found) * (dissect.DEEPEST + 1)
    list(dissect.dead_letter(data, iter(found)))


@given(FOREIGN | ALMOST)
def test_frames_of_foreign_bytes_are_covered_and_never_crash(data: bytes) -> None:
    at = 0
    for frame in dissect.frames(data):
        assert frame.offset == at
        at = frame.start + frame.size
        list(dissect.fields(data, dissect.record_of(Role.TRACES), frame.start, frame.size))
    assert at == len(data)


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 30))
def test_frames_are_those_of_the_reader(payloads: list[bytes], cut: int) -> None:
    data = write_frames(payloads)
    data = data[: max(0, len(data) - cut)]
    found = list(dissect.frames(data))
    whole = [data[one.start : one.start + one.size] for one in found if not one.problem]
    read = read_frames(data)
    assert whole == read.payloads
    assert (read.torn is not None) == bool(found and found[-1].problem)


def test_a_recorded_snapshot_is_told_by_its_names() -> None:
    data = (SCENARIO / "snapshot.pb").read_bytes()
    record = StateSnapshot.FromString(data)
    found = pieces(data)
    covers(data, found)
    assert [piece.name for piece in found if not piece.depth][:3] == ["state_schema_version", "entity_key", "seq"]
    by_name = {piece.name: piece for piece in reversed(found)}
    assert by_name["entity_key"].text == record.entity_key.decode()
    assert data[by_name["entity_key"].start :][: by_name["entity_key"].size] == record.entity_key
    assert not [piece for piece in found if piece.problem]
    assert {piece.depth for piece in found} >= {0, 1, 2}
    assert by_name["snapshot_at_ms"].text == str(record.snapshot_at_ms)


def test_enums_numbers_and_texts_read_as_the_parser_reads_them() -> None:
    event = TraceEvent(seq=-7, event_type="LLM_CALL", start_ms=1_700_000_000_000, entity_key="käse".encode())
    by_name = {piece.name: piece for piece in pieces(event.SerializeToString(), Role.TRACES)}
    assert by_name["seq"].text == "-7"
    assert by_name["event_type"].text == f"LLM_CALL ({event.event_type})"
    assert (by_name["entity_key"].text, by_name["entity_key"].kind) == ("käse", "text")
    unknown = b"\xf8\x06\x05" + b"\xfa\x06\x02hi"
    late = pieces(event.SerializeToString() + unknown, Role.TRACES)[-2:]
    assert [(piece.number, piece.name, piece.text, piece.kind) for piece in late] == [
        (111, "", "5", "varint"), (111, "", "hi", "text"),
    ]  # fmt: skip


def test_a_field_with_the_wrong_wire_type_is_named() -> None:
    (piece,) = pieces(b"\x12\x02ab"[:0] + b"\x0a\x02ab", Role.SNAPSHOT)  # field 1 is a number there
    assert piece.name == "state_schema_version"
    assert "written as bytes, which `state_schema_version` is not" in piece.problem


@given(st.binary(max_size=60), st.integers(1, 50))
def test_what_the_parser_takes_has_no_bytes_that_are_no_field(data: bytes, cut: int) -> None:
    record = AgentEnvelope(entity_key=data, external_event=data * 3, event_time_ms=cut)
    raw = record.SerializeToString()
    assert not [piece for piece in pieces(raw, Role.EVENT) if piece.kind == "no field"]
    short = raw[:-cut]
    try:
        AgentEnvelope.FromString(short)
    except DecodeError:
        assert [piece for piece in pieces(short, Role.EVENT) if piece.kind == "no field"]


def test_a_dead_letter_is_taken_apart_within_its_envelope() -> None:
    error = ActivationErrorRecord(entity_key=b"k", reason="handler_error", detail="boom")
    data = AgentEnvelope(entity_key=b"k", external_event=error.SerializeToString()).SerializeToString()
    found = list(dissect.dead_letter(data, iter(pieces(data, Role.ERRORS))))
    assert [(piece.depth, piece.text) for piece in found if piece.name in ("reason", "detail")] == [
        (1, "handler_error"), (1, "boom"),
    ]  # fmt: skip


def test_records_within_records_end_at_a_depth() -> None:
    data = b""
    for _ in range(60):
        data = b"\x2a" + bytes([len(data)]) + data if len(data) < 128 else data
    found = pieces(data, Role.SNAPSHOT)
    assert max(piece.depth for piece in found) <= dissect.DEEPEST + 1


# row 34
def test_a_large_value_is_told_by_head_size_and_digest() -> None:
    big = bytes(range(256)) * 4096
    data = AgentEnvelope(entity_key=b"k", external_event=big).SerializeToString()
    piece = next(piece for piece in pieces(data, Role.EVENT) if piece.name == "external_event")
    assert piece.size == len(big)
    assert piece.more == len(big) - dissect.HEAD
    assert piece.sha256 == hashlib.sha256(big).hexdigest()
    assert len(piece.text) < 400


@pytest.mark.parametrize(
    ("head", "cut", "text"),
    [
        (b"", False, "empty"), (b"caf\xc3\xa9", False, "café"), (b"caf\xc3", True, "caf"),
        (b"caf\xc3", False, "63 61 66 c3"),
        (b"\x00\x01", False, "00 01"), (b"a\nb", False, "a\nb"), ("\u202e".encode(), False, "e2 80 ae"),
    ],
)  # fmt: skip
def test_text_is_text_only_where_it_can_be_read(head: bytes, cut: bool, text: str) -> None:
    assert dissect.shown(head, cut=cut)[0] == text


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 6))
def test_hex_says_every_byte_once(data: bytes, start: int, rows: int) -> None:
    lines = list(dissect.hex_rows(data, start, rows))
    first = start // 16 * 16
    assert bytes.fromhex("".join(line[10:58] for line in lines)) == data[first : first + 16 * rows]
    assert [int(line[:8], 16) for line in lines] == list(range(first, first + 16 * len(lines), 16))
    assert all(line.isprintable() for line in lines)
