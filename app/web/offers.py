"""Which builds an incident may be replayed with, for whoever is asking."""

from __future__ import annotations

from fastapi import Request

from app.incidents.service import Incident
from app.web.loading import builds_of, settings_of
from app.web.views import Choice, choices


def offered_builds(request: Request, incident: Incident) -> list[Choice]:
    """The builds that the person may replay it with, the suggested one selected."""
    return choices(builds_of(request), incident, settings_of(request).pipelines)
