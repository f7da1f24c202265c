"""What the incident page says: lines for its files and runs, and what a replay of this evidence can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.incidents.live import LiveStatus
from app.incidents.service import Evidence, Incident, Run
from app.web.formats import NOT_RECORDED, utc
from app.web.views import Pair, Status, status_of, took
from app.web.views_inputs import decision_of


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in a list."""

    number: int
    build: str
    kind: str
    status: Status
    headline: str | None
    created_at: int
    took: str | None
    verdict_known: bool

    @classmethod
    def of(cls, run: Run) -> RunLine:
        return cls(
            run.number,
            run.build,
            run.kind,
            status_of(run),
            _tried(run.decision) if run.decision is not None else run.headline,
            run.created_at,
            took(run),
            run.outcome is not None,
        )


def _tried(decision: Mapping[str, Any]) -> str:
    told = decision_of(decision)
    return f"What if {told.verb} {told.intent[:8]}…{f' ({told.status})' if told.status else ''}: nothing was sent."


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """A file in the evidence table; `came_from` is its provenance in words."""

    id: int
    role: str
    name: str
    summary: str
    warnings: Sequence[str]
    records: int
    size: int
    sha256: str
    came_from: str

    @classmethod
    def of(cls, file: Evidence) -> EvidenceLine:
        return cls(
            file.id,
            file.role,
            file.name,
            file.summary,
            file.warnings,
            file.records,
            file.size,
            file.sha256,
            provenance(file.source),
        )


def provenance(source: Mapping[str, Any]) -> str:
    """Where a file came from: an upload, an entry of a bundle, or a place in a topic."""
    match source.get("kind"):
        case "kafka":
            place = f"{source.get('topic')}[{source.get('partition')}]@{source.get('offset')}"
            return f"{place}, {utc(source.get('timestamp_ms'))}"
        case "bundle":
            return f"bundle {source.get('file', '')}".strip()
        case "event log":
            return f"event log {source.get('file', '')}".strip()
        case "upload":
            return "upload"
        case other:
            return str(other or NOT_RECORDED)


def version_of(runs: Sequence[Run], status: LiveStatus | None = None) -> int:
    """A number that rises whenever a run or the evidence of the incident changes, as the stream of changes counts."""
    return sum(run.version for run in runs) + (0 if status is None else status.version)


def about(incident: Incident) -> list[Pair]:
    return [
        Pair("id", incident.id, mono=True),
        Pair("opened", utc(incident.created_at)),
        Pair("by", incident.created_by),
        Pair("seq asked for", NOT_RECORDED if incident.wanted_seq is None else str(incident.wanted_seq)),
        Pair("build named by the bundle", incident.build_hint or NOT_RECORDED),
    ]


def attempt_pairs(incident: Incident) -> list[Pair]:
    """What tells this attempt from others of the same seq."""
    attempt = incident.attempt
    if attempt is None:
        return []
    if "run" in attempt:
        return _run_pairs(attempt)
    size = attempt.get("batch_size")
    lines = [
        Pair("kind", str(attempt["kind"])),
        Pair("entry step", str(attempt["entry_step"]), mono=True),
        Pair("clock", f"{attempt['clock_ms']} ms", mono=True),
        Pair("trace id", attempt["trace_id"], mono=True, wide=True),
    ]
    return lines if size is None else [*lines, Pair("batch size", str(size), mono=True)]


def _run_pairs(attempt: Mapping[str, Any]) -> list[Pair]:
    """What tells a run of an event log."""
    named = [(name, attempt.get(name)) for name in ("agent", "job", "task")]
    return [
        Pair("kind", str(attempt["kind"])),
        Pair("run", str(attempt["run"]), mono=True, wide=True),
        *(Pair(name, str(value), mono=True, wide=name != "agent") for name, value in named if value),
    ]
