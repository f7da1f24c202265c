"""Brings event logs of Flink Agents into the database, each line exactly once, whatever the file is called by now.

Synchronous and streaming: a batch of lines, the runs that they touch, and how far the log was read are one
transaction. A second importer of the same log is refused by the position, not by a lock.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Final

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.pool import NullPool

from app.flink import keys
from app.flink.placing import Placer
from app.flink.reading import Identity, Line, LogError, open_log, read_lines
from app.flink.records import Garbage, Record, Stream, read_line, stream_of_name
from app.incidents import flink_sql as sql
from app.incidents.audit import ORIGIN, Action
from app.incidents.columns import dumps, plain
from app.incidents.flink_store import Read, store_batch
from app.incidents.store import driver_url

BATCH_LINES: Final = 20_000
BATCH_BYTES: Final = 16 * 1024 * 1024
_LOOKED_AT: Final = 1_000  # lines among which the first record is looked for
_STREAMS: Final = 64  # subtasks of one log that are looked for in the log that goes on after it


@dataclass
class Imported:
    """What one log brought. `incomplete` is the size of a last line without an end, which was left for the next time.

    `already` tells that all of it was there before; `reasons` counts what made lines garbage.
    """

    name: str
    log_id: int = 0
    records: int = 0
    garbage: int = 0
    unattributed: int = 0
    incomplete: int = 0
    already: bool = False
    reasons: Counter[str] = field(default_factory=Counter)


class Changed(LogError):
    """What was read of a log is no longer there, or another process reads it at the same time."""


@dataclass
class _Known:
    """A log as the database knows it, and the placing of its records so far."""

    id: int
    name: str
    position: int
    mark: str
    told_paths: list[str]
    paths: Sequence[keys.Path]
    placer: Placer
    streams: set[str]

    @property
    def fresh(self) -> bool:
        return self.position == 0


class Importer:
    """Imports files one after another; `paths` find keys in logs that carry none (JSON paths into a record's payload).

    A log keeps the paths it was first read with unless others are given. A last line without an end is taken where it
    is a whole record, but while the file is `growing` it is left until it has its end.
    """

    def __init__(self, engine: Engine, who: str, paths: Sequence[str] = (), *, growing: bool = False) -> None:
        self._engine = engine
        self._who = who
        self._told = list(paths)
        keys.parse_paths(paths)
        self._growing = growing

    def import_file(self, path: Path, name: str | None = None) -> Imported:
        """Read what is new in a log; `name` is what it is called where that is not its name on disk.

        Raises `LogError`; whole batches before the fault are stored, and the next time goes on after them.
        """
        name = path.name if name is None else name
        done = Imported(name)
        writer = stream_of_name(name)
        with open_log(path) as stream:
            first = next(read_lines(stream, name), None)
            if first is None or not (first.whole or self._may_end(first, writer)):
                done.incomplete = 0 if first is None else first.size
                return done
            known = self._find(first, writer, name)
            done.log_id = known.id
            before = known.position
            _see_unchanged(stream, known)
            stream.seek(0)
            for batch in _batches(self._new_lines(stream, known, writer, done)):
                self._store(known, writer, batch, done)
        done.already = before > 0 and known.position == before
        return done

    def _may_end(self, line: Line, writer: Stream) -> bool:
        """Whether a line without an end is a whole record all the same."""
        return not self._growing and isinstance(read_line(line.data or b"", writer), Record)

    def _new_lines(self, stream: IO[bytes], known: _Known, writer: Stream, done: Imported) -> Iterator[Line]:
        for line in read_lines(stream, known.name, known.position):
            if line.whole or self._may_end(line, writer):
                yield line
            else:
                done.incomplete = line.size

    def _find(self, first: Line, writer: Stream, name: str) -> _Known:
        identity = Identity.of(first.data or str(first.size).encode(), "|".join(map(str, writer))).digest
        values = {"identity": identity, "name": plain(name), "who": plain(self._who), "paths": dumps(self._told)}
        with self._engine.begin() as connection:
            made = connection.execute(sql.ADD_LOG, values).rowcount == 1
            row = connection.execute(sql.FIND_LOG, {"identity": identity}).mappings().one()
            if made:
                connection.execute(sql.NOTE_LOG, self._note(row["id"], name, identity))
        told = self._told or list(row["key_paths"])
        paths = keys.parse_paths(told)
        placer = Placer(paths)
        placer.resume(row["state"])
        return _Known(row["id"], name, row["position"], row["mark"], told, paths, placer, set(row["streams"]))

    def _note(self, log_id: int, name: str, identity: str) -> dict[str, str | None]:
        detail = dumps({"name": name, "identity": identity})
        subject = f"event log {log_id}"
        return {
            "who": plain(self._who), "what": str(Action.LOG_IMPORTED), "subject": subject, "origin": ORIGIN.get(),
            "detail": detail,
        }  # fmt: skip

    def _store(self, known: _Known, writer: Stream, lines: Sequence[Line], done: Imported) -> None:
        told = [(line, _read(line, writer)) for line in lines if line.data is None or line.data.strip()]
        records = [read for _, read in told if isinstance(read, Record)]
        if known.fresh:
            self._adopt(known, records)
        batch = [Read(line, known.placer.place(read) if isinstance(read, Record) else read) for line, read in told]
        garbage = [read.told.reason for read in batch if isinstance(read.told, Garbage)]
        loose = sum(not isinstance(read.told, Garbage) and read.told.run is None for read in batch)
        for record in records:
            if len(known.streams) < _STREAMS and record.stream.job:
                known.streams.add(_spelt(record.stream))
        values = {
            "id": known.id,
            "expected": known.position,
            "name": plain(known.name),
            "position": lines[-1].end,
            "mark": f"{lines[-1].offset}:{_digest(lines[-1])}",
            "records": len(records),
            "garbage": len(garbage),
            "unattributed": loose,
            "paths": dumps(known.told_paths),
            "streams": [plain(stream) for stream in sorted(known.streams)],
            "last_ns": max((record.time_ns for record in records), default=0),
            "state": dumps(known.placer.state()),
        }
        with self._engine.begin() as connection:
            # First of all, so that of two importers one waits here and is then refused.
            if connection.execute(sql.MOVE_LOG, values).rowcount != 1:
                raise Changed(known.name, "another process imports it at the same time", "Let one of them do it.")
            store_batch(connection, known.id, batch, known.paths)
        known.position = lines[-1].end
        done.records += len(records)
        done.garbage += len(garbage)
        done.unattributed += loose
        done.reasons.update(garbage)

    def _adopt(self, known: _Known, records: Sequence[Record]) -> None:
        """Go on with the runs that were under way in the file before this one, where a subtask's log was rotated."""
        streams = {_spelt(record.stream) for record in records if record.stream.job}
        if not streams:
            return
        asked = {"streams": sorted(map(plain, streams)), "first_ns": records[0].time_ns, "id": known.id}
        with self._engine.connect() as connection:
            state = connection.execute(sql.BEFORE, asked).scalar()
        known.placer.resume(one for one in state or () if _spelt(Stream(*one["stream"])) in streams)


def _see_unchanged(stream: IO[bytes], known: _Known) -> None:
    """See that the last line that was read before is still there. Raises `Changed`."""
    if not known.mark:
        return
    start, _, digest = known.mark.partition(":")
    last = next(read_lines(stream, known.name, int(start)), None)
    if last is None or _digest(last) != digest:
        raise Changed(
            known.name,
            f"it was read up to byte {known.position}, and what stood before it is no longer there",
            "An event log only grows; get the file whole, or leave it.",
        )


def _batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += line.size
        if len(batch) >= BATCH_LINES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read(line: Line, writer: Stream) -> Record | Garbage:
    if line.data is None:
        return Garbage(f"longer than a line may be ({line.size} bytes)", b"")
    return read_line(line.data, writer)


def _digest(line: Line) -> str:
    return hashlib.sha256(line.data or str(line.size).encode()).hexdigest()


def _spelt(stream: Stream) -> str:
    return "|".join(map(str, stream))


def totals(engine: Engine, logs: Sequence[int]) -> dict[str, int]:
    """Count what some logs hold together, in the words of `app.flink.counting`."""
    with engine.connect() as connection:
        row = connection.execute(sql.TOTALS, {"logs": list(logs)}).mappings().one()
    return {name: int(value) for name, value in row.items()}


def import_bytes(
    url: str | URL, who: str, paths: Sequence[str], files: Sequence[tuple[str, bytes]]
) -> tuple[list[Imported], list[str]]:
    """Import uploaded logs under the names that they came with, and say of each that cannot be read why.

    An upload that holds no record at all is refused before anything of it is stored.
    """
    engine = create_engine(driver_url(url), poolclass=NullPool)
    done: list[Imported] = []
    troubles: list[str] = []
    try:
        importer = Importer(engine, who, paths)
        with tempfile.TemporaryDirectory() as folder:
            held = []
            for number, (name, data) in enumerate(files):
                held.append((name, Path(folder) / str(number)))
                held[-1][1].write_bytes(data)
            looked = [(look(path, name), name, path) for name, path in held]
            troubles += [f"{name}: {found}." for found, name, _ in looked if isinstance(found, str)]
            for _, name, path in sorted(one for one in looked if not isinstance(one[0], str)):
                try:
                    done.append(importer.import_file(path, name))
                except LogError as error:
                    troubles.append(str(error))
    finally:
        engine.dispose()
    return done, troubles


def look(path: Path, name: str) -> int | str:
    """When a log begins (nanoseconds), by the first record among its first lines; else why it is none."""
    why = "the file is empty"
    try:
        with open_log(path) as stream:
            for line in islice(read_lines(stream, name), _LOOKED_AT):
                if line.data is not None and not line.data.strip():
                    continue
                read = _read(line, stream_of_name(name))
                if isinstance(read, Record):
                    return read.time_ns
                why = f"no line is a record of an event log ({read.reason})"
    except LogError as error:
        return f"{error.what}. {error.remedy.removesuffix('.')}"
    return why
