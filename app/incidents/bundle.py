"""`bundle.zip`: an incident's evidence as one file that travels, and says by itself whether it arrived whole.

The format is specified in `docs/bundle.md`. Writing is deterministic: equal evidence gives equal bytes, on any machine.
Reading trusts nothing: an archive may be damaged, truncated, or made to harm whoever opens it.
"""

from __future__ import annotations

import hashlib
import io
import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.incidents.errors import BundleError
from app.replay.evidence import EvidenceFile, Role

FORMAT: Final = "hindcast-bundle"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
FOLDER: Final = "evidence/"

_ROLES: Final = {role: index for index, role in enumerate(Role)}
_SINGLE: Final = (Role.SNAPSHOT, Role.EVENT)
_ORDERED: Final = (Role.EVENT, Role.EVENTS)
_TIME: Final = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say
_MIB: Final = 1024 * 1024
_WHOLE: Final = "a whole bundle.zip as Hindcast writes it"
_AGAIN: Final = "Download the bundle again."


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a bundle may hold; sizes in bytes, unpacked. `ratio` is unpacked size over packed, for large entries."""

    entry: int = 64 * _MIB
    total: int = 256 * _MIB
    entries: int = 1000
    ratio: int = 200
    manifest: int = _MIB


@dataclass(frozen=True)
class Bundle:
    """Evidence as it travels: the files, where each came from (same order), and what else helps to replay them.

    `seq` is the seq that the person narrowed to, `attempt` an `AttemptRef.as_json()`, `build` the name of the build
    that is worth trying first. All three are hints; the evidence decides.
    """

    files: tuple[EvidenceFile, ...]
    sources: tuple[Mapping[str, Any], ...]
    seq: int | None = None
    attempt: Mapping[str, Any] | None = None
    build: str | None = None


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    entry: str = Field(pattern=r"^evidence/[a-z0-9][a-z0-9.-]{0,80}$")
    role: str
    name: str = Field(min_length=1, max_length=1000)
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    source: dict[str, Any]


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal["hindcast-bundle"]
    version: Literal[1]
    files: list[_Entry] = Field(min_length=1)
    seq: int | None
    attempt: dict[str, Any] | None
    build: str | None


# Writing -------------------------------------------------------------------------------------------------------------


def write(bundle: Bundle) -> bytes:
    """Pack a bundle. No clock enters, nor the order of its files: equal evidence, equal bytes.

    Only envelopes keep their order, for those of a batch are evidence in the order in which they arrived.
    """
    handed = enumerate(zip(bundle.files, bundle.sources, strict=True))
    pairs = [pair for _, pair in sorted(handed, key=_position)]
    entries = [_entry(index, file, source) for index, (file, source) in enumerate(pairs, start=1)]
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "files": entries,
        "seq": bundle.seq,
        "attempt": bundle.attempt,
        "build": bundle.build,
    }
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        _add(archive, MANIFEST, (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode("ascii"))
        for entry, (file, _) in zip(entries, pairs, strict=True):
            _add(archive, entry["entry"], file.data)
    return target.getvalue()


def _position(item: tuple[int, tuple[EvidenceFile, Mapping[str, Any]]]) -> tuple[int, int, str, str, str]:
    index, (file, source) = item
    arrival = index if file.role in _ORDERED else 0
    return _ROLES[file.role], arrival, file.sha256, file.name, json.dumps(source, sort_keys=True)


def _entry(index: int, file: EvidenceFile, source: Mapping[str, Any]) -> dict[str, Any]:
    ending = "pb" if file.role in _SINGLE else "bin"
    return {
        "entry": f"{FOLDER}{index:04}-{file.role}.{ending}",
        "role": str(file.role),
        "name": file.name,
        "size": len(file.data),
        "sha256": file.sha256,
        "source": dict(source),
    }


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.create_system = 3
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    # Not compressed: deflate's output differs between builds of zlib, and equal evidence must give equal bytes.
    archive.writestr(info, data, compress_type=zipfile.ZIP_STORED)


# Reading -------------------------------------------------------------------------------------------------------------


def read(data: bytes, name: str = "bundle.zip", limits: Limits | None = None) -> Bundle:
    """Unpack and check a bundle; raises `BundleError` naming the archive (`name`) or the entry that is wrong.

    Compressed entries are read too (somebody may have packed it again), within the limits.
    """
    reader = _Reader(name, limits or Limits())
    try:
        return reader.read(data)
    except BundleError:
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, OSError, NotImplementedError) as error:
        raise reader.refuse(f"it is damaged ({error})", _WHOLE, _AGAIN) from error


@dataclass
class _Reader:
    name: str
    limits: Limits
    unpacked: int = field(default=0, init=False)

    def refuse(self, problem: str, expected: str, remedy: str, entry: str | None = None) -> BundleError:
        return BundleError(self.name, entry, problem, expected, remedy)

    def read(self, data: bytes) -> Bundle:
        self._check_end(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = self._entries(archive)
            manifest = self._manifest(archive, entries)
            self._check_complete(manifest, entries)
            files = tuple(self._file(archive, entries[listed.entry], listed) for listed in manifest.files)
        sources = tuple(listed.source for listed in manifest.files)
        return Bundle(files, sources, manifest.seq, manifest.attempt, manifest.build)

    def _check_end(self, data: bytes) -> None:
        """Refuse what is no zip, and a directory so large that merely listing it would hurt."""
        if not data.startswith(b"PK"):
            raise self.refuse("it is not a zip archive", "a bundle.zip", "Choose the bundle.zip that Hindcast wrote.")
        end = data.rfind(b"PK\x05\x06")
        if end < 0 or len(data) < end + 22:
            raise self.refuse("its end is missing", _WHOLE, _AGAIN)
        entries, directory = struct.unpack_from("<HL", data, end + 10)
        if data[max(0, end - 20) :].startswith(b"PK\x06\x07") or entries > self.limits.entries or directory > _MIB:
            raise self.refuse(
                "its directory is larger than a bundle's can be",
                f"at most {self.limits.entries} entries, and no zip64",
                "Download the bundle again, or import its files one by one.",
            )

    def _entries(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        entries: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            if info.filename == FOLDER and info.file_size == 0:
                continue  # whoever packed it again got the folder as an entry of its own
            self._check_entry(info)
            if info.filename in entries:
                raise self._bad(info, "it is there twice", "each entry once")
            entries[info.filename] = info
        if sum(info.file_size for info in entries.values()) > self.limits.total + self.limits.manifest:
            raise self.refuse(
                f"it unpacks to more than {self.limits.total // _MIB} MiB",
                f"at most {self.limits.total // _MIB} MiB altogether",
                "Import fewer files, or raise console.max_import_mib.",
            )
        return entries

    def _check_entry(self, info: zipfile.ZipInfo) -> None:
        name = info.orig_filename
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in name or "\\" in name or not name.isprintable():
            raise self._bad(info, "its path leads out of the archive", "plain names below evidence/")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            what = "a symbolic link" if kind == stat.S_IFLNK else "not a plain file"
            raise self._bad(info, f"it is {what}", "plain files only")
        if info.flag_bits & 0x1:
            raise self._bad(info, "it is encrypted", "entries without a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self._bad(info, f"it uses compression method {info.compress_type}", "stored or deflated entries")
        if info.file_size > self.limits.entry:
            raise self.refuse(
                f"it unpacks to {info.file_size} bytes",
                f"at most {self.limits.entry // _MIB} MiB for one file",
                "Cut the stream down to the key in question, or raise console.max_file_mib.",
                info.filename,
            )
        if info.file_size > _MIB and info.file_size > self.limits.ratio * max(info.compress_size, 1):
            raise self._bad(
                info,
                f"it claims to unpack to {info.file_size // max(info.compress_size, 1)} times its size",
                f"at most {self.limits.ratio} times",
            )

    def _bad(self, info: zipfile.ZipInfo, problem: str, expected: str) -> BundleError:
        return self.refuse(problem, expected, "Only import bundles that Hindcast wrote.", info.filename)

    def _manifest(self, archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo]) -> _Manifest:
        info = entries.get(MANIFEST)
        if info is None:
            raise self.refuse(
                f"it has no {MANIFEST}",
                "a bundle.zip that Hindcast wrote",
                "Import evidence files one by one if this is an archive of your own.",
            )
        told = self._json(self._content(archive, info, min(info.file_size, self.limits.manifest)))
        version = told.get("version")
        if told.get("format") != FORMAT:
            raise self.refuse(
                f"its format is {told.get('format')!r}", f"the format {FORMAT!r}", "Choose a bundle.", MANIFEST
            )
        if isinstance(version, int) and version > VERSION:
            raise self.refuse(
                f"it has format version {version}",
                f"version {VERSION} at most",
                "Upgrade Hindcast to a release that reads it.",
                MANIFEST,
            )
        try:
            return _Manifest.model_validate(told)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "it"
            problem = f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}"
            raise self.refuse(problem, "a manifest as docs/bundle.md describes it", _AGAIN, MANIFEST) from error

    def _json(self, content: bytes) -> dict[str, Any]:
        try:
            told = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self.refuse(f"it is not JSON ({error})", "a JSON object", _AGAIN, MANIFEST) from error
        if not isinstance(told, dict):
            raise self.refuse("it is not a JSON object", "a JSON object", _AGAIN, MANIFEST)
        return told

    def _check_complete(self, manifest: _Manifest, entries: Mapping[str, zipfile.ZipInfo]) -> None:
        listed = [file.entry for file in manifest.files]
        for entry in listed:
            if listed.count(entry) > 1:
                raise self.refuse("the manifest lists it twice", "each entry once", _AGAIN, entry)
            if entry not in entries:
                raise self.refuse("the manifest lists it, and it is not there", _WHOLE, _AGAIN, entry)
        for extra in sorted(entries.keys() - set(listed) - {MANIFEST}):
            raise self.refuse(
                "the manifest does not list it",
                "nothing but what the manifest lists",
                "Remove it from the archive.",
                extra,
            )

    def _file(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, listed: _Entry) -> EvidenceFile:
        try:
            role = Role(listed.role)
        except ValueError:
            known = ", ".join(Role)
            raise self.refuse(f"its role is {listed.role!r}", f"one of {known}", _AGAIN, listed.entry) from None
        if info.file_size != listed.size:
            problem = f"it has {info.file_size} bytes, and the manifest says {listed.size}"
            raise self.refuse(problem, "the size that the manifest gives", _AGAIN, listed.entry)
        content = self._content(archive, info, info.file_size)
        if hashlib.sha256(content).hexdigest() != listed.sha256:
            raise self.refuse("its bytes were changed", f"the sha256 {listed.sha256}", _AGAIN, listed.entry)
        return EvidenceFile(role, listed.name, content)

    def _content(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
        """Read one entry; what it declares may be a lie, so no more than `limit` is ever unpacked."""
        try:
            with archive.open(info) as stream:
                content = stream.read(limit + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise self.refuse(f"it is damaged ({error})", _WHOLE, _AGAIN, info.filename) from error
        if len(content) > limit:
            raise self._bad(info, f"it unpacks to more than {limit} bytes", "the size that it declares")
        return content


def sources_of(files: Sequence[EvidenceFile]) -> tuple[Mapping[str, Any], ...]:
    """Give each file the provenance of an upload of that name."""
    return tuple({"kind": "upload", "file": file.name} for file in files)
