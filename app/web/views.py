"""What pages say about incidents and runs: words, glyphs and sentences, chosen in one place and drawn by templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from app.incidents import service
from app.incidents.flink_evidence import DRIVER, KIND
from app.incidents.service import Evidence, Incident
from app.web.config import Build, Pipeline
from app.web.formats import NOT_RECORDED, duration


@dataclass(frozen=True, slots=True)
class Status:
    """A state as glyph, word and tone (colour), with one plain sentence; `live` while it still changes by itself."""

    glyph: str
    word: str
    tone: str
    sentence: str
    live: bool = False


# Keyed by outcome where a run has a verdict, else by its state.
STATUSES: Final[Mapping[str, Status]] = {
    "reproduced": Status("=", "reproduced", "ok", "The same run again."),
    "diverged": Status("≠", "diverged", "bad", "This code does something else."),
    "unusable": Status("✕", "unusable", "warn", "The evidence is damaged or does not belong together."),
    "irreproducible": Status("∅", "irreproducible", "warn", "Something the run needs was not kept."),
    "what-if": Status("▷", "what-if", "quiet", "This has not happened yet."),
    "queued": Status("…", "queued", "live", "Waiting for a worker.", live=True),
    "running": Status("▸", "running", "live", "A worker is re-running the activation.", live=True),
    "failed": Status("!", "failed", "bad", "Our fault: the tool itself broke. It says nothing about the activation."),
    "lost": Status("⊘", "lost", "warn", "Its worker died. Nothing was recorded; the run can be started again."),
    "timed_out": Status("◷", "timed out", "warn", "It took longer than a run may, and was ended."),
    "cancelled": Status("–", "cancelled", "quiet", "Somebody ended it before it had a verdict."),
}
_UNKNOWN: Final = Status("?", "unknown", "quiet", "A newer version of Hindcast wrote this.")


class RunLike(Protocol):
    """What every list knows of a run."""

    @property
    def state(self) -> str: ...
    @property
    def outcome(self) -> str | None: ...
    @property
    def started_at(self) -> int | None: ...
    @property
    def finished_at(self) -> int | None: ...


def status_of(run: RunLike) -> Status:
    """How a run stands: its verdict once it has one, else its state."""
    return STATUSES.get(run.outcome or run.state, _UNKNOWN)


def took(run: RunLike) -> str | None:
    """How long the worker needed, for a run that has ended."""
    if run.started_at is None or run.finished_at is None:
        return None
    return duration(max(0, run.finished_at - run.started_at))


def links_of(incident: Incident, evidence: Sequence[Evidence]) -> dict[str, str]:
    """Where each file of the evidence lies, by the name that plans and reasons call it."""
    links: dict[str, str] = {}
    for file in evidence:
        links.setdefault(file.name, f"/incidents/{incident.id}/evidence/{file.id}")
    return links


@dataclass(frozen=True, slots=True)
class Choice:
    """A build as the replay form offers it.

    `note` says why it is the one that was live; `lacks` names hooks that the recording had and this build has not.
    """

    name: str
    selected: bool
    note: str
    lacks: Sequence[str] = ()


def suggested(builds: Sequence[Build], incident: Incident, pipelines: Sequence[Pipeline]) -> tuple[str | None, str]:
    """The build to begin with, and why: one that ran in the incident's pipeline, else what the domain suggests."""
    ran = next((each.builds for each in pipelines if each.name == incident.pipeline), ())
    name = service.suggest_build([build for build in builds if build.name in ran] or builds, incident)
    if name is None and ran:
        name = ran[0]
    if name in ran:
        return name, f"runs in {incident.pipeline}"
    return name, "named by the bundle" if name == incident.build_hint else "live at the attempt's clock"


def fitting(builds: Sequence[Build], incident: Incident) -> Sequence[Build]:
    """The builds of the framework that the evidence is of; an incident without a kind may be of either."""
    if incident.kind is None:
        return builds
    return [build for build in builds if (build.driver == DRIVER) == (incident.kind == KIND)]


def choices(
    builds: Sequence[Build],
    incident: Incident,
    pipelines: Sequence[Pipeline] = (),
    *,
    typed: Sequence[str] = (),
    last: str = "",
    hooks: Sequence[str] = (),
) -> list[Choice]:
    """The builds on offer; selected are those typed before, else the suggested one, else the last used or the first."""
    builds = fitting(builds, incident)
    first, note = suggested(builds, incident, pipelines)
    names = [build.name for build in builds]
    otherwise = last if last in names else next(iter(names), "")
    wanted = set(typed) & set(names) or {otherwise if first is None else first}
    return [
        Choice(
            build.name,
            build.name in wanted,
            note if build.name == first else "",
            [hook for hook in hooks if not getattr(build, hook, None)],
        )
        for build in builds
    ]


@dataclass(frozen=True, slots=True)
class Part:
    """One named piece of a nested value; `digest` is drawn short, with a copy button."""

    name: str
    text: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """One line of a panel. `status` is a glyph before the text; `lines` stand for a nested object or a list of them."""

    name: str
    text: str = ""
    status: str = ""
    mono: bool = False
    wide: bool = False
    digest: str = ""
    lines: tuple[tuple[Part, ...], ...] = ()


_LISTED: Final = 8  # of a list of objects; the JSON has all
_NAMED: Final = 40


def pairs(data: Mapping[str, Any]) -> list[Pair]:
    """Any JSON object as lines for a person; nothing is left out."""
    return [_pair(_words(name), value) for name, value in data.items()]


def _pair(name: str, value: Any) -> Pair:
    if isinstance(value, Mapping) and value:
        return Pair(name, lines=(_parts(value),), wide=True)
    if isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
        lines = [_parts(item) for item in value[:_LISTED]]
        if len(value) > _LISTED:
            lines.append((Part("", f"and {len(value) - _LISTED} more, in the JSON"),))
        return Pair(name, lines=tuple(lines), wide=True)
    text = _text(value)
    mono = isinstance(value, int | float) and not isinstance(value, bool)
    return Pair(name, text, mono=mono, wide=len(text) > 36, digest=text if _is_digest(value) else "")


def _parts(value: Mapping[str, Any]) -> tuple[Part, ...]:
    return tuple(Part(_words(name), _text(item), item if _is_digest(item) else "") for name, item in value.items())


def _words(name: object) -> str:
    return str(name).replace("_", " ")


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(c in "0123456789abcdef" for c in value)


def _text(value: Any) -> str:
    if value is None:
        return NOT_RECORDED
    if value in ({}, [], ""):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple) and all(isinstance(item, str | int | float | None) for item in value):
        rest = [f"and {len(value) - _NAMED} more"] if len(value) > _NAMED else []
        return ", ".join([*(_text(item) for item in value[:_NAMED]), *rest]) or "none"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
