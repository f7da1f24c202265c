"""A host's memory across a kill: an append-only file that holds states, offsets and what is to be sent.

An entry is written before anything of it is sent, in one piece: after a kill it is there as a whole or not at
all. What was sent is read back from it, never computed again, so a repetition has the same bytes. Written data
survives the end of the process; with `sync` it survives the end of the machine too, and costs a disk write each.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from app.pipeline.emission import Stream
from app.pipeline.journal_pb2 import JournalEntry, KeptState
from app.pipeline.state import EMPTY, KeyState, Marks
from app.wire.framing import FramingError, read_frames, varint
from app.wire.records import RecordError, parse, serialize

# A file that begins with anything else is not ours to read, nor to overwrite.
_MAGIC: Final = b"hindcast pipeline journal 1\n"
# A protobuf message is never larger.
_FRAME_CAP: Final = 2**31
_COMPACT_FROM: Final = 32 * 1024 * 1024
_COMPACT_RATIO: Final = 4


class JournalError(Exception):
    """A journal that cannot be used; the text names the file, the problem and the remedy."""


@dataclass(frozen=True)
class Outgoing:
    """One record as a sink takes it."""

    stream: Stream
    key: bytes
    value: bytes


@dataclass
class Kept:
    """What a journal comes to: where the host goes on, and what may not have been sent."""

    states: dict[bytes, KeyState] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)
    watermark_ms: int = 0
    unsent: list[Outgoing] = field(default_factory=list)

    def apply(self, entry: JournalEntry) -> None:
        """Bring it up to date with one more entry."""
        if entry.delivered:
            self.unsent.clear()
        for kept in entry.keys:
            if kept.HasField("state"):
                self.states[kept.key] = _state(kept.state)
            else:
                self.states.pop(kept.key, None)
        self.offsets.update(entry.offsets)
        if entry.HasField("watermark_ms"):
            self.watermark_ms = entry.watermark_ms
        self.unsent.extend(Outgoing(Stream(one.stream), one.key, one.value) for one in entry.records)


class Journal:
    """The journal file of one host, locked while open. A context manager."""

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        """Open or make the file; raises JournalError when another process has it or it cannot be read."""
        self._path = path
        self._sync = sync
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path.with_name(path.name + ".lock"))
        try:
            self.kept = _read(path)
            self._rewrite()
        except BaseException:
            os.close(self._lock)
            raise

    def append(
        self,
        *,
        states: Mapping[bytes, KeyState],
        records: Sequence[Outgoing],
        offsets: Mapping[int, int],
        watermark_ms: int,
    ) -> None:
        """Write one entry; once this returns, a kill loses nothing of it."""
        entry = JournalEntry(
            keys=(_key(key, state) for key, state in states.items()),
            records=map(_record, records),
            offsets=offsets,
            watermark_ms=watermark_ms,
        )
        self._write(entry)
        # Not by way of the entry: the host and the journal share the states instead of holding them twice.
        self.kept.states.update(states)
        for key in [key for key, state in states.items() if state == EMPTY]:
            del self.kept.states[key]
        self.kept.offsets.update(offsets)
        self.kept.watermark_ms = watermark_ms
        self.kept.unsent.extend(records)

    def delivered(self) -> None:
        """Note that all records so far have arrived, so that they are not sent again after a restart."""
        if self.kept.unsent:
            self._write(JournalEntry(delivered=True))
            self.kept.unsent.clear()
        if self._size > max(_COMPACT_FROM, _COMPACT_RATIO * self._base):
            os.close(self._file)
            self._rewrite()

    def close(self) -> None:
        """Give the file up."""
        os.close(self._file)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, entry: JournalEntry) -> None:
        self._size += _write_whole(self._file, _frame(entry))
        if self._sync:
            os.fsync(self._file)

    def _rewrite(self) -> None:
        """Start the file anew with what it comes to; a kill in between leaves the old one."""
        fresh = self._path.with_name(self._path.name + ".new")
        kept = self.kept
        base = [JournalEntry(keys=[_key(key, state)]) for key, state in kept.states.items()]
        base.append(JournalEntry(offsets=kept.offsets, watermark_ms=kept.watermark_ms))
        base.extend(JournalEntry(records=[_record(record)]) for record in kept.unsent)
        target = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._size = self._base = sum(_write_whole(target, part) for part in (_MAGIC, *map(_frame, base)))
            os.fsync(target)
            fresh.replace(self._path)
        except BaseException:
            os.close(target)
            raise
        self._file = target


def _lock(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise JournalError(
            f"{path} is held by another process: one journal belongs to one host; stop the other or choose another file"
        ) from None
    return lock


def _read(path: Path) -> Kept:
    kept = Kept()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return kept
    if not data.startswith(_MAGIC) and data:
        raise JournalError(f"{path} is not a journal: name another file")
    try:
        # A torn last frame is an entry that a kill cut short: nothing of it was sent.
        for frame in read_frames(data[len(_MAGIC) :], cap=_FRAME_CAP).payloads:
            kept.apply(parse(JournalEntry, frame))
    except (FramingError, RecordError, ValueError) as error:
        raise JournalError(
            f"{path} is a damaged journal ({error}): name another file, or remove it to begin anew"
        ) from error
    return kept


def _frame(entry: JournalEntry) -> bytes:
    payload = serialize(entry)
    return varint(len(payload)) + payload


def _write_whole(target: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
    return len(data)


def _key(key: bytes, state: KeyState) -> JournalEntry.Key:
    if state == EMPTY:
        return JournalEntry.Key(key=key)
    marks = state.marks
    kept = KeptState(
        memory=state.memory,
        cache=state.cache,
        continuation=state.continuation,
        pending=state.pending,
        seq=state.seq,
        batch=state.batch,
        ttl_ms=marks.ttl,
        hitl_ms=marks.hitl,
        flush_ms=marks.flush,
    )
    return JournalEntry.Key(key=key, state=kept)


def _state(kept: KeptState) -> KeyState:
    return KeyState(
        memory=kept.memory if kept.HasField("memory") else None,
        cache=kept.cache if kept.HasField("cache") else None,
        continuation=kept.continuation if kept.HasField("continuation") else None,
        pending=tuple(kept.pending),
        seq=kept.seq,
        batch=tuple(kept.batch),
        marks=Marks(
            kept.ttl_ms if kept.HasField("ttl_ms") else None,
            kept.hitl_ms if kept.HasField("hitl_ms") else None,
            kept.flush_ms if kept.HasField("flush_ms") else None,
        ),
    )


def _record(record: Outgoing) -> JournalEntry.Record:
    return JournalEntry.Record(stream=record.stream, key=record.key, value=record.value)
