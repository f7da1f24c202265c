"""Writes a capture: records as they come, the manifest when all is there."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from .format import (
    FORMAT,
    KEYS,
    MANIFEST,
    VERSION,
    About,
    Captured,
    CaptureError,
    Manifest,
    Part,
    Span,
    check_about,
    encoded,
    follow,
    json_bytes,
    known,
    rise,
)

PART_BYTES: Final = 8 * 1024 * 1024


class CaptureWriter:
    """Writes a capture into an empty folder; `close` completes it. Left by an exception, it stays without a manifest.

    Not for several threads at once: a gate of each subtask writes its own capture, or they take turns here.
    """

    def __init__(self, folder: Path | str, about: About, part_bytes: int = PART_BYTES) -> None:
        """Raises `CaptureError` for a folder that holds something, or for an `about` that says nothing."""
        self._folder = Path(folder)
        self._about = about
        self._part_bytes = part_bytes
        self._parts: list[Part] = []
        self._open: dict[int, _OpenPart] = {}
        self._spans: dict[str, Span] = {}
        self._homes: dict[str, int] = {}
        self._watermarks: dict[int, int] = {}
        self._files = 0
        check_about(about, MANIFEST)
        self._folder.mkdir(parents=True, exist_ok=True)
        if any(self._folder.iterdir()):
            raise CaptureError(str(self._folder), "the folder is not empty", "Give a capture a folder of its own.")

    def append(self, record: Captured, subtask: int = 0) -> None:
        """Add one input; of a key, in its order. Raises `CaptureError` for what could not be read back."""
        place = f"record {record.seq} of key {record.key!r}"
        line = self._line(record, place)
        key = known(record.key)
        home = self._homes.setdefault(key, subtask)
        if home != subtask:
            raise CaptureError(place, f"came to subtask {subtask}, but the key's records are of subtask {home}")
        follow(self._spans, key, record.seq, place, record.key)
        rise(self._watermarks, subtask, record.watermark, place)
        part = self._open.get(subtask)
        if part is None:
            part = self._open[subtask] = _OpenPart(self._folder, self._files, subtask)
            self._files += 1
        part.write(line)
        if part.bytes >= self._part_bytes:
            self._parts.append(self._open.pop(subtask).end())

    def _line(self, record: Captured, place: str) -> bytes:
        if record.seq < 0:
            raise CaptureError(place, "a sequence number is 0 or more")
        about = self._about
        told = {
            "key": encoded(record.key, about.key.encoding, place),
            "seq": record.seq,
            "event_time": record.event_time,
            "watermark": record.watermark,
            "payload": encoded(record.payload, about.payload.encoding, place),
        }
        return json_bytes(told, place) + b"\n"

    def close(self) -> Manifest:
        """Write what is left, the keys, and last the manifest."""
        self._parts += [part.end() for part in self._open.values()]
        self._open.clear()
        self._parts.sort(key=lambda part: part.file)
        keys = hashlib.sha256()
        with (self._folder / KEYS).open("wb") as file:
            for span in self._spans.values():
                shown = encoded(span.key, self._about.key.encoding, KEYS)
                line = json_bytes({"key": shown, "first": span.first, "last": span.last}, KEYS) + b"\n"
                keys.update(line)
                file.write(line)
            _settle(file)
        records = sum(part.records for part in self._parts)
        manifest = Manifest(self._about, tuple(self._parts), records, len(self._spans), keys.hexdigest())
        unfinished = self._folder / f"{MANIFEST}.part"
        with unfinished.open("wb") as file:
            file.write(json.dumps(_told(manifest), indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            _settle(file)
        unfinished.replace(self._folder / MANIFEST)
        return manifest

    def __enter__(self) -> CaptureWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        for part in self._open.values():
            part.end()


class _OpenPart:
    def __init__(self, folder: Path, number: int, subtask: int) -> None:
        self._name = f"part-{number:05}.jsonl"
        self._subtask = subtask
        self._file = (folder / self._name).open("wb")
        self._hash = hashlib.sha256()
        self.bytes = 0
        self._records = 0

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._hash.update(line)
        self.bytes += len(line)
        self._records += 1

    def end(self) -> Part:
        _settle(self._file)
        self._file.close()
        return Part(self._name, self._subtask, self._records, self.bytes, self._hash.hexdigest())


def _settle(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _told(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        **asdict(manifest.about),
        "records": manifest.records,
        "keys": {"count": manifest.keys, "file": KEYS, "sha256": manifest.keys_sha256},
        "parts": [asdict(part) for part in manifest.parts],
    }
