"""The JSON that scripts read: incidents, evidence and replays, as OpenAPI describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from app.incidents.live import LiveStatus
from app.incidents.service import Evidence, Incident, Run, key_text
from app.web.formats import iso
from app.web.views import Choice


class KeyOut(BaseModel):
    """A key as lowercase hex, and as text where it is printable UTF-8."""

    hex: str
    text: str | None


class EvidenceOut(BaseModel):
    """One file, as it was received; `source` says where it came from."""

    id: int
    role: str
    name: str
    sha256: str
    size: int
    records: int
    summary: str
    warnings: list[str]
    source: dict[str, Any]
    added_at: str | None


class ReplayOut(BaseModel):
    """A replay. `verdict` is null until `state` is `done`; it is what `hindcast replay --format json` prints."""

    id: str
    incident_id: str
    number: int
    build: str
    kind: str = Field(description="replay, or what-if: for a decision that is tried, or models that are asked anew")
    decision: dict[str, Any] | None
    state: str = Field(description="queued, running, done, failed, lost, cancelled or timed_out")
    outcome: str | None
    exit_code: int | None
    headline: str | None
    error: str | None = Field(description="why there is no verdict, for a state that ended without one")
    waits_for: str | None = Field(None, description="what a queued run waits for; null in lists")
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    verdict: dict[str, Any] | None
    url: str = Field(description="the run's page")


class ReplaysOut(BaseModel):
    """Replays that were asked for at once, in the order in which they run."""

    replays: list[ReplayOut]
    compare: str = Field(description="the page that shows them side by side")


class BuildOut(BaseModel):
    """A build that can be replayed with; `suggested` marks the one that the console would choose."""

    name: str
    suggested: bool


class MissingOut(BaseModel):
    """One thing that is not here; `blocks` when nothing replays without it."""

    what: str
    why: str
    remedy: str
    blocks: bool


class CaseOut(BaseModel):
    """How people stand with an incident; changes name the `revision` that they are made from."""

    status: str = Field(description="open, contained, explained or closed")
    severity: str | None = Field(description="critical, high, medium or low; null for not judged")
    owner: str | None
    tags: list[str]
    pinned: bool
    revision: int
    changed_at: str | None


class IncidentOut(BaseModel):
    """One activation that somebody asks about. What the evidence does not say is null."""

    id: str
    title: str
    case: CaseOut
    created_at: str | None
    entity_key: KeyOut | None
    seq: int | None
    kind: str | None
    clock_ms: int | None
    recorded_status: str | None
    attempt: dict[str, Any] | None
    imported: bool
    problem: str | None
    pipeline: str | None = Field(description="the live pipeline it is of; null for one from files")
    state: str | None = Field(description="gathering, ready or incomplete; null in lists, as what follows")
    ready: bool | None = Field(description="true once a replay can start")
    missing: list[MissingOut] | None
    builds: list[BuildOut] | None
    live: dict[str, Any] | None = Field(
        description="exports, gathering, cache window, row, collector, outlook, warning"
    )
    evidence: list[EvidenceOut] | None = Field(description="null in lists")
    replays: list[ReplayOut] = Field(description="newest first, without verdicts; lists hold the newest alone")
    url: str = Field(description="the incident's page")


class IncidentPage(BaseModel):
    incidents: list[IncidentOut]
    next: str | None


def incident_json(
    incident: Incident,
    *,
    evidence: Sequence[Evidence] | None = None,
    runs: Sequence[Run] = (),
    status: LiveStatus | None = None,
    offered: Sequence[Choice] | None = None,
) -> IncidentOut:
    """`status`, and the builds on offer, are what a single incident says beyond a line of the list."""
    key = incident.entity_key
    told = {} if status is None else status.as_json()
    short = {name: told.pop(name, None) for name in ("state", "ready", "missing")}
    return IncidentOut(
        id=incident.id,
        title=incident.title,
        case=CaseOut(
            status=incident.status,
            severity=incident.severity,
            owner=incident.owner,
            tags=list(incident.tags),
            pinned=incident.pinned,
            revision=incident.revision,
            changed_at=iso(incident.changed_at),
        ),
        created_at=iso(incident.created_at),
        entity_key=None if key is None else KeyOut(hex=key.hex(), text=key_text(key)),
        seq=incident.seq,
        kind=incident.kind,
        clock_ms=incident.clock_ms,
        recorded_status=incident.recorded_status,
        attempt=incident.attempt,
        imported=incident.imported,
        problem=incident.problem,
        pipeline=incident.pipeline,
        state=short["state"],
        ready=short["ready"],
        missing=short["missing"],
        builds=None if offered is None else [BuildOut(name=each.name, suggested=each.selected) for each in offered],
        live=told if incident.pipeline is not None and status is not None else None,
        evidence=None if evidence is None else [_evidence(file) for file in evidence],
        replays=[replay_json(run, verdict=None) for run in runs],
        url=f"/incidents/{incident.id}",
    )


def _evidence(file: Evidence) -> EvidenceOut:
    return EvidenceOut(
        id=file.id,
        role=file.role,
        name=file.name,
        sha256=file.sha256,
        size=file.size,
        records=file.records,
        summary=file.summary,
        warnings=file.warnings,
        source=file.source,
        added_at=iso(file.added_at),
    )


def replay_json(run: Run, *, verdict: Mapping[str, Any] | None, waits_for: str | None = None) -> ReplayOut:
    return ReplayOut(
        id=run.id,
        incident_id=run.incident_id,
        number=run.number,
        build=run.build,
        kind=run.kind,
        decision=run.decision,
        state=run.state,
        outcome=run.outcome,
        exit_code=run.exit_code,
        headline=run.headline,
        error=run.error,
        waits_for=waits_for,
        created_at=iso(run.created_at),
        started_at=None if run.started_at is None else iso(run.started_at),
        finished_at=None if run.finished_at is None else iso(run.finished_at),
        verdict=None if verdict is None else dict(verdict),
        url=f"/incidents/{run.incident_id}/runs/{run.number}",
    )
