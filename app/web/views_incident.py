"""What the incident page says: lines for its files and runs, and what a replay of this evidence can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.incidents.live import LiveStatus
from app.incidents.service import Evidence, Incident, Run
from app.web.formats import NOT_RECORDED, utc
from app.web.views import Pair, Status, status_of, took


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in a list."""

    number: int
    build: str
    status: Status
    headline: str | None
    created_at: int
    took: str | None

    @classmethod
    def of(cls, run: Run) -> RunLine:
        return cls(run.number, run.build, status_of(run), run.headline, run.created_at, took(run))


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
    size = attempt.get("batch_size")
    lines = [
        Pair("kind", str(attempt["kind"])),
        Pair("entry step", str(attempt["entry_step"]), mono=True),
        Pair("clock", f"{attempt['clock_ms']} ms", mono=True),
        Pair("trace id", attempt["trace_id"], mono=True, wide=True),
    ]
    return lines if size is None else [*lines, Pair("batch size", str(size), mono=True)]


@dataclass(frozen=True, slots=True)
class Card:
    """One thing to know before pressing Replay."""

    title: str
    text: str


def cards(incident: Incident, evidence: Sequence[EvidenceLine]) -> list[Card]:
    """What this evidence allows, what would make more comparable, and what a replay never does."""
    return [_exactness(incident), _missing(incident, [file.role for file in evidence]), _promise()]


def _exactness(incident: Incident) -> Card:
    status = incident.recorded_status
    if status is None:
        text = (
            "Nothing was recorded for this attempt, so there is nothing to compare with: a replay shows what the code"
            " would do."
        )
        return Card("A what-if run" if incident.kind else "Not known yet", text)
    if status == "failed":
        text = (
            "A failed attempt committed nothing, so the snapshot's state is exact; its own model responses were"
            " discarded with it. It replays up to the first call that no snapshot answers."
        )
        return Card("A failed attempt", text)
    text = (
        "Exact where a snapshot from just before it is here. From a later one it is exact too, unless its requests read"
        " memory that it overwrote itself; then the run says irreproducible, never a wrong answer."
    )
    return Card(f"A {status} attempt", text)


def _missing(incident: Incident, roles: Sequence[str]) -> Card:
    gains = []
    if "intents" not in roles:
        gains.append("the intents stream: arguments of intents that no snapshot holds pending")
    if "outputs" not in roles:
        gains.append("the outputs stream: outputs")
    if "errors" not in roles and incident.recorded_status == "failed":
        gains.append("the errors stream: the detail of the error")
    if roles.count("snapshot") < 2 and "snapshots" not in roles:
        gains.append("a snapshot from before and one from after: memory")
    if not gains:
        return Card("More would change nothing", "Every stream that a comparison can use is here.")
    return Card("Would make more comparable", f"{'; '.join(gains)}.".capitalize())


def _promise() -> Card:
    return Card(
        "What a replay does",
        "It serves the recorded model responses and re-runs read-only tools for real, inside a sandbox; each run states"
        " how it was confined. Side effects are only staged, never performed; nothing is written back to the pipeline.",
    )
