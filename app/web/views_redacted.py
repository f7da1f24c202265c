"""The JSON that a viewer's script reads: the same objects, with everything that the closed list does not pass hidden.

What has no redacted form is null or empty: the attempt, provenance, owner and tags, builds, what waits or is missing in
words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.incidents import redacted
from app.incidents.live import LiveStatus
from app.incidents.redaction import Redactor
from app.incidents.service import Evidence, Incident, Run
from app.web.formats import iso
from app.web.views_api import CaseOut, EvidenceOut, IncidentOut, ReplayOut


def redacted_incident(
    redactor: Redactor,
    incident: Incident,
    *,
    evidence: Sequence[Evidence] | None = None,
    runs: Sequence[Run] = (),
    status: LiveStatus | None = None,
) -> IncidentOut:
    shown = redacted.incident(redactor, incident)
    return IncidentOut(
        id=incident.id,
        title=shown.title,
        case=CaseOut(
            status=incident.status,
            severity=incident.severity,
            owner=None,
            tags=[],
            pinned=incident.pinned,
            revision=incident.revision,
            changed_at=iso(incident.changed_at),
        ),
        created_at=iso(shown.created_at),
        entity_key=None,
        seq=shown.seq,
        kind=shown.kind,
        clock_ms=shown.clock_ms,
        recorded_status=shown.recorded_status,
        attempt=None,
        imported=incident.imported,
        problem=shown.problem,
        pipeline=incident.pipeline,
        state=None if status is None else status.state,
        ready=None if status is None else status.ready,
        missing=None,
        builds=None,
        live=None,
        evidence=None if evidence is None else [_evidence(redactor, file) for file in evidence],
        replays=[redacted_replay(redactor, run, verdict=None) for run in runs],
        url=f"/incidents/{incident.id}",
    )


def _evidence(redactor: Redactor, file: Evidence) -> EvidenceOut:
    shown = redacted.file(redactor, file)
    return EvidenceOut(
        id=file.id,
        role=shown.role,
        name=shown.name,
        sha256=shown.sha256,
        size=shown.size,
        records=shown.records,
        summary=shown.summary,
        warnings=[],
        source={},
        added_at=iso(file.added_at),
    )


def redacted_replay(redactor: Redactor, run: Run, *, verdict: Mapping[str, Any] | None) -> ReplayOut:
    shown = redacted.run(redactor, run)
    return ReplayOut(
        id=run.id,
        incident_id=run.incident_id,
        number=shown.number,
        build=shown.build,
        kind=run.kind,
        decision=None,
        state=shown.state,
        outcome=shown.outcome,
        exit_code=run.exit_code,
        headline=shown.headline,
        error=shown.error,
        waits_for=None,
        created_at=iso(shown.created_at),
        started_at=None if shown.started_at is None else iso(shown.started_at),
        finished_at=None if shown.finished_at is None else iso(shown.finished_at),
        verdict=None if verdict is None else redacted.verdict(redactor, verdict),
        url=f"/incidents/{run.incident_id}/runs/{run.number}",
    )
