"""Lines of the list of incidents: as they are for whoever may read them, redacted for viewers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import Request

from app.incidents import redacted
from app.incidents.listing import Wanted
from app.incidents.roles import Scopes
from app.incidents.service import Incident, Run
from app.web.access import Permission
from app.web.loading import scopes_of
from app.web.sights import viewers_sight
from app.web.views import status_of, took
from app.web.views_api import IncidentOut, incident_json
from app.web.views_incident import RunLine
from app.web.views_redacted import redacted_incident


@dataclass(frozen=True, slots=True)
class RedactedLine:
    """An incident that is not to be read, in the list; the same names as of the incident itself."""

    id: str
    title: str
    status: str
    severity: str | None
    pinned: bool
    imported: bool
    problem: str | None
    entity_key: bytes | str | None
    seq: int | None
    kind: str | None
    recorded_status: str | None
    clock_ms: int | None
    created_at: int
    # What people write of their own may say anything.
    owner: None = None
    tags: tuple[str, ...] = ()


def listed_scopes(request: Request, wanted: Wanted) -> Scopes:
    """Where a list looks. A filter by words would answer questions about what is hidden from viewers."""
    by_words = wanted.text or wanted.tags or wanted.owner
    return scopes_of(request, Permission.READ if by_words else Permission.VIEW)


def listed(
    request: Request, incidents: Sequence[Incident], latest: Mapping[str, Run]
) -> tuple[list[Incident | RedactedLine], dict[str, RunLine]]:
    """The incidents as the list shows them, and the newest run of each by the incident's id."""
    lines: list[Incident | RedactedLine] = []
    runs: dict[str, RunLine] = {}
    for incident in incidents:
        run = latest.get(incident.id)
        sight = viewers_sight(request, incident)
        if sight is None:
            lines.append(incident)
            if run is not None:
                runs[incident.id] = RunLine.of(run)
            continue
        shown = redacted.incident(sight.redactor, incident)
        lines.append(
            RedactedLine(
                incident.id,
                shown.title,
                incident.status,
                incident.severity,
                incident.pinned,
                incident.imported,
                shown.problem,
                shown.entity_key,
                shown.seq,
                shown.kind,
                shown.recorded_status,
                shown.clock_ms,
                shown.created_at,
            )
        )
        if run is not None:
            told = redacted.run(sight.redactor, run)
            runs[incident.id] = RunLine(
                told.number,
                told.build,
                run.kind,
                status_of(told),
                None,
                told.created_at,
                took(told),
                told.outcome is not None,
            )
    return lines, runs


def line_json(request: Request, incident: Incident, runs: Sequence[Run]) -> IncidentOut:
    """The same for scripts."""
    sight = viewers_sight(request, incident)
    if sight is None:
        return incident_json(incident, runs=runs)
    return redacted_incident(sight.redactor, incident, runs=runs)
