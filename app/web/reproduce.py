"""Spells the command that repeats a run in a terminal, so that what a page shows can be checked without the page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from app.incidents.flink_evidence import KIND
from app.incidents.service import Incident, Run, RunKind
from app.web.config import Build


def command(builds: Sequence[Build], run: Run, incident: Incident) -> str | None:
    """`hindcast replay …` over the downloaded bundle; None when the configuration no longer names the build.

    A run of Flink Agents is repeated with the build of the configuration, whose resources it says how to treat.
    What was supplied to the run is named as the files that its page offers.
    """
    build = next((build for build in builds if build.name == run.build), None)
    if build is None:
        return None
    if incident.kind == KIND:
        told = [("--bundle", bundle_name(incident)), ("--build", build.name), *_supplied(run)]
        return _spelled("hindcast flink replay", told, _what_if(run))
    options = [("--bundle", bundle_name(incident)), ("--agent", build.agent)]
    options += [
        (flag, value)
        for flag, value in (("--registry", build.registry), ("--decode", build.decode), ("--config", build.config))
        if value
    ]
    options += [("--agent-path", str(path)) for path in build.paths]
    if incident.wanted_seq is not None:
        options.append(("--seq", str(incident.wanted_seq)))
    options += _supplied(run)
    return _spelled("hindcast replay", options)


def _spelled(verb: str, options: Sequence[tuple[str, str]], flags: Sequence[str] = ()) -> str:
    return " \\\n  ".join([verb, *(f"{flag} {shlex.quote(value)}" for flag, value in options), *flags])


def _what_if(run: Run) -> list[str]:
    """A what-if asks models anew, and reaches the network where the run's sandbox had one."""
    if run.kind != RunKind.WHAT_IF:
        return []
    confinement = (run.verdict or {}).get("confinement", {})
    return ["--what-if", *(["--allow-network"] if confinement.get("network") == "allowed" else [])]


def _supplied(run: Run) -> list[tuple[str, str]]:
    options = [("--tool-answers", "tool-answers.jsonl")] if run.tool_answers else []
    if run.decision is None:
        return options
    if "result" in run.decision:
        return [*options, ("--result", "result.pb")]
    return [*options, ("--approve" if run.decision["approved"] else "--reject", run.decision["intent"])]


def bundle_name(incident: Incident) -> str:
    """What the browser saves the bundle as."""
    return f"hindcast-{incident.id}.zip"
