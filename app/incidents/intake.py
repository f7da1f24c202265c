"""Looks at files before anything is stored: is each what it claims to be, and which attempt do they tell of?

Pure and possibly slow (a file may have 64 MiB), so the service calls it in a thread.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.incidents.errors import FileProblem
from app.incidents.facts import Facts
from app.incidents.flink_evidence import check_event_log, flink_facts
from app.replay.attempts import Attempt
from app.replay.evidence import (
    EvidenceFile,
    Role,
    UnusableEvidence,
    UnusableFile,
    load,
)
from app.replay.inspection import FileSummary, check_file
from app.replay.select import Target, Unanswerable, select
from app.replay.verdict import AttemptRef, key_text

__all__ = ["EvidenceFile", "Facts", "FileSummary", "Role", "check", "facts_of", "key_text", "pack", "unpack"]

# Records are small and repetitive: this level already reaches a fifth, at 100 MB/s.
_LEVEL: Final = 4


@dataclass(frozen=True, slots=True)
class Packed:
    """Bytes as they are stored: `codec` is `raw` where compression gains nothing."""

    sha256: str
    size: int
    codec: str
    data: bytes


def check(files: Sequence[EvidenceFile]) -> tuple[list[FileSummary | None], list[FileProblem]]:
    """Check each file by itself; a file with a problem has None for its summary."""
    summaries: list[FileSummary | None] = []
    problems: list[FileProblem] = []
    for file in files:
        try:
            summaries.append(check_event_log(file) if file.role is Role.EVENT_LOG else check_file(file))
        except UnusableFile as error:
            summaries.append(None)
            problems.append(error.problem)
    return summaries, problems


def facts_of(files: Sequence[EvidenceFile], seq: int | None, sources: Sequence[Mapping[str, Any]] = ()) -> Facts:
    """Say which attempt sound files select; `seq` narrows. `sources` may say where an event log holds its keys."""
    if any(file.role is Role.EVENT_LOG for file in files):
        return flink_facts(files, sources)
    try:
        return _facts(select(load(files), seq))
    except Unanswerable as error:
        return Facts(entity_key=_only_key(files), problem=str(error))
    except UnusableEvidence as error:
        return Facts(problem=str(error))


def _facts(target: Target) -> Facts:
    if not target.candidates:
        return Facts(target.entity_key, kind=target.kind, clock_ms=target.envelope.event_time_ms)
    attempt = target.candidates[0]
    return Facts(
        entity_key=target.entity_key,
        seq=attempt.seq,
        kind=target.kind,
        clock_ms=attempt.clock_ms,
        recorded_status=attempt.status,
        attempt=_reference(target, attempt).as_json(),
    )


def _reference(target: Target, attempt: Attempt) -> AttemptRef:
    return AttemptRef(
        entity_key=target.entity_key,
        seq=attempt.seq,
        kind=target.kind,
        clock_ms=attempt.clock_ms,
        entry_step=attempt.entry_step or 0,
        trace_id=attempt.records[0].event.trace_id.hex(),
        status=attempt.status,
        batch_size=attempt.batch_size,
    )


def _only_key(files: Sequence[EvidenceFile]) -> bytes | None:
    keys = {key for summary in check(files)[0] if summary is not None for key in summary.entity_keys}
    return keys.pop() if len(keys) == 1 else None


def pack(file: EvidenceFile) -> Packed:
    """Compress a file's bytes for keeping."""
    squeezed = zlib.compress(file.data, _LEVEL)
    if len(squeezed) < len(file.data):
        return Packed(file.sha256, len(file.data), "zlib", squeezed)
    return Packed(file.sha256, len(file.data), "raw", file.data)


def unpack(codec: str, data: bytes) -> bytes:
    """Undo `pack`."""
    return zlib.decompress(data) if codec == "zlib" else data
