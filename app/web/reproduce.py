"""Spells the command that repeats a run in a terminal, so that what a page shows can be checked without the page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from app.incidents.service import Incident
from app.web.config import Build


def command(builds: Sequence[Build], name: str, incident: Incident) -> str | None:
    """`hindcast replay …` over the downloaded bundle; None when the configuration no longer names the build."""
    build = next((build for build in builds if build.name == name), None)
    if build is None:
        return None
    options = [("--bundle", bundle_name(incident)), ("--agent", build.agent)]
    options += [
        (flag, value)
        for flag, value in (("--registry", build.registry), ("--decode", build.decode), ("--config", build.config))
        if value
    ]
    options += [("--agent-path", str(path)) for path in build.paths]
    if incident.wanted_seq is not None:
        options.append(("--seq", str(incident.wanted_seq)))
    return " \\\n  ".join(["hindcast replay", *(f"{flag} {shlex.quote(value)}" for flag, value in options)])


def bundle_name(incident: Incident) -> str:
    """What the browser saves the bundle as."""
    return f"hindcast-{incident.id}.zip"
