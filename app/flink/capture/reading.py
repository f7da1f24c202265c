"""Reads a capture back, and refuses what is not whole: the place is named, and nothing after it is yielded."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar

from .format import (
    FORMAT,
    KEYS,
    MANIFEST,
    VERSION,
    About,
    Captured,
    CaptureError,
    Manifest,
    Operator,
    Part,
    SourcePosition,
    Span,
    Typed,
    check_about,
    decoded,
    follow,
    known,
    rise,
)

_PART: Final = re.compile(r"part-\d{5,9}\.jsonl")
T = TypeVar("T")

_LINE: Final = 64 * 1024 * 1024  # bytes of one record


def read_manifest(folder: Path | str) -> Manifest:
    """Read what a capture says of itself. Raises `CaptureError` where it is missing, damaged or of a newer format."""
    path = Path(folder) / MANIFEST
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CaptureError(
            str(path), "there is none: the capture was not completed", "A gate writes it when it closes."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(str(path), f"cannot be read ({error})") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise CaptureError(str(path), f"is not the manifest of a capture: its format is not {FORMAT!r}")
    if told.get("version") != VERSION:
        raise CaptureError(
            str(path), f"is of version {told.get('version')!r}; this reads {VERSION}", "Read it with a newer Hindcast."
        )
    try:
        return _manifest(told)
    except (KeyError, TypeError, ValueError) as error:
        raise CaptureError(str(path), f"lacks something, or has it in another form ({error!r})") from error


def read_capture(folder: Path | str) -> Iterator[Captured]:
    """Yield all records, part by part; the records of a part come only once its digest is known to be right.

    Raises `CaptureError` at the first gap, repetition, reordering, wrong digest or wrong count, naming the place.
    """
    root = Path(folder)
    manifest = read_manifest(root)
    spans: dict[str, Span] = {}
    watermarks: dict[int, int] = {}
    for part in manifest.parts:
        _check_digest(root / part.file, part.sha256, part.bytes)
        records = 0
        for place, told in _lines(root / part.file):
            record = _captured(told, manifest.about, place)
            follow(spans, known(record.key), record.seq, place, record.key)
            rise(watermarks, part.subtask, record.watermark, place)
            records += 1
            yield record
        if records != part.records:
            raise CaptureError(part.file, f"holds {records} records; the manifest counts {part.records}")
    _check_keys(root, manifest, spans)


def verify(folder: Path | str) -> Manifest:
    """Read all of a capture and return its manifest. Raises `CaptureError` where something is not as it says."""
    for _ in read_capture(folder):
        pass
    return read_manifest(folder)


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE):
            number += 1
            place = f"{path.name}, line {number}"
            if not line.endswith(b"\n"):
                raise CaptureError(place, "ends inside a record, or the record is longer than 64 MiB")
            try:
                yield place, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise CaptureError(place, f"is not JSON ({error})") from error


def _check_digest(path: Path, sha256: str, size: int | None = None) -> None:
    digest = hashlib.sha256()
    read = 0
    try:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
                read += len(piece)
    except OSError as error:
        raise CaptureError(path.name, f"cannot be read ({error.strerror}), but the manifest names it") from error
    if size is not None and read != size:
        raise CaptureError(path.name, f"has {read} bytes; the manifest says {size}")
    if digest.hexdigest() != sha256:
        raise CaptureError(path.name, f"has the sha256 {digest.hexdigest()}; the manifest says {sha256}")


def _check_keys(root: Path, manifest: Manifest, spans: dict[str, Span]) -> None:
    """The keys that were read are those that were written, each from its first to its last."""
    _check_digest(root / KEYS, manifest.keys_sha256)
    for place, told in _lines(root / KEYS):
        if not isinstance(told, dict) or set(told) != {"key", "first", "last"}:
            raise CaptureError(place, "is not an object of key, first and last")
        key = decoded(told["key"], manifest.about.key.encoding, place)
        span = spans.pop(known(key), None)
        if span is None:
            raise CaptureError(place, f"names the key {key!r}, of which no part has a record")
        if (span.first, span.last) != (told["first"], told["last"]):
            raise CaptureError(
                place,
                f"key {key!r} runs from {told['first']} to {told['last']}, but the parts hold"
                f" {span.first} to {span.last}",
            )
    if spans:
        raise CaptureError(KEYS, f"does not name the key {next(iter(spans.values())).key!r}, which the parts hold")


_FIELDS: Final = frozenset({"key", "seq", "event_time", "watermark", "payload"})


def _captured(told: Any, about: About, place: str) -> Captured:
    if not isinstance(told, dict) or set(told) != _FIELDS:
        raise CaptureError(place, f"is not an object of {', '.join(sorted(_FIELDS))}")
    for name in ("seq", "event_time", "watermark"):
        value = told[name]
        if type(value) is not int and (name == "seq" or value is not None):
            raise CaptureError(place, f"has a {name} that is no whole number: {value!r}")
    if told["seq"] < 0:
        raise CaptureError(place, "a sequence number is 0 or more")
    return Captured(
        decoded(told["key"], about.key.encoding, place),
        told["seq"],
        told["event_time"],
        told["watermark"],
        decoded(told["payload"], about.payload.encoding, place),
    )


def _manifest(told: Mapping[str, Any]) -> Manifest:
    about = About(
        job=_of(str, told["job"]),
        key=_pick(Typed, told["key"]),
        payload=_pick(Typed, told["payload"]),
        max_parallelism=_of(int, told["max_parallelism"]),
        plan_hash=_of(str, told["plan_hash"]),
        operators=tuple(_pick(Operator, each) for each in told["operators"]),
        sources=tuple(_pick(SourcePosition, each) for each in told["sources"]),
        versions=dict(told["versions"]),
    )
    check_about(about, MANIFEST)
    parts = tuple(_pick(Part, each) for each in told["parts"])
    for part in parts:
        if not _PART.fullmatch(_of(str, part.file)):
            raise CaptureError(MANIFEST, f"names the part {part.file!r}, which is no name of a part")
    if len({part.file for part in parts}) != len(parts):
        raise CaptureError(MANIFEST, "names a part twice")
    records = _of(int, told["records"])
    if records != sum(part.records for part in parts):
        raise CaptureError(MANIFEST, f"counts {records} records, but its parts {sum(part.records for part in parts)}")
    return Manifest(about, parts, records, _of(int, told["keys"]["count"]), _of(str, told["keys"]["sha256"]))


def _pick(kind: type[T], told: Mapping[str, Any]) -> T:
    """Make a value of the members that are known; newer writers may add others."""
    return kind(**{each.name: told[each.name] for each in fields(kind) if each.name in told})  # type: ignore[arg-type]


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
