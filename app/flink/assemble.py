"""Makes a run of its records: one order, each event once, executions as a tree, and how it all ended.

Pure, and blind to arrival: the same records in any order, with any number of copies, give the same run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from app.flink.executions import executions_of
from app.flink.keys import Path, find_key
from app.flink.model import Ended, Entry, Execution, How, Placed, Run, RunStatus, Twice
from app.flink.records import FAILED, FINISHED, INPUT, REUSED, STARTED, Form, Record

_DEEPEST: Final = 10_000
_RANK: Final = {STARTED: 0, FINISHED: 2, FAILED: 2, REUSED: 2}


def assemble(placed: Iterable[Placed], paths: Iterable[Path] = ()) -> Run:
    """Make one run of the records that were put into it. Raises `ValueError` where there are none, or of several runs.

    `paths` find the key of a log that has none.
    """
    held = list(placed)
    refs = {one.run for one in held}
    if len(refs) != 1 or None in refs:
        raise ValueError(f"a run is made of the records of one run, not of {len(refs)}")
    entries = _ordered(held)
    records = [entry.record for entry in entries if entry.twice in (Twice.NO, Twice.CONFLICT)]
    first = records[0]
    key = next((record.key for record in records if record.key is not None), None)
    if key is None and paths:
        inputs = [record for record in records if record.type == INPUT]
        key = next((found for record in inputs if (found := find_key(record.attributes, paths)) is not None), None)
    executions = executions_of(records)
    return Run(
        ref=refs.pop() or "",
        form=first.form,
        stream=next((record.stream for record in records if record.stream.job), first.stream),
        key=key,
        agent=next((record.agent for record in records if record.agent is not None), None),
        status=_status(records, executions),
        entries=tuple(entries),
        executions=tuple(executions),
        input_missing=all(record.type != INPUT for record in records),
    )


def _status(records: Sequence[Record], executions: Sequence[Execution]) -> RunStatus:
    if any(one.status is Ended.FAILED and one.type == "action" for one in executions):
        return RunStatus.FAILED
    if any(one.status is Ended.UNFINISHED for one in executions):
        return RunStatus.UNFINISHED
    beyond = [record for record in records if record.type != INPUT]
    return RunStatus.COMPLETED if beyond else RunStatus.UNFINISHED


# One order -----------------------------------------------------------------------------------------------------------


def _ordered(held: Sequence[Placed]) -> list[Entry]:
    """Time first; what the clock ties, causes come before what they led to, and the rest goes by content."""
    depth = _depths([one.record for one in held])
    keyed = sorted(held, key=lambda one: _position(one.record, depth))
    seen: dict[str, Record] = {}
    digests: set[bytes] = set()
    entries = []
    for one in keyed:
        record = one.record
        before = seen.get(record.event_id)
        twice = Twice.AGAIN if record.digest in digests else _twice(before, record)
        digests.add(record.digest)
        if before is None:
            seen[record.event_id] = record
        entries.append(Entry(record, one.how or How.RUN_ID, twice))
    return entries


def _position(record: Record, depth: Mapping[str, int]) -> tuple[int, int, int, str, bytes]:
    kind = record.type
    return (
        record.time_ns,
        -1 if kind == INPUT else depth.get(record.event_id, 0),
        _RANK.get(kind, 1),
        kind,
        record.digest,
    )


def _depths(records: Sequence[Record]) -> dict[str, int]:
    """How many events led to each, where the log tells; a circle ends where it began."""
    above: dict[str, str] = {}
    for record in records:
        cause = record.upstream_event_id or record.request_id
        if cause is not None and cause != record.event_id:
            above.setdefault(record.event_id, cause)
    depths: dict[str, int] = {}
    for start in above:
        chain: list[str] = []
        at = start
        while at in above and at not in depths and len(chain) < _DEEPEST:
            chain.append(at)
            depths[at] = 0  # met again, it is a circle
            at = above[at]
        reached = depths.get(at, 0)
        for event in reversed(chain):
            reached += 1
            depths[event] = reached
    return depths


def _twice(before: Record | None, record: Record) -> Twice:
    if before is None:
        return Twice.NO
    if record.type != before.type or record.attributes != before.attributes:
        return Twice.CONFLICT
    if record.form is Form.NESTED and record.content_id:
        # Ids made of content: an equal event at another time is another event.
        return Twice.AGAIN if record.time_ns == before.time_ns else Twice.NO
    lineage = (record.upstream_event_id, record.upstream_action, record.execution_id)
    return Twice.AGAIN if lineage == _lineage(before) else Twice.NEW_LINEAGE


def _lineage(record: Record) -> tuple[str | None, str | None, str | None]:
    return record.upstream_event_id, record.upstream_action, record.execution_id
