"""Captures come back as they were written, and whatever happened to one on the way is refused with its place."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.flink.capture import (
    About,
    Captured,
    CaptureError,
    CaptureWriter,
    Operator,
    SourcePosition,
    Typed,
    read_capture,
    read_manifest,
    verify,
)

QUICK = settings(max_examples=20, deadline=None)
ABOUT = About(
    job="job-1",
    key=Typed("STRING", "StringSerializer"),
    payload=Typed("ROW", "PickledRow"),
    max_parallelism=128,
    plan_hash="ab" * 32,
    operators=(Operator("action-execute-operator", "cbc357ccb763df2852fee8c4fc7d55f2", "agent"),),
    sources=(SourcePosition("orders", "0", "17", "29"),),
    versions={"apache-flink": "2.2.0", "flink-agents": "0.3.1"},
)


def written(folder: Path, records: list[Captured], about: About = ABOUT, part_bytes: int = 200) -> Path:
    with CaptureWriter(folder, about, part_bytes) as writer:
        for record in records:
            writer.append(record)
    return folder


def some(keys: str = "ab", each: int = 5) -> list[Captured]:
    return [
        Captured(key, seq, 1000 * seq, 900 * seq if seq > 1 else None, {"text": f"{key}{seq}"})
        for seq in range(1, each + 1)
        for key in keys
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def streams(draw: st.DrawFn, keys: st.SearchStrategy[object], payloads: st.SearchStrategy[object]) -> list[Captured]:
    """Inputs of a few keys, interleaved, each key counting from somewhere."""
    known = draw(st.lists(keys, min_size=1, max_size=4, unique_by=repr))
    at = [draw(st.integers(0, 5)) for _ in known]
    mark: int | None = None
    records = []
    for _ in range(draw(st.integers(0, 20))):
        which = draw(st.integers(0, len(known) - 1))
        if draw(st.booleans()):
            mark = (mark or 0) + draw(st.integers(0, 9))
        time = draw(st.none() | st.integers(-(2**63), 2**63 - 1))
        records.append(Captured(known[which], at[which], time, mark, draw(payloads)))
        at[which] += 1
    return records


@QUICK
@given(streams(st.text(max_size=5) | st.integers(), json_values), st.sampled_from([250, 10_000]))
def test_what_was_written_is_read(records: list[Captured], part_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder) / "c", records, part_bytes=part_bytes)
        assert list(read_capture(Path(folder) / "c")) == records
        manifest = read_manifest(Path(folder) / "c")
        assert manifest.about == ABOUT
        assert manifest.records == len(records)
        assert manifest.keys == len({repr(record.key) for record in records})


@QUICK
@given(streams(st.binary(max_size=5), st.binary(max_size=20)))
def test_bytes_are_read_as_bytes(records: list[Captured]) -> None:
    about = About("job", Typed("BYTES", "x", "bytes"), Typed("BYTES", "x", "bytes"), 1, "")
    with tempfile.TemporaryDirectory() as folder:
        assert list(read_capture(written(Path(folder) / "c", records, about))) == records


def reseal(folder: Path) -> None:
    """Make digests and counts of the manifest fit again, as a forger or a buggy gate would."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for part in manifest["parts"]:
        data = (folder / part["file"]).read_bytes()
        part |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "records": data.count(b"\n")}
    manifest["records"] = sum(part["records"] for part in manifest["parts"])
    (folder / "manifest.json").write_text(json.dumps(manifest))


def lines(folder: Path) -> Iterator[tuple[Path, int]]:
    for part in sorted(folder.glob("part-*")):
        yield from ((part, number) for number in range(part.read_bytes().count(b"\n")))


def _without(rows: list[bytes], at: int) -> list[bytes]:
    return rows[:at] + rows[at + 1 :]


def _again(rows: list[bytes], at: int) -> list[bytes]:
    return [*rows[: at + 1], *rows[at:]]


@QUICK
@given(st.data(), st.sampled_from([_without, _again]), st.integers(1, 3), st.integers(2, 6))
def test_a_record_that_is_lost_or_doubled_is_found(
    data: st.DataObject, change: Callable[[list[bytes], int], list[bytes]], keys: int, each: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = written(Path(name) / "c", some("abc"[:keys], each), part_bytes=150)
        part, at = data.draw(st.sampled_from(list(lines(folder))))
        part.write_bytes(b"".join(change(part.read_bytes().splitlines(keepends=True), at)))
        reseal(folder)
        with pytest.raises(CaptureError, match=r"a gap|a repetition|runs from|of which no part has"):
            verify(folder)


@QUICK
@given(st.data())
def test_two_records_of_a_key_that_change_places_are_found(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = written(Path(name) / "c", some("a", 6), part_bytes=100_000)
        (part,) = folder.glob("part-*")
        rows = part.read_bytes().splitlines(keepends=True)
        one, other = data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=2, unique=True))
        rows[one], rows[other] = rows[other], rows[one]
        part.write_bytes(b"".join(rows))
        reseal(folder)
        with pytest.raises(CaptureError, match=r"part-00000\.jsonl, line \d: (a gap|out of order)"):
            verify(folder)


@QUICK
@given(st.data())
def test_no_byte_can_change_unseen(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = written(Path(name) / "c", some())
        path = data.draw(st.sampled_from(sorted(one for one in folder.iterdir() if one.name != "manifest.json")))
        held = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(held) - 1))
        held[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(held)
        with pytest.raises(CaptureError, match=path.name):
            verify(folder)


def test_the_place_of_a_gap_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "c", some("a", 5), part_bytes=100_000)
    part = folder / "part-00000.jsonl"
    rows = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(rows[:1] + rows[3:]))
    reseal(folder)
    with pytest.raises(CaptureError) as refused:
        verify(folder)
    assert str(refused.value) == (
        "part-00000.jsonl, line 2: a gap: key 'a' goes from 1 to 4; 2 to 3 are missing"
    )  # fmt: skip


def test_a_capture_that_was_not_completed_is_none(tmp_path: Path) -> None:
    def gate() -> None:
        with CaptureWriter(tmp_path / "c", ABOUT) as writer:
            writer.append(some()[0])
            raise RuntimeError("the gate died")

    with pytest.raises(RuntimeError, match="died"):
        gate()
    with pytest.raises(CaptureError, match="the capture was not completed"):
        verify(tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "else"}, "is not the manifest of a capture"),
        ({"version": 2}, "of version 2; this reads 1"),
        ({"parts": [{"file": "../x", "subtask": 0, "records": 0, "bytes": 0, "sha256": ""}]}, "no name of a part"),
        ({"records": 3}, "counts 3 records, but its parts 10"),
        ({"key": {"type": "x"}}, "lacks something"),
        ({"key": {"type": "x", "serializer": "y", "encoding": "pickle"}}, "encoding of the key is 'pickle'"),
        ({"max_parallelism": 0}, "max parallelism of 0"),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    folder = written(tmp_path / "c", some())
    told = json.loads((folder / "manifest.json").read_text()) | change
    (folder / "manifest.json").write_text(json.dumps(told))
    with pytest.raises(CaptureError, match=said):
        verify(folder)


def test_a_part_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "c", some())
    (folder / "part-00001.jsonl").unlink()
    with pytest.raises(CaptureError, match=r"part-00001\.jsonl: cannot be read .* the manifest names it"):
        verify(folder)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([Captured("a", 1, 0, 0, {}), Captured("a", 3, 0, 0, {})], "a gap"),
        ([Captured("a", 1, 0, 9, {}), Captured("b", 1, 0, 3, {})], "the watermark of subtask 0 goes from 9 to 3"),
        ([Captured("a", 1, 0, 0, {"x": float("nan")})], "cannot be written as JSON"),
        ([Captured("a", 1, 0, 0, b"bytes")], "holds bytes, but its encoding is json"),
        ([Captured("a", -1, 0, 0, {})], "0 or more"),
    ],
)
def test_a_gate_is_told_at_once_what_could_not_be_read_back(tmp_path: Path, records: list[Captured], said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        written(tmp_path / "c", records)


def test_a_key_stays_with_its_subtask(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "c", ABOUT)
    writer.append(Captured("a", 1, 0, 5, {}), subtask=0)
    writer.append(Captured("b", 1, 0, 2, {}), subtask=1)  # each subtask has a watermark of its own
    with pytest.raises(CaptureError, match="came to subtask 1"):
        writer.append(Captured("a", 2, 0, 5, {}), subtask=1)
    writer.close()
    assert [record.key for record in read_capture(tmp_path / "c")] == ["a", "b"]


def test_a_folder_that_holds_something_is_not_written_into(tmp_path: Path) -> None:
    folder = written(tmp_path / "c", some())
    with pytest.raises(CaptureError, match="not empty"):
        CaptureWriter(folder, ABOUT)


def test_a_job_can_carry_a_copy_of_the_library(tmp_path: Path) -> None:
    """It imports nothing but Python's own library, wherever it is put."""
    import shutil

    import app.flink.capture

    shutil.copytree(
        Path(app.flink.capture.__file__).parent, tmp_path / "carried", ignore=shutil.ignore_patterns("__*__")
    )
    (tmp_path / "carried" / "__init__.py").write_bytes(Path(app.flink.capture.__file__).read_bytes())
    folder = written(tmp_path / "c", some())
    script = "import sys; from carried import verify; print(verify(sys.argv[1]).records); print(sorted(sys.modules))"
    told = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {script}", str(folder)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    records, modules = told.stdout.splitlines()
    assert records == "10"
    assert "'app" not in modules
    assert "pydantic" not in modules
