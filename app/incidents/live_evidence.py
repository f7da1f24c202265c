"""From collected records to an incident's evidence: the frames of one key, byte for byte, with their places.

Evidence is only ever added: what arrives later becomes a file of its own, and no record becomes evidence twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from app.incidents import intake
from app.incidents import live_repository as live
from app.incidents import repository as db
from app.incidents.activations import Activation, attempts_of_key
from app.incidents.deliveries import ERRORS, INTENTS, OUTPUTS, SNAPSHOTS, TRACES, Unusable, check
from app.incidents.errors import FileProblem, found
from app.incidents.intake import EvidenceFile, Role
from app.incidents.live_models import Stream
from app.incidents.models import Evidence, Incident
from app.incidents.projection import Range
from app.incidents.segments import Raw
from app.incidents.store import ReadSession, WriteSession
from app.wire import identity
from app.wire.framing import write_frames
from app.wire.records import RecordError, TraceEvent, parse

_ROLES: Final = {
    TRACES: Role.TRACES, INTENTS: Role.INTENTS, OUTPUTS: Role.OUTPUTS, ERRORS: Role.ERRORS, SNAPSHOTS: Role.SNAPSHOT,
}  # fmt: skip

# How much of a key's life around the attempt becomes evidence: clocks of earlier activations tell what a read may
# have seen, later ones what a snapshot holds.
SEQS_BEFORE: Final = 200
SEQS_AFTER: Final = 100
ATTEMPTS: Final = 300
RECORDS: Final = 500
SNAPSHOT_COUNT: Final = 100

_FILE_RECORDS: Final = 2000
_FILE_BYTES: Final = 16 * 1024 * 1024

RecordPlace = tuple[str, int, int, int]
"""Topic, incarnation, partition, offset."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file on its way into evidence, and where it comes from."""

    file: EvidenceFile
    source: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """A topic as far as it is the same log."""

    topic: str
    incarnation: int = 1


async def collected_evidence(
    session: ReadSession, incident: Incident, about: Activation | None, *, outputs: bool
) -> list[Found]:
    """Make files of what intake holds of an incident's key and is not evidence yet.

    `about` is the attempt in question. Without `outputs` that stream is left out: as long as it may be incomplete, a
    missing output would look like a difference.
    """
    assert incident.pipeline is not None, "only incidents of a live pipeline have collected evidence"
    assert incident.entity_key is not None, "an incident of a live pipeline has a key"
    key = incident.entity_key
    streams = await live.streams(session, incident.pipeline)
    kept = await db.evidence_of(session, incident.id)
    known = {(role, place) for file in kept for role, place in places_of(file)}
    ranges, near = await _trace_ranges(session, incident, about)
    traces = await live.raw_records(session, ranges)
    files = _files(streams, _own_events(traces, key), known, Role.TRACES)
    times = [raw.timestamp_ms for records in traces.values() for raw in records if raw.timestamp_ms is not None]
    at = min(times, key=lambda time: abs(time - near), default=near)
    for name in (INTENTS, ERRORS, *((OUTPUTS,) if outputs else ())):
        ids = [number for number, stream in streams.items() if stream.stream == name]
        if ids:
            places = await live.keyed_places(session, ids, key, at, RECORDS)
            files += _files(streams, await live.raw_records(session, places), known, _ROLES[name])
    return files + await _snapshots(session, streams, key, kept)


async def add_evidence(
    session: WriteSession, incident: Incident, offered: Sequence[Found]
) -> tuple[list[Evidence], list[FileProblem]]:
    """Add files to an incident and look anew at which attempt the evidence selects.

    Files that it has already are left out. Returns what was added, and a problem for each file that is not sound.
    """
    locked = found(await db.incident(session, incident.id, lock=True), "incident", incident.id)
    kept = await db.evidence_of(session, incident.id)
    have = {(file.role, file.sha256) for file in kept}
    fresh: dict[tuple[str, str], Found] = {}
    for one in offered:
        fresh.setdefault((str(one.file.role), one.file.sha256), one)
    new = [one for name, one in fresh.items() if name not in have]
    if not new:
        return [], []
    summaries, problems = await asyncio.to_thread(intake.check, [one.file for one in new])
    sound = [(one, summary) for one, summary in zip(new, summaries, strict=True) if summary is not None]
    await db.keep_blobs(session, await asyncio.to_thread(lambda: [intake.pack(one.file) for one, _ in sound]))
    start = max((file.position for file in kept), default=-1) + 1
    rows = [
        Evidence(
            incident_id=incident.id,
            position=position,
            role=str(summary.role),
            name=summary.name,
            sha256=summary.sha256,
            size=summary.size,
            records=summary.records,
            summary=summary.describes,
            warnings=list(summary.warnings),
            source=dict(one.source),
        )
        for position, (one, summary) in enumerate(sound, start=start)
    ]
    session.add_all(rows)
    await session.flush()
    if rows:
        await look_again(session, locked)
    return rows, problems


async def look_again(session: WriteSession, incident: Incident) -> None:
    """Select the attempt anew from all evidence there is now, and tell pages."""
    kept = await db.evidence_of(session, incident.id)
    files = []
    for file in kept:
        codec, data = found(await db.blob(session, file.sha256), "stored file", file.sha256)
        files.append(EvidenceFile(Role(file.role), file.name, await asyncio.to_thread(intake.unpack, codec, data)))
    facts = await asyncio.to_thread(intake.facts_of, files, incident.wanted_seq)
    incident.problem = facts.problem
    if facts.problem is None:
        incident.kind, incident.clock_ms, incident.attempt = facts.kind, facts.clock_ms, facts.attempt
        incident.recorded_status = facts.recorded_status
        incident.seq = facts.seq if facts.seq is not None else incident.seq
    incident.version += 1
    await session.flush()


# Files ---------------------------------------------------------------------------------------------------------------


def stream_files(log: Log, role: Role, partition: int, records: Sequence[Raw]) -> list[Found]:
    """Make framed files of records of one partition, ascending by offset."""
    return [
        Found(
            EvidenceFile(role, f"{log.topic}-{partition}-{piece[0].offset}.bin", write_frames(_values(piece))),
            source_of(log, partition, piece),
        )
        for piece in _pieces(records)
    ]


def record_file(log: Log, role: Role, name: str, partition: int, record: Raw, **more: Any) -> Found:
    """Make a file of one record."""
    return Found(EvidenceFile(role, name, record.value or b""), source_of(log, partition, [record]) | more)


def source_of(log: Log, partition: int, records: Sequence[Raw]) -> dict[str, Any]:
    """Write down where records come from; `offsets` names all of them where there are several."""
    source: dict[str, Any] = {
        "kind": "kafka",
        "topic": log.topic,
        "partition": partition,
        "offset": records[0].offset,
        "timestamp_ms": records[0].timestamp_ms,
    }
    if log.incarnation != 1:
        source["incarnation"] = log.incarnation
    if len(records) > 1:
        source["offsets"] = write_offsets([record.offset for record in records])
    return source


def places_of(file: Evidence) -> Iterable[tuple[str, RecordPlace]]:
    """Name the records that a file of evidence holds, with its role."""
    source = file.source
    if source.get("kind") != "kafka":
        return
    for offset in read_offsets(str(source.get("offsets", source["offset"]))):
        yield file.role, (source["topic"], source.get("incarnation", 1), source["partition"], offset)


def write_offsets(offsets: Sequence[int]) -> str:
    """Write ascending offsets as `3-7,9`."""
    spans = []
    for _, run in groupby(enumerate(offsets), lambda pair: pair[1] - pair[0]):
        members = [offset for _, offset in run]
        spans.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(spans)


def read_offsets(text: str) -> Iterable[int]:
    """Undo `write_offsets`."""
    for span in text.split(","):
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _files(
    streams: Mapping[int, Stream],
    records: Mapping[tuple[int, int], Sequence[Raw]],
    known: Collection[tuple[str, RecordPlace]],
    role: Role,
) -> list[Found]:
    files: list[Found] = []
    for (stream_id, partition), run in sorted(records.items()):
        stream = streams[stream_id]
        log = Log(stream.topic, stream.incarnation)
        fresh = [
            record
            for record in run
            if record.value is not None and (str(role), (*_place(log), partition, record.offset)) not in known
        ]
        if fresh:
            files += stream_files(log, role, partition, fresh)
    return files


def _place(log: Log) -> tuple[str, int]:
    return log.topic, log.incarnation


def _values(records: Iterable[Raw]) -> list[bytes]:
    return [record.value or b"" for record in records]


def _pieces(records: Sequence[Raw]) -> Iterable[Sequence[Raw]]:
    start = size = 0
    for index, record in enumerate(records):
        length = len(record.value or b"")
        if index > start and (index - start >= _FILE_RECORDS or size + length > _FILE_BYTES):
            yield records[start:index]
            start, size = index, 0
        size += length
    yield records[start:]


# What belongs to a key -----------------------------------------------------------------------------------------------


async def _trace_ranges(session: ReadSession, incident: Incident, about: Activation | None) -> tuple[list[Range], int]:
    """Where the events of the attempt and of its key around it lie, and about when that was."""
    assert incident.pipeline is not None
    assert incident.entity_key is not None
    seqs = None if about is None else (about.seq - SEQS_BEFORE, about.seq + SEQS_AFTER)
    near = about.clock_ms if about is not None else incident.clock_ms or incident.created_at
    attempts = await attempts_of_key(
        session, incident.pipeline, incident.entity_key, seqs=seqs, near_ms=near, limit=ATTEMPTS
    )
    if about is not None and all(one.id != about.id for one in attempts):
        attempts.append(about)
    return sorted({one for attempt in attempts for one in attempt.ranges}), near


def _own_events(records: Mapping[tuple[int, int], Sequence[Raw]], key: bytes) -> dict[tuple[int, int], list[Raw]]:
    """Keep the events of a key: ranges hold those of others in between. The trace id counts as much as the key."""
    events: dict[tuple[int, int], list[tuple[Raw, TraceEvent]]] = defaultdict(list)
    for place, run in records.items():
        for raw in run:
            try:
                event = parse(TraceEvent, raw.value or b"")
                check(event, b"")
            except (RecordError, Unusable):
                continue  # it lies between events of the key, and was told when it came
            events[place].append((raw, event))
    seqs = {event.seq for run in events.values() for _, event in run if event.entity_key == key}
    own = {identity.trace_id(key, seq) for seq in seqs}
    return {
        place: [raw for raw, event in run if event.entity_key == key or event.trace_id in own]
        for place, run in events.items()
    }


async def _snapshots(
    session: ReadSession, streams: Mapping[int, Stream], key: bytes, kept: Sequence[Evidence]
) -> list[Found]:
    """Every snapshot of the key that is known and not evidence yet, whoever asked for it."""
    ids = [number for number, stream in streams.items() if stream.stream == SNAPSHOTS]
    have = {file.sha256 for file in kept}
    files = []
    for row in await live.snapshots_of(session, ids, key, SNAPSHOT_COUNT) if ids else []:
        if row.sha256 in have:
            continue
        have.add(row.sha256)
        files.append(await snapshot_file(session, streams, row))
    return [one for one in reversed(files) if one is not None]


async def snapshot_file(session: ReadSession, streams: Mapping[int, Stream], row: Any) -> Found | None:
    """Make a file of one stored snapshot, a row of `snapshots`; None where its raw record was dropped since."""
    place = Range(row.stream_id, row.partition, row.offset, row.offset)
    records = (await live.raw_records(session, [place])).get((row.stream_id, row.partition))
    if not records:
        return None
    stream = streams[row.stream_id]
    name = f"snapshot-{row.seq}-{stream.topic}-{row.partition}-{row.offset}.pb"
    return record_file(Log(stream.topic, stream.incarnation), Role.SNAPSHOT, name, row.partition, records[0])
