"""What the page of a live incident says: its evidence as steps, what is missing, and how long there is time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.incidents.live import ExportView, GatheringView, LiveStatus, TopicProgress, Window
from app.incidents.live_models import GatheringState
from app.incidents.service import Evidence, Incident
from app.web.formats import duration, plural, size, utc

DONE: Final = "done"
WAITING: Final = "waiting"
OPEN: Final = "open"
BAD: Final = "bad"
_GLYPHS: Final = {DONE: "✓", WAITING: "…", OPEN: "○", BAD: "!"}
_WORDS: Final = {DONE: "is here", WAITING: "under way", OPEN: "not yet", BAD: "needs you"}

_SEARCHES: Final = {
    GatheringState.QUEUED: "waits for the collector",
    GatheringState.RUNNING: "searching",
    GatheringState.FOUND: "found",
    GatheringState.NOT_FOUND: "not found: every record in range was read",
    GatheringState.INCOMPLETE: "not found, and not everything could be read: it may be there",
    GatheringState.CANCELLED: "cancelled before all was read",
    GatheringState.FAILED: "the search failed",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of evidence: `state` is done, waiting, open or bad; `lines` say more, `side` stands at the right."""

    name: str
    state: str
    text: str
    side: str = ""
    lines: tuple[str, ...] = ()

    @property
    def glyph(self) -> str:
        return _GLYPHS[self.state]

    @property
    def word(self) -> str:
        return _WORDS[self.state]


@dataclass(frozen=True, slots=True)
class Search:
    """The newest search as drawn: its state in words, and each topic with its partitions."""

    id: str
    live: bool
    words: str
    since_ms: int | None
    problem: str | None
    notes: Sequence[str]
    topics: Sequence[TopicProgress]


@dataclass(frozen=True, slots=True)
class LiveView:
    """Everything that `_gathering.html` draws; `late` offers to ask a timed-out export again, by its id."""

    export: Step
    snapshot: Step
    traces: Step
    envelope: Step
    rest: Step
    search: Search | None
    late: str | None
    status: LiveStatus
    under_way: bool
    window: str | None
    window_closed: bool


def live_view(incident: Incident, status: LiveStatus, evidence: Sequence[Evidence]) -> LiveView:
    """Turn what an incident of a live pipeline has and lacks into steps."""
    by_role = {role: [file for file in evidence if file.role == role] for role in {file.role for file in evidence}}
    search = _search(status.gatherings)
    newest = status.exports[0] if status.exports else None
    timed_out = newest is not None and newest.export.state == "timed_out"
    return LiveView(
        export=_export(newest, len(status.exports)),
        snapshot=_snapshot(by_role.get("snapshot", []) + by_role.get("snapshots", []), newest),
        traces=_of_role(
            "Traces" if incident.seq is None else f"Traces of seq {incident.seq}", by_role.get("traces", []), search
        ),
        envelope=_of_role("Triggering envelope", by_role.get("event", []), search),
        rest=_rest(incident, by_role),
        search=search,
        late=newest.export.id if timed_out and newest is not None else None,
        status=status,
        under_way=under_way(status),
        window=_window(status.window),
        window_closed=status.window is not None and status.window.left_ms <= 0,
    )


def under_way(status: LiveStatus) -> bool:
    """Whether an export or a search will change this page by itself before long."""
    exporting = any(one.export.state == "requested" for one in status.exports)
    return exporting or any(not one.gathering.gathering_state.finished for one in status.gatherings)


def _export(view: ExportView | None, count: int) -> Step:
    name = "Export request"
    if view is None:
        return Step(name, OPEN, "The running pipeline was not asked for this key's state.")
    export = view.export
    side = f"{export.created_by}, {utc(export.created_at)[11:19]}Z" + (f", request {count}" if count > 1 else "")
    reason = f'reason "{export.reason}"'
    if export.offset is None:
        text = "waits to be published" if export.state == "requested" else "was not published"
    else:
        text = f"published to {export.topic}[{export.partition}]@{export.offset} at {utc(export.published_at)[11:]}"
    lines = [f"asked {export.attempt} times"] if export.attempt > 1 else []
    lines += [export.problem] if export.problem else []
    match export.state:
        case "answered":
            return Step(name, DONE, f"{text}, {reason}", side, tuple(lines))
        case "timed_out":
            return Step(name, BAD, f"timed out: {text}, {reason}", side, tuple(lines))
        case _:
            return Step(name, WAITING, f"{text}, {reason}", side, tuple(lines))


def _snapshot(files: Sequence[Evidence], newest: ExportView | None) -> Step:
    lines = []
    answers = () if newest is None else newest.answers
    for answer in answers:
        parts = [f"answer: counter {answer.seq}", "suspended" if answer.suspended else "not suspended"]
        parts += [size(answer.size), f"sha256 {answer.sha256[:12]}…"]
        parts += ["after the time-out"] if answer.late else []
        parts += ["of another key: kept, not used"] if answer.foreign_key else []
        lines.append(", ".join(parts) + (f": {answer.problem}" if answer.problem else ""))
    if files:
        took = ""
        if newest is not None and newest.export.answered_at and newest.export.published_at:
            took = duration(max(0, newest.export.answered_at - newest.export.published_at))
        return Step("Snapshot", DONE, "; ".join(file.summary for file in files), took, tuple(lines))
    if newest is not None and newest.export.state == "requested":
        return Step("Snapshot", WAITING, "The pipeline answers when it comes to the request.", "", tuple(lines))
    return Step("Snapshot", OPEN, "Comes as the answer to an export request.", "", tuple(lines))


def _of_role(name: str, files: Sequence[Evidence], search: Search | None) -> Step:
    if files:
        source = files[0].source
        bare = source.get("rebuilt_from")
        rebuilt = (f"rebuilt: its topic holds records that are no envelopes ({bare})",) if bare else ()
        warnings = tuple(warning for file in files for warning in file.warnings)
        side = plural(sum(file.records for file in files), "record")
        return Step(name, DONE, "; ".join(file.summary for file in files), side, (*rebuilt, *warnings))
    if search is not None and search.live:
        return Step(name, WAITING, search.words)
    if search is not None:
        return Step(name, BAD, search.words, "", (search.problem,) if search.problem else ())
    return Step(name, OPEN, "Not searched for yet.")


def _rest(incident: Incident, by_role: dict[str, list[Evidence]]) -> Step:
    wanted = ["intents", "outputs"] + (["errors"] if incident.recorded_status == "failed" else [])
    name = ", ".join(wanted).capitalize()
    found = [f"{plural(sum(f.records for f in by_role[role]), role[:-1])}" for role in wanted if role in by_role]
    if not found:
        return Step(name, OPEN, "None of this attempt was collected.")
    return Step(name, DONE, ", ".join(found), "from intake")


def _search(views: Sequence[GatheringView]) -> Search | None:
    if not views:
        return None
    one = views[0].gathering
    state = one.gathering_state
    return Search(
        one.id, not state.finished, _SEARCHES[state], one.started_at, one.problem, views[0].notes, views[0].topics
    )


def _window(window: Window | None) -> str | None:
    if window is None:
        return None
    return duration(abs(window.left_ms))
