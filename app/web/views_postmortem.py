"""The post-mortem of an incident: everything that is known of it, in the order in which a reader asks.

What happened, what the runs said, the part of the ledger that tells why, what people did, the evidence, and the
commands that show it again. The page and its Markdown are drawn from this one object, so their order is the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from markupsafe import Markup

from app.incidents import case_notes, cases, exports, service, shares
from app.incidents.case_models import CaseChange
from app.incidents.cases import Case
from app.incidents.models import Evidence, Incident, LedgerRow, Run, RunRow
from app.incidents.service import Filters, ReadSession, key_text
from app.web.config import WebSettings
from app.web.formats import plural, size
from app.web.looks import telling_of
from app.web.markdown import markdown
from app.web.reproduce import command
from app.web.views import Status, status_of
from app.web.views_case import severity_of, status_of_case
from app.web.views_incident import EvidenceLine
from app.web.views_run import FirstDivergence, first_divergence
from app.web.views_story import Step, story

EVENTS: Final = 60  # events of the activation that the document lists
_EXCERPT: Final = 6


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that a person, or the console for them, did: when, who, what; `note` is what they wrote."""

    at: int
    who: str
    what: str
    note: str = ""

    @property
    def html(self) -> Markup:
        return markdown(self.note)


@dataclass(frozen=True, slots=True)
class Judged:
    """A run with its verdict, where it first parted from the record, and the command that repeats it."""

    number: int
    build: str
    kind: str
    status: Status
    headline: str | None
    finished_at: int | None
    first: FirstDivergence | None
    command: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the activation as it was recorded."""

    ordinal: int
    type: str
    words: str
    differs: bool


@dataclass(frozen=True, slots=True)
class PostMortem:
    """The document. `told_by` is the run whose rows and ledger are quoted; None where no run has a verdict."""

    incident: Incident
    case: Case
    status: Status
    severity: Status | None
    key: str | None
    summary: str
    events: Sequence[Event]
    more_events: int
    runs: Sequence[Judged]
    told_by: Judged | None
    excerpt: Sequence[Step]
    moments: Sequence[Moment]
    evidence: Sequence[EvidenceLine]


async def post_mortem(session: ReadSession, settings: WebSettings, incident: Incident) -> PostMortem:
    """Read everything; a large incident is told by its heads, with links to the rest."""
    runs = list(reversed(await service.runs_of(session, incident)))
    evidence = await service.evidence_of(session, incident)
    judged, rows = [], {}
    for run in runs:
        whole = await service.get_run(session, run.id)
        first = None if whole.first_divergence is None else await service.get_row(session, run, whole.first_divergence)
        rows[run.number] = first
        judged.append(_judged(whole, first, settings, incident))
    teller = _teller(runs)
    told_by = next((one for one in judged if teller is not None and one.number == teller.number), None)
    whole_teller = None if teller is None else await service.get_run(session, teller.id)
    events, more = ((), 0) if teller is None else await _events(session, teller)
    return PostMortem(
        incident=incident,
        case=Case.of(incident),
        status=status_of_case(incident.status),
        severity=severity_of(incident.severity),
        key=None if incident.entity_key is None else key_text(incident.entity_key) or incident.entity_key.hex(),
        summary=_summary(incident, events, judged),
        events=events,
        more_events=more,
        runs=judged,
        told_by=told_by,
        excerpt=() if whole_teller is None else await _excerpt(session, whole_teller, rows[whole_teller.number]),
        moments=sorted([one async for one in _moments(session, incident, runs, evidence)], key=lambda one: one.at),
        evidence=[EvidenceLine.of(file) for file in evidence],
    )


def _judged(run: Run, first: RunRow | None, settings: WebSettings, incident: Incident) -> Judged:
    found = None if run.verdict is None else first_divergence(run.verdict, first)
    again = command(settings.builds, run, incident)
    return Judged(run.number, run.build, run.kind, status_of(run), run.headline, run.finished_at, found, again)


def _teller(runs: Sequence[Run]) -> Run | None:
    """The run that tells most: the newest that diverged, else the newest that has a verdict at all."""
    with_verdict = [run for run in runs if run.outcome is not None and run.kind == "replay"]
    diverged = [run for run in with_verdict if run.outcome == "diverged"]
    return next(iter(reversed(diverged or with_verdict)), None)


# What happened -------------------------------------------------------------------------------------------------------


async def _events(session: ReadSession, run: Run) -> tuple[Sequence[Event], int]:
    window = await service.rows_of(session, run, limit=EVENTS, filters=Filters())
    recorded = [row for row in window.rows if row.state != "replayed-only"]
    events = [
        Event(row.ordinal, row.event_type, " ".join(part for part in (row.label, row.about) if part), row.differs)
        for row in recorded
    ]
    return events, window.total - len(window.rows)


def _summary(incident: Incident, events: Sequence[Event], judged: Sequence[Judged]) -> str:
    """One paragraph from what is recorded; it guesses nothing."""
    if incident.attempt is None:
        return "No attempt of the activation is selected by the evidence yet."
    ended = incident.recorded_status
    what = f"The activation ended {ended}." if ended else "How the activation ended is not recorded."
    intents = [event.words for event in events if event.type == "INTENT_EMITTED"]
    said = f" It emitted {plural(len(intents), 'intent')}: {', '.join(intents[:8])}." if intents else ""
    count = f" {plural(len(judged), 'run')} re-ran it." if judged else " It was not re-run."
    return f"{what}{said}{count}"


# The part of the ledger that tells why -------------------------------------------------------------------------------


async def _excerpt(session: ReadSession, run: Run, first: RunRow | None) -> Sequence[Step]:
    """What the model saw and said last before the first divergence, and what the agent did there."""
    if not run.ledger:
        return ()
    outline = await service.ledger_outline_of(session, run, 2_000)
    chosen = _telling_entries(outline, run.first_divergence)
    entries = await service.ledger_bodies(session, run, [entry.position for entry in chosen])
    return story(sorted(entries, key=lambda entry: entry.position), telling_of(run, first, brief=True))


def _telling_entries(outline: Sequence[LedgerRow], first: int | None) -> list[LedgerRow]:
    placed = [entry for entry in outline if entry.ordinal is not None]
    last = first if first is not None else max((entry.ordinal or 0 for entry in placed), default=0)
    at = [entry for entry in placed if entry.ordinal == first] if first is not None else []
    at = at or [entry for entry in placed if entry.kind == "intent"]
    models = [entry for entry in placed if entry.kind == "model" and (entry.ordinal or 0) <= last and entry not in at]
    return [*models[-2:], *at][:_EXCERPT]


# What people did -----------------------------------------------------------------------------------------------------


async def _moments(
    session: ReadSession, incident: Incident, runs: Sequence[Run], evidence: Sequence[Evidence]
) -> AsyncIterator[Moment]:
    yield Moment(incident.created_at, incident.created_by, "opened the incident")
    for view in await exports.exports_of(session, incident):
        export = view.export
        yield Moment(export.created_at, export.created_by, f"asked the pipeline for the key's state: {export.reason}")
        for answer in view.answers:
            late = ", late" if answer.late else ""
            yield Moment(answer.arrived_at, "pipeline", f"answered with a snapshot of {size(answer.size)}{late}")
    for file in evidence:
        if file.added_at - incident.created_at > 1000:
            yield Moment(file.added_at, "evidence", f"{file.role} arrived: {file.name}, {size(file.size)}")
    for moment in _of_runs(runs):
        yield moment
    for _, together in groupby(await cases.changes_of(session, incident), key=lambda one: one.revision):
        changes = list(together)
        yield Moment(changes[0].at, changes[0].who, ", ".join(map(_changed, changes)))
    for note in await case_notes.notes_of(session, incident):
        edited = "" if note.edited_at is None else " (edited since)"
        yield Moment(note.created_at, note.created_by, f"wrote note {note.number}{edited}", note.text)
    for listed in await shares.list_shares(session, incident=incident):
        yield Moment(listed.share.created_at, listed.share.created_by, "shared it with a link")


def _changed(change: CaseChange) -> str:
    if change.field == "pinned":
        return "pinned it" if change.new == "yes" else "unpinned it"
    return f"set the {change.field} to {change.new or 'nothing'}"


def _of_runs(runs: Sequence[Run]) -> Iterator[Moment]:
    for run in runs:
        yield Moment(run.created_at, run.created_by, f"asked for run {run.number} with {run.build}")
        if run.finished_at is not None:
            word = status_of(run).word
            yield Moment(run.finished_at, "worker", f"run {run.number} ended: {word}")


def facts(told: PostMortem) -> Mapping[str, Any]:
    """What both drawings say at the top, in this order; times are epoch milliseconds."""
    incident = told.incident
    return {
        "status": told.status.word,
        "severity": told.severity.word if told.severity else None,
        "owner": told.case.owner,
        "tags": ", ".join(told.case.tags) or None,
        "pipeline": incident.pipeline,
        "key": told.key,
        "seq": incident.seq,
        "kind": incident.kind,
        "event time": incident.clock_ms,
        "recorded status": incident.recorded_status,
        "incident": incident.id,
    }
