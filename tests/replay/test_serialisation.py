"""Bytes are not canonical: the same record written in another order is the same record, and stays as it came."""

# complaint 35
import hashlib
from collections.abc import Callable, Sequence

import pytest
from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]

from app.incidents import intake
from app.replay.engine import replay
from app.replay.evidence import SINGLE, EvidenceFile, Role
from app.replay.inprocess import InProcessRunner
from app.wire.framing import read_frames, write_frames
from tests.golden.scenarios import names, scenario

SOME = [name for name in names("corpus") if scenario(name).right("full") & {0, 1}][::6]
# Field 900, of bytes; and again as a number: fields that a later version may write, in places of its choosing.
LATER = b"\xa2\x38\x05later"
NUMBER = b"\xa0\x38\x07"


def fields(data: bytes) -> list[tuple[int, bytes]]:
    """Take a record apart: (field number, bytes with the tag) of each field."""
    found, at = [], 0
    while at < len(data):
        start = at
        tag, at = _DecodeVarint(data, at)
        match tag & 7:
            case 0:
                _, at = _DecodeVarint(data, at)
            case 1:
                at += 8
            case 2:
                length, at = _DecodeVarint(data, at)
                at += length
            case 5:
                at += 4
        found.append((tag >> 3, data[start:at]))
    return found


def first(data: bytes, unknown: bytes) -> bytes:
    """The same record, its fields the other way round, unknown ones first; repeated ones keep their order."""
    return unknown + b"".join(part for _, part in sorted(fields(data), key=lambda field: -field[0]))


def last(data: bytes, unknown: bytes) -> bytes:
    """The same record, with unknown fields at its end."""
    return data + unknown


def rewritten(
    files: Sequence[EvidenceFile], write: Callable[[bytes, bytes], bytes], unknown: bytes
) -> list[EvidenceFile]:
    """Write every record anew; outputs are the agent's own bytes, and no records."""
    found = []
    for file in files:
        data = file.data
        if file.role in SINGLE:
            data = write(data, unknown)
        elif file.role is not Role.OUTPUTS:
            data = write_frames([write(payload, unknown) for payload in read_frames(data).payloads])
        found.append(EvidenceFile(file.role, file.name, data))
    return found


@pytest.mark.parametrize("unknown", [b"", LATER + NUMBER], ids=["same fields", "a field of a later version first"])
@pytest.mark.parametrize("name", SOME)
def test_the_order_of_fields_changes_no_verdict(name: str, unknown: bytes, runner: InProcessRunner) -> None:
    one = scenario(name)
    files = one.full()
    right = replay(files, runner, one.code(), seq=one.seq)
    turned, appended = rewritten(files, first, unknown), rewritten(files, last, unknown)
    assert [file.data for file in turned] != [file.data for file in files]
    # Twice the same records, from two that serialise differently, are one delivery.
    streams = [file for file in appended if file.role not in SINGLE | {Role.OUTPUTS}]
    for evidence in (turned, [*turned, *streams]):
        found = replay(evidence, runner, one.code(), seq=one.seq)
        assert (found.verdict.outcome, found.verdict.headline) == (right.verdict.outcome, right.verdict.headline)
        assert [(row.state, row.surface) for row in found.rows] == [(row.state, row.surface) for row in right.rows]


@pytest.mark.parametrize("name", SOME[:3])
def test_what_is_kept_is_what_came(name: str) -> None:
    for file in rewritten(scenario(name).full(), first, LATER):
        packed = intake.pack(file)
        assert intake.unpack(packed.codec, packed.data) == file.data
        assert packed.sha256 == file.sha256 == hashlib.sha256(file.data).hexdigest()
