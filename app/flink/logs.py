"""A whole log in memory: for the evidence of one incident, and for tests. Large files are streamed (see `counting`)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.flink.assemble import assemble
from app.flink.keys import Path
from app.flink.model import Placed, Run
from app.flink.placing import Placer
from app.flink.reading import read_lines
from app.flink.records import Garbage, Record, read_line, stream_of_name


@dataclass(frozen=True, slots=True)
class Log:
    """What a log holds: runs in the order in which they began, records of no known run, and lines that are none."""

    runs: tuple[Run, ...]
    unattributed: tuple[Record, ...]
    garbage: tuple[Garbage, ...]


def read_log(data: bytes, name: str = "", paths: Sequence[Path] = ()) -> Log:
    """Read a log's bytes (not packed); `name` may tell its writer, `paths` find the keys that it lacks."""
    placed: list[Placed] = []
    garbage: list[Garbage] = []
    placer, writer = Placer(paths), stream_of_name(name)
    for line in read_lines(io.BytesIO(data), name, longest=max(len(data), 1)):
        if not (line.data or b"").strip():
            continue
        read = read_line(line.data or b"", writer)
        if isinstance(read, Garbage):
            garbage.append(read)
        else:
            placed.append(placer.place(read))
    return Log(runs_of(placed, paths), tuple(one.record for one in placed if one.run is None), tuple(garbage))


def runs_of(placed: Iterable[Placed], paths: Sequence[Path] = ()) -> tuple[Run, ...]:
    """Assemble every run of some placed records, in the order in which they began."""
    held: dict[str, list[Placed]] = {}
    for one in placed:
        if one.run is not None:
            held.setdefault(one.run, []).append(one)
    return tuple(sorted((assemble(of, paths) for of in held.values()), key=lambda run: (run.first_ns, run.ref)))
