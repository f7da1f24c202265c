"""Counts what event logs hold without keeping any of it: for a look before an import, in bounded memory.

Lines go into scratch files by their run, so that each file can be assembled by itself: a log of gigabytes needs disk,
not memory. Events are told apart across runs in the same way.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, cast

from app.flink.keys import Path as KeyPath
from app.flink.logs import runs_of
from app.flink.model import How, Placed, Run, RunStatus
from app.flink.placing import Placer
from app.flink.reading import LogError, open_log, read_lines
from app.flink.records import Form, Record, Stream, read_line, stream_of_name

_PIECE: Final = 8 * 1024 * 1024  # bytes of log that are assembled at once
_PIECES: Final = 400  # files that may be open
_IN_MEMORY: Final = 1024 * 1024
_DIGEST: Final = 16


@dataclass
class Counts:
    """What logs hold. `events` are records, `duplicates` those that came again, `truncated` those cut short.

    `unattributed` are records of no known run, `unfinished` runs without an end, `garbage` lines that are no record.
    """

    runs: int = 0
    events: int = 0
    duplicates: int = 0
    truncated: int = 0
    unattributed: int = 0
    unfinished: int = 0
    failed: int = 0
    garbage: int = 0
    incomplete: int = 0
    concluded: int = 0
    not_verbose: int = 0
    keys: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "reasons": dict(self.reasons.most_common())}


def count_logs(paths: Sequence[Path], key_paths: Sequence[KeyPath] = ()) -> Counts:
    """Count what some logs hold together. A file that cannot be read to its end is named in `problems`."""
    counts = Counts()
    size = sum(path.stat().st_size * (8 if path.suffix == ".gz" else 1) for path in paths if path.exists())
    with ExitStack() as scratch:
        pieces = _Pieces(scratch, max(1, min(_PIECES, size // _PIECE)))
        placer = Placer(key_paths)
        for path in paths:
            try:
                for record, line in _records(path, counts):
                    placed = placer.place(record)
                    if placed.run is None:
                        counts.unattributed += 1
                    else:
                        pieces.add(placed, line)
            except LogError as error:
                counts.problems.append(str(error))
        known: set[bytes] = set()
        for runs in pieces.runs(key_paths):
            for run in runs:
                _sum_up(run, counts, pieces, known)
        counts.keys = len(known)
        counts.duplicates += pieces.in_several_runs()
    return counts


def _records(path: Path, counts: Counts) -> Iterator[tuple[Record, bytes]]:
    writer = stream_of_name(path.name)
    with open_log(path) as stream:
        for line in read_lines(stream, str(path)):
            if line.data is not None and not line.data.strip():
                continue
            read = read_line(line.data or b"", writer)
            if isinstance(read, Record):
                counts.events += 1
                yield read, line.data or b""
            elif line.whole:
                counts.garbage += 1
                counts.reasons[read.reason] += 1
            else:
                counts.incomplete += 1


def _sum_up(run: Run, counts: Counts, pieces: _Pieces, known: set[bytes]) -> None:
    counts.runs += 1
    counts.duplicates += run.duplicates
    counts.truncated += run.truncated
    counts.concluded += run.concluded
    counts.unfinished += run.status is RunStatus.UNFINISHED
    counts.failed += run.status is RunStatus.FAILED
    counts.not_verbose += not run.verbose
    if run.key is not None:
        known.add(hashlib.sha256(run.key.encode("utf-8", "surrogatepass")).digest()[:12])
    if run.form is Form.FLAT:
        pieces.note(run)


class _Pieces:
    """Scratch files: lines by the digest of their run, and pairs of event and run by the digest of the event."""

    def __init__(self, scratch: ExitStack, count: int) -> None:
        self._lines = [_scratch(scratch) for _ in range(count)]
        self._events = [_scratch(scratch) for _ in range(max(1, count // 8))]

    def add(self, placed: Placed, line: bytes) -> None:
        """Keep a line of a run until its piece is assembled."""
        assert placed.run is not None
        head = json.dumps([placed.run, placed.how, placed.record.stream, len(line)]).encode()
        self._lines[int.from_bytes(_digest(placed.run)[:4]) % len(self._lines)].write(head + b"\n" + line)

    def note(self, run: Run) -> None:
        """Remember which events are in a run."""
        of = _digest(run.ref)
        for event in {record.event_id for record in run.records}:
            digest = _digest(event)
            self._events[digest[0] % len(self._events)].write(digest + of)

    def runs(self, key_paths: Sequence[KeyPath]) -> Iterator[Iterable[Run]]:
        """The runs of each piece, assembled piece by piece."""
        for file in self._lines:
            file.seek(0)
            yield runs_of(_kept(file), key_paths)

    def in_several_runs(self) -> int:
        """How often an event is in a run when it was in another one already."""
        again = 0
        for file in self._events:
            file.seek(0)
            pairs = set(iter(partial(file.read, 2 * _DIGEST), b""))
            again += len(pairs) - len({pair[:_DIGEST] for pair in pairs})
        return again


def _kept(file: IO[bytes]) -> Iterator[Placed]:
    while head := file.readline():
        run, how, stream, size = json.loads(head)
        record = read_line(file.read(size), Stream(*stream))
        assert isinstance(record, Record), "only records are kept"
        yield Placed(record, run, How(how))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_DIGEST]


def _scratch(stack: ExitStack) -> IO[bytes]:
    return stack.enter_context(cast("IO[bytes]", tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)))
