"""The view data of a share besides verdict and rows: the incident, its runs and its files, and how much is hidden."""

from __future__ import annotations

from dataclasses import dataclass

from app.incidents.models import Evidence, Incident, Run, RunKind, RunState
from app.incidents.redacted_rows import KINDS, ROLES, STATUSES, SharedRow, row, word
from app.incidents.redacted_verdict import verdict
from app.incidents.redaction import EVERYTHING, Redactor, Reveal

__all__ = [
    "SharedFile",
    "SharedIncident",
    "SharedRow",
    "SharedRun",
    "badge",
    "file",
    "incident",
    "row",
    "run",
    "verdict",
]


@dataclass(frozen=True, slots=True)
class SharedIncident:
    """An incident as a share shows it; `entity_key` is bytes only where the key is open."""

    title: str
    entity_key: bytes | str | None
    seq: int | None
    kind: str | None
    clock_ms: int | None
    recorded_status: str | None
    created_at: int
    problem: str | None


def incident(redactor: Redactor, told: Incident) -> SharedIncident:
    return SharedIncident(
        title=redactor.text(told.title, Reveal.TEXTS) or "",
        entity_key=redactor.entity_key(told.entity_key),
        seq=told.seq,
        kind=word(KINDS)(redactor, told.kind),
        clock_ms=told.clock_ms,
        recorded_status=word(STATUSES)(redactor, told.recorded_status),
        created_at=told.created_at,
        problem=redactor.text(told.problem, Reveal.TEXTS),
    )


@dataclass(frozen=True, slots=True)
class SharedRun:
    """A run as a share shows it; `error` is the outline that was made when the report was stored."""

    number: int
    build: str
    state: str
    outcome: str | None
    headline: str | None
    error: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    first_divergence: int | None
    kind: str = RunKind.REPLAY.value

    @property
    def run_state(self) -> RunState:
        return RunState(self.state)


def run(redactor: Redactor, told: Run) -> SharedRun:
    return SharedRun(
        number=told.number,
        build=redactor.text(told.build, Reveal.NAMES) or "",
        state=told.state,
        outcome=told.outcome,
        headline=redactor.text(told.headline, Reveal.TEXTS),
        error=told.error_outline,
        created_at=told.created_at,
        started_at=told.started_at,
        finished_at=told.finished_at,
        first_divergence=told.first_divergence,
        kind=told.kind,
    )


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file of the evidence as a share shows it: never its bytes."""

    role: str
    name: str
    summary: str
    warnings: int
    records: int
    size: int
    sha256: str
    whole: bool  # whether `sha256` is the real one


def file(redactor: Redactor, told: Evidence) -> SharedFile:
    """Describe a file. A small file's sha256 can be guessed from its content, so it is opened with the payloads."""
    return SharedFile(
        role=str(word(ROLES)(redactor, told.role)),
        name=redactor.text(told.name, Reveal.TEXTS) or "",
        summary=redactor.text(told.summary, Reveal.TEXTS) or "",
        warnings=len(told.warnings),
        records=told.records,
        size=told.size,
        sha256=redactor.text(told.sha256, Reveal.PAYLOADS) or "",
        whole=redactor.shows(Reveal.PAYLOADS),
    )


def badge(redactor: Redactor) -> tuple[str, str, str]:
    """How much a share hides, as glyph, words and tone."""
    if redactor.reveal == EVERYTHING:
        return "○", "not redacted", "warn"
    if redactor.reveal:
        shown = ", ".join(str(each) for each in Reveal if each in redactor.reveal)
        return "◐", f"redacted but for {shown}", "warn"
    return "●", "redacted", "ok"
