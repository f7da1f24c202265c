"""Stores a batch of an event log's lines, and sums up the runs that they touch: one transaction, the caller's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from app.flink.assemble import assemble
from app.flink.keys import Path
from app.flink.model import How, Placed, Run
from app.flink.reading import Line
from app.flink.records import INPUT, Form, Garbage, Record, read_line
from app.flink.words import words_of
from app.incidents import flink_sql as sql
from app.incidents.collecting_sql import copy
from app.incidents.columns import plain

WHOLE_RUN: Final = 20_000  # records of one run that are held at once; of a longer one the first


class Read(NamedTuple):
    """A line, and what it was read as: a record in its place, or garbage."""

    line: Line
    told: Placed | Garbage


def store_batch(connection: Connection, log_id: int, batch: Sequence[Read], paths: Sequence[Path]) -> None:
    """Add a batch's lines, and make the rows of its runs anew."""
    runs: dict[str, list[Placed]] = {}
    for read in batch:
        if isinstance(read.told, Placed) and read.told.run is not None:
            runs.setdefault(plain(read.told.run), []).append(read.told)
    refs = {"refs": sorted(runs)}
    held: dict[str, tuple[int, int]] = {}
    if runs:
        connection.execute(sql.ADD_RUNS, refs)
        held = {row.ref: (row.id, row.records) for row in connection.execute(sql.HOLD_RUNS, refs)}
    # What was there before is read before the batch is added to it.
    earlier = _lines_of(connection, [known for known, records in held.values() if 0 < records < WHOLE_RUN])
    ids = {ref: known for ref, (known, _) in held.items()}
    copy(connection, "flink_records", sql.RECORD_COLUMNS, list(_rows(log_id, batch, ids)))
    shared = _shared(connection, [ids[ref] for ref, of in runs.items() if of[0].record.form is Form.FLAT])
    summed = []
    for ref, of in runs.items():
        known, before = held[ref]
        if before >= WHOLE_RUN:
            connection.execute(sql.GROW, {"id": known, "more": len(of)})
            continue
        run = assemble([*earlier.get(known, ()), *of][:WHOLE_RUN], paths)
        summed.append(_summary(run, known, before + len(of), shared.get(known, 0)))
    if summed:
        connection.execute(sql.SUM_UP, summed)


def placed_line(ref: str, how: str, line: bytes) -> Placed:
    """A stored line as it was placed. Raises `ValueError` for a line that is no record: none of a run is stored so."""
    record = read_line(line)
    if isinstance(record, Garbage):
        raise ValueError(f"a stored line of the run {ref!r} is no record: {record.reason}")
    return Placed(record, ref, How(how))


def _lines_of(connection: Connection, ids: Sequence[int]) -> dict[int, list[Placed]]:
    found: dict[int, list[Placed]] = {}
    if ids:
        for run, how, line, ref in connection.execute(sql.LINES_OF, {"runs": list(ids), "limit": WHOLE_RUN}):
            found.setdefault(run, []).append(placed_line(ref, how, line))
    return found


def _shared(connection: Connection, ids: Sequence[int]) -> dict[int, int]:
    if not ids:
        return {}
    return {row[0]: row[1] for row in connection.execute(sql.SHARED, {"runs": list(ids)})}


def _rows(log_id: int, batch: Sequence[Read], ids: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
    for line, told in batch:
        data = line.data or b""
        if isinstance(told, Garbage):
            yield log_id, line.offset, None, None, None, told.reason, data
        elif told.run is None:
            yield log_id, line.offset, None, event_digest(told.record), None, None, data
        else:
            yield log_id, line.offset, ids[plain(told.run)], event_digest(told.record), str(told.how), None, data


def event_digest(record: Record) -> int | None:
    """What tells the same event in other runs; None where an id made of content would tell equal ones."""
    if record.content_id and record.form is Form.NESTED and record.type != INPUT:
        return None
    return int.from_bytes(hashlib.sha256(record.event_id.encode("utf-8", "replace")).digest()[:8], signed=True)


def _summary(run: Run, known: int, records: int, shared: int) -> dict[str, Any]:
    def names(values: Sequence[str]) -> list[str]:
        return [plain(value) for value in values]

    return {
        "id": known,
        "form": str(run.form),
        "job": plain(run.stream.job),
        "task": plain(run.stream.task),
        "subtask": run.stream.subtask,
        "key": None if run.key is None else plain(run.key),
        "agent": None if run.agent is None else plain(run.agent),
        "status": str(run.status),
        "first_ns": run.first_ns,
        "last_ns": run.last_ns,
        "records": records,
        "executions": len(run.executions),
        "duplicates": run.duplicates,
        "shared": shared,
        "truncated": run.truncated,
        "concluded": run.concluded,
        "unfinished": run.unfinished,
        "terse": not run.verbose,
        "input_missing": run.input_missing,
        "partial": records > WHOLE_RUN,
        "categories": names(run.problem_categories),
        "tools": names(run.names("tool")),
        "models": names(run.names("llm")),
        "actions": names(run.names("action")),
        "words": plain(words_of(run)),
    }
