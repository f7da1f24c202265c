"""bundle.zip: what goes in comes out, equal evidence gives equal bytes, and no archive can harm who opens it."""

import hashlib
import io
import json
import re
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.incidents import bundle, service
from app.incidents.bundle import Bundle, Limits
from app.incidents.errors import BundleError
from app.incidents.service import EvidenceFile, Role, Store
from tests.incidents.evidence import recording

Entries = dict[str, bytes]


def of(files: list[EvidenceFile], **hints: Any) -> Bundle:
    return Bundle(tuple(files), bundle.sources_of(files), **hints)


@pytest.fixture(scope="module")
def good() -> bytes:
    return bundle.write(of(recording("a01_fraud_completed"), seq=3, build="refunds-v1"))


def unpack(data: bytes) -> Entries:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def repack(entries: Entries, method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return target.getvalue()


def with_manifest(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    entries = unpack(data)
    manifest = json.loads(entries["manifest.json"])
    change(manifest)
    return repack({**entries, "manifest.json": json.dumps(manifest).encode()})


def with_entry(data: bytes, name: str, content: bytes = b"x", **attributes: Any) -> bytes:
    target = io.BytesIO(data)
    with zipfile.ZipFile(target, "a") as archive:
        info = zipfile.ZipInfo(name)
        for attribute, value in attributes.items():
            setattr(info, attribute, value)
        archive.writestr(info, content)
    return target.getvalue()


def test_what_goes_in_comes_out(good: bytes) -> None:
    found = bundle.read(good)
    assert sorted(found.files, key=lambda f: f.role) == sorted(recording("a01_fraud_completed"), key=lambda f: f.role)
    assert (found.seq, found.build) == (3, "refunds-v1")
    assert bundle.write(found) == good


def test_the_order_of_files_does_not_matter(good: bytes) -> None:
    assert bundle.write(of(recording("a01_fraud_completed")[::-1], seq=3, build="refunds-v1")) == good


def test_the_bytes_are_those_of_the_format() -> None:
    """Pinned, so that no change of ours or of the library's can alter them unseen."""
    made = bundle.write(of([EvidenceFile(Role.OUTPUTS, "out\u00e9.bin", b"\x01a")]))
    assert hashlib.sha256(made).hexdigest() == "2c7c1da67a37fb0642a999aac1d1f99dc80696caaad2dcacac161fcdc7a851fb"


def test_another_process_in_another_time_zone_writes_the_same(good: bytes, tmp_path: Path) -> None:
    script = (
        "import sys, hashlib\n"
        "from app.incidents import bundle\n"
        "print(hashlib.sha256(bundle.write(bundle.read(sys.stdin.buffer.read()))).hexdigest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=good,
        capture_output=True,
        env={"TZ": "Asia/Tokyo", "PYTHONPATH": str(Path(bundle.__file__).parents[2]), "PYTHONHASHSEED": "7"},
        check=True,
    )
    assert done.stdout.decode().strip() == hashlib.sha256(good).hexdigest()


def test_a_bundle_that_was_packed_again_is_read(good: bytes) -> None:
    again = repack({"evidence/": b"", **unpack(good)}, zipfile.ZIP_DEFLATED)
    assert bundle.read(again).files == bundle.read(good).files


def rename(old: str, new: str) -> Callable[[bytes], bytes]:
    """Change a name in both directories of the archive, as no zip program would."""

    def change(data: bytes) -> bytes:
        assert len(old) == len(new)
        return data.replace(old.encode(), new.encode())

    return change


def encrypted(data: bytes) -> bytes:
    """Set the bit that says so in the central directory's entry of the manifest."""
    at = data.index(b"PK\x01\x02")
    return data[: at + 8] + struct.pack("<H", 1) + data[at + 10 :]


def lying_size(data: bytes) -> bytes:
    """Declare less than is there."""
    packed = repack(unpack(data), zipfile.ZIP_DEFLATED)
    at = packed.index(b"PK\x01\x02")
    return packed[: at + 24] + struct.pack("<L", 3) + packed[at + 28 :]


def many(data: bytes) -> bytes:
    return repack({**unpack(data), **{f"evidence/{n}": b"" for n in range(1200)}})


def zip64(data: bytes) -> bytes:
    end = data.rindex(b"PK\x05\x06")
    record = b"PK\x06\x06" + struct.pack("<QHHLLQQQQ", 44, 45, 45, 0, 0, 9, 9, 9, 9)
    return data[:end] + record + b"PK\x06\x07" + struct.pack("<LQL", 0, end, 1) + data[end:]


def flipped(data: bytes) -> bytes:
    at = data.index(b"evidence/0002-traces.bin", data.index(b"PK\x03\x04", 100)) + 100
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def digest_of_other(manifest: dict[str, Any]) -> None:
    manifest["files"][0]["sha256"] = "0" * 64


def twice(manifest: dict[str, Any]) -> None:
    manifest["files"].append(manifest["files"][0])


BAD: dict[str, tuple[Callable[[bytes], bytes], str | None, str]] = {
    "empty": (lambda d: b"", None, "not a zip archive"),
    "text": (lambda d: b"hello", None, "not a zip archive"),
    "cut": (lambda d: d[:-30], None, "its end is missing"),
    "cut at the start": (lambda d: b"PK" + d[100:], None, "damaged|has no manifest"),
    "zip64": (zip64, None, "directory is larger"),
    "too many entries": (many, None, "directory is larger"),
    "no manifest": (lambda d: repack({"a": b"b"}), None, "has no manifest"),
    "manifest is no JSON": (lambda d: repack({"manifest.json": b"{"}), "manifest.json", "not JSON"),
    "manifest is too deep": (lambda d: repack({"manifest.json": b"[" * 200_000}), "manifest.json", "not JSON"),
    "manifest is a list": (lambda d: repack({"manifest.json": b"[]"}), "manifest.json", "not a JSON object"),
    "manifest is huge": (lambda d: repack({"manifest.json": b" " * 1_200_000}), "manifest.json", "more than"),
    "other format": (lambda d: with_manifest(d, lambda m: m.update(format="zip")), "manifest.json", "format is 'zip'"),
    "newer": (lambda d: with_manifest(d, lambda m: m.update(version=2)), "manifest.json", "format version 2"),
    "version is a word": (lambda d: with_manifest(d, lambda m: m.update(version="1")), "manifest.json", "version"),
    "key missing": (lambda d: with_manifest(d, lambda m: m.pop("seq")), "manifest.json", "seq: field required"),
    "key too many": (lambda d: with_manifest(d, lambda m: m.update(x=1)), "manifest.json", "x: extra"),
    "no files": (lambda d: with_manifest(d, lambda m: m.update(files=[])), "manifest.json", "files"),
    "listed twice": (lambda d: with_manifest(d, twice), "evidence/0001-snapshot.pb", "lists it twice"),
    "role": (lambda d: with_manifest(d, lambda m: m["files"][0].update(role="x")), "evidence/0001-snapshot.pb", "role"),
    "size": (lambda d: with_manifest(d, lambda m: m["files"][0].update(size=1)), "evidence/0001-snapshot.pb", "bytes"),
    "digest": (lambda d: with_manifest(d, digest_of_other), "evidence/0001-snapshot.pb", "bytes were changed"),
    "file missing": (
        lambda d: repack({k: v for k, v in unpack(d).items() if "event" not in k}),
        "evidence/0003-event.pb",
        "not there",
    ),
    "unlisted": (lambda d: with_entry(d, "evidence/more"), "evidence/more", "does not list it"),
    "traversal": (lambda d: with_entry(d, "../../etc/passwd"), "../../etc/passwd", "leads out"),
    "absolute": (lambda d: with_entry(d, "/etc/passwd"), "/etc/passwd", "leads out"),
    "backslash": (rename("0001-snapshot", "..\\..-snapsho"), "evidence/..\\..-snapsho.pb", "leads out"),
    "drive": (lambda d: with_entry(d, "C:x"), "C:x", "leads out"),
    "NUL": (rename("0001-snapshot.pb", "0001-snapsho\x00.pb"), None, "leads out|damaged"),
    "symlink": (
        lambda d: with_entry(
            d, "evidence/l", b"/etc/passwd", create_system=3, external_attr=(stat.S_IFLNK | 0o777) << 16
        ),
        "evidence/l",
        "a symbolic link",
    ),
    "device": (
        lambda d: with_entry(d, "evidence/d", create_system=3, external_attr=(stat.S_IFBLK | 0o777) << 16),
        "evidence/d",
        "not a plain file",
    ),
    "duplicate": (lambda d: with_entry(d, "manifest.json", b"{}"), "manifest.json", "there twice"),
    "encrypted": (encrypted, "manifest.json", "encrypted"),
    "lying": (lying_size, "manifest.json", "more than|damaged"),
    "method": (lambda d: repack({"manifest.json": b"{}"}, zipfile.ZIP_LZMA), "manifest.json", "compression method 14"),
    "flipped byte": (flipped, "evidence/0002-traces.bin", "damaged"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("case", BAD)
def test_a_bad_archive_is_refused_by_name(good: bytes, case: str) -> None:
    harm, entry, words = BAD[case]
    with pytest.raises(BundleError) as caught:
        bundle.read(harm(good), "night.zip")
    assert caught.value.name == "night.zip"
    if entry is not None:
        assert caught.value.entry == entry
    assert re.search(words, caught.value.problem)
    assert caught.value.expected
    assert caught.value.remedy


def test_a_zip_bomb_is_refused_before_it_unpacks(good: bytes) -> None:
    zeros = b"\0" * (60 << 20)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in unpack(good).items():
            archive.writestr(name, data)
        archive.writestr("evidence/bomb", zeros)
    with pytest.raises(BundleError, match="times its size") as caught:
        bundle.read(target.getvalue())
    assert caught.value.entry == "evidence/bomb"


def test_sizes_have_caps(good: bytes) -> None:
    with pytest.raises(BundleError, match="at most 0 MiB for one file"):
        bundle.read(good, limits=Limits(entry=100))
    with pytest.raises(BundleError, match="more than 0 MiB"):
        bundle.read(good, limits=Limits(total=100, manifest=100))


@given(st.data())
@settings(max_examples=300)
def test_no_damage_raises_anything_else(data: st.DataObject) -> None:
    whole = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for damaged in (bytes(whole), bytes(whole[:cut])):
        try:
            found = bundle.read(damaged)
        except BundleError:
            continue
        # What is accepted is whole: only bytes that mean nothing (times, attributes) may differ.
        assert [file.data for file in found.files] == [b"\x01a", b""]


SMALL = bundle.write(of([EvidenceFile(Role.OUTPUTS, "o", b"\x01a"), EvidenceFile(Role.ERRORS, "e", b"")]))

files = st.lists(
    st.builds(EvidenceFile, st.sampled_from(Role), st.text(min_size=1, max_size=20), st.binary(max_size=300)),
    min_size=1,
    max_size=6,
)
sources = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=3)


@given(files, st.randoms(), st.none() | st.integers(), st.none() | st.text(max_size=9), st.data())
def test_any_evidence_survives_the_journey(
    handed: list[EvidenceFile], random: Any, seq: int | None, build: str | None, data: st.DataObject
) -> None:
    told = [data.draw(sources) for _ in handed]
    one = bundle.write(Bundle(tuple(handed), tuple(told), seq, {"seq": 1}, build))
    order = list(range(len(handed)))
    random.shuffle(order)
    # Only envelopes stay in the order of their arrival.
    envelopes = iter([i for i in range(len(handed)) if handed[i].role in (Role.EVENT, Role.EVENTS)])
    order = [next(envelopes) if handed[i].role in (Role.EVENT, Role.EVENTS) else i for i in order]
    other = bundle.write(Bundle(tuple(handed[i] for i in order), tuple(told[i] for i in order), seq, {"seq": 1}, build))
    assert one == other
    found = bundle.read(one)
    assert sorted(map(repr_of, found.files)) == sorted(map(repr_of, handed))
    assert (found.seq, found.build, found.attempt) == (seq, build, {"seq": 1})
    assert bundle.write(found) == one


def repr_of(file: EvidenceFile) -> tuple[str, str, bytes]:
    return (file.role, file.name, file.data)


# Through the database ------------------------------------------------------------------------------------------------


async def test_a_downloaded_bundle_imports_again_as_the_same_evidence(store: Store) -> None:  # complaint 18
    async with store.write() as session:
        first = await service.import_evidence(
            session, recording("a05_suspended_start"), who="ada", seq=0, build_hint="refunds-v1"
        )
    async with store.read() as session:
        one = await service.export_bundle(session, first)
    async with store.write() as session:
        second = await service.import_bundle(session, one, name="b.zip", who="bob")
    assert (first.imported, second.imported) == (False, True)
    for field in ("entity_key", "seq", "kind", "clock_ms", "recorded_status", "attempt", "wanted_seq", "build_hint"):
        assert getattr(second, field) == getattr(first, field)
    async with store.read() as session:
        assert await service.export_bundle(session, second) == one
        assert [file.source["file"] for file in await service.evidence_of(session, second)] == [
            "snapshot.pb",
            "traces.pb",
            "event.pb",
        ]


async def test_a_bad_bundle_is_refused_with_the_name_of_its_entry(store: Store, good: bytes) -> None:
    with pytest.raises(service.ImportRefused) as caught:
        async with store.write() as session:
            await service.import_bundle(session, with_entry(good, "../x"), name="b.zip", who="ada")
    assert [problem.name for problem in caught.value.problems] == ["b.zip: ../x"]


def test_the_specification_names_what_the_code_does() -> None:
    text = (Path(__file__).parents[2] / "docs" / "bundle.md").read_text()
    for word in (bundle.FORMAT, bundle.MANIFEST, *Role, "256 MiB", "64 MiB", "1000 entries", "200 times"):
        assert word in text
    manifest = json.loads(unpack(SMALL)["manifest.json"])
    for key in (*manifest, *manifest["files"][0]):
        assert f"`{key}`" in text


def test_the_envelopes_of_a_batch_keep_the_order_of_their_arrival() -> None:
    envelopes = [EvidenceFile(Role.EVENT, f"{name}.pb", name.encode()) for name in ("c", "a", "b")]
    other = EvidenceFile(Role.TRACES, "traces.pb", b"t")
    found = bundle.read(bundle.write(of([*envelopes, other])))
    assert [file.name for file in found.files if file.role is Role.EVENT] == ["c.pb", "a.pb", "b.pb"]
