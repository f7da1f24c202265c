"""Look at one evidence file by itself: say what it holds, in a line for a person, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from app.replay.evidence import (
    MAY_BE_EMPTY,
    Evidence,
    EvidenceFile,
    Role,
    UnusableEvidence,
    UnusableFile,
    empty,
    load,
)
from app.wire.records import AgentEnvelope, StateSnapshot, unknown_fields


@dataclass(frozen=True)
class FileSummary:
    """What one sound file holds. `torn` tells that its last frame is cut."""

    role: Role
    name: str
    records: int
    size: int
    sha256: str
    describes: str
    entity_keys: tuple[bytes, ...] = ()
    warnings: tuple[str, ...] = ()
    torn: bool = False


def check_file(file: EvidenceFile) -> FileSummary:
    """Read one file by itself and say what it holds; raises UnusableFile.

    An activation need not have emitted anything, so empty intents, outputs and errors are sound.
    """
    if not file.data and file.role not in MAY_BE_EMPTY:
        raise empty(file)
    try:
        evidence = load([file])
    except UnusableEvidence as error:
        raise UnusableFile(error.problems[0]) from error
    count, text, keys, warnings = _describe(evidence, file.role)
    return FileSummary(
        role=file.role,
        name=file.name,
        records=count,
        size=len(file.data),
        sha256=file.sha256,
        describes=text,
        entity_keys=tuple(sorted(keys)),
        warnings=(*warnings, *(problem.problem for problem in evidence.torn)),
        torn=bool(evidence.torn),
    )


def _describe(evidence: Evidence, role: Role) -> tuple[int, str, set[bytes], list[str]]:
    match role:
        case Role.SNAPSHOT | Role.SNAPSHOTS:
            records = [snapshot.record for snapshot in evidence.snapshots]
            text = "; ".join(_snapshot_text(record) for record in records[:3]) or "no whole snapshot"
            return len(records), text, {r.entity_key for r in records}, _unknown(records)
        case Role.TRACES:
            traces = [record.event for record in evidence.traces.values()]
            keys = {event.entity_key for event in traces}
            seqs = {(event.entity_key, event.seq) for event in traces}
            text = f"{_count(len(traces), 'event')} of {_count(len(keys), 'key')}, {_count(len(seqs), 'seq')}"
            if evidence.duplicates:
                text += f", {_count(evidence.duplicates, 'duplicate delivery', 'duplicate deliveries')} collapsed"
            return len(traces), text, keys, _unknown(traces)
        case Role.EVENT | Role.EVENTS:
            envelopes = evidence.triggers + evidence.events
            kinds = sorted({_payload_kind(envelope) for envelope in envelopes})
            text = f"{_count(len(envelopes), 'envelope')}: {', '.join(kinds) or 'none'}"
            return len(envelopes), text, {e.entity_key for e in envelopes}, _unknown(envelopes)
        case Role.INTENTS:
            keys = {intent.entity_key for intent in evidence.intents}
            text = f"{_count(len(evidence.intents), 'intent')} of {_count(len(keys), 'key')}"
            return len(evidence.intents), text, keys, _unknown(evidence.intents)
        case Role.OUTPUTS:
            return len(evidence.outputs), _count(len(evidence.outputs), "output"), set(), []
        case Role.ERRORS:
            text = _count(len(evidence.errors), "dead letter")
            return len(evidence.errors), text, {e.entity_key for e in evidence.errors}, []
        case Role.EVENT_LOG:
            lines = sum(file.data.count(b"\n") for file in evidence.files)
            return lines, _count(lines, "line"), set(), []


def _snapshot_text(snapshot: StateSnapshot) -> str:
    parts = [
        f"counter {snapshot.seq}",
        f"memory {_count(len(snapshot.memory.entries), 'key')}",
        _count(len(snapshot.llm_cache.entries), "cached response"),
        "suspended" if snapshot.HasField("continuation") else "not suspended",
    ]
    if snapshot.request_id:
        parts.append(f"request {snapshot.request_id}")
    return ", ".join(parts)


def _payload_kind(envelope: AgentEnvelope) -> str:
    return {
        "external_event": "external event",
        "tool_result": "tool result",
        "approval": "approval",
        "export_request": "export request",
        None: "no payload",
    }[envelope.WhichOneof("payload")]


def _unknown(records: Sequence[Message]) -> list[str]:
    names = sorted({name for record in records for name in unknown_fields(record)})
    return [f"fields this version does not know: {', '.join(names)}"] if names else []


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
