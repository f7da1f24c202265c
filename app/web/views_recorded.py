"""Lays out a run of an event log: its events in order, the tree of what caused what, and what the log does not tell.

The same for whoever may see everything and, over redacted events, for the holder of a link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.flink.model import Ended, Entry, Execution, Run, Twice
from app.flink.neutral import CATEGORIES, ENTITIES, neutral, type_name
from app.flink.records import LIFE_CYCLE
from app.incidents.redacted_rows import event as redacted_event
from app.incidents.redacted_rows import type_of
from app.incidents.redaction import Redactor, Reveal
from app.web.formats import duration, number, plural
from app.web.values import Shown, show
from app.web.views import Status

WINDOW: Final = 100  # events on one page
TREE: Final = 150  # executions on one page
BRIEF: Final = 1_500  # characters of a value that a line shows
FIELDS: Final = 8
# Memory is told whole at each write; what people came for lies between.
_MEMORY: Final = frozenset({
    "_short_term_read_event", "_short_term_write_event", "_sensory_read_event", "_sensory_write_event",
    "_long_term_get_event", "_long_term_search_event", "_long_term_update_event", "_agent_run_begin_event",
})  # fmt: skip
_SURFACE: Final = "trace"

ENDS: Final[Mapping[Ended, Status]] = {
    Ended.SUCCESS: Status("✓", "success", "ok", "It ended well."),
    Ended.ANSWERED: Status("✓", "answered", "ok", "The log holds its answer."),
    Ended.REUSED: Status("↺", "reused", "quiet", "A recovery took its result from the action state store."),
    Ended.FAILED: Status("✕", "failed", "bad", "It failed."),
    Ended.UNFINISHED: Status("…", "unfinished", "warn", "The log does not hold its end."),
    Ended.NOT_RECORDED: Status("–", "not recorded", "quiet", "Its events are here, its life-cycle is not."),
}
RUNS: Final[Mapping[str, Status]] = {
    "completed": Status("✓", "completed", "ok", "Nothing in it is left open."),
    "failed": Status("✕", "failed", "bad", "An action failed."),
    "unfinished": Status("…", "unfinished", "warn", "The log does not hold its end."),
}


def run_status(status: str) -> Status:
    return RUNS.get(status, Status("?", status, "quiet", ""))


@dataclass(frozen=True, slots=True)
class Mark:
    """Something to be known of a line, in a word, with the sentence behind it."""

    word: str
    title: str
    tone: str = "quiet"


@dataclass(frozen=True, slots=True)
class RecordedLine:
    """One event of the run. `execution` is the place of its execution in the tree, None where that tells nothing."""

    ordinal: int
    time_ms: int
    type: str
    label: str
    about: str
    told: tuple[tuple[str, Shown], ...]
    more: int
    marks: tuple[Mark, ...]
    quiet: bool
    memory: bool
    execution: int | None


@dataclass(slots=True)
class Node:
    """One execution and those that it caused; `first` is the ordinal of its first event."""

    place: int
    kind: str
    name: str
    status: Status
    problem: str | None
    error: str
    took: str | None
    first: int | None
    concluded: bool
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Notice:
    """What stands above the timeline because it bears on all of it."""

    tone: str
    lead: str
    text: str


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events are wanted: of some types, and saying some words."""

    types: Sequence[str] = ()
    text: str = ""

    @property
    def any(self) -> bool:
        return bool(self.types or self.text)


@dataclass(frozen=True, slots=True)
class RecordedView:
    """A window of a run's events, its tree (roots), and what is to be known of the whole."""

    notices: tuple[Notice, ...]
    roots: tuple[Node, ...]
    executions: int
    left_out: int
    lines: tuple[RecordedLine, ...]
    total: int
    found: int
    previous: int | None
    next: int | None
    types: tuple[tuple[str, int], ...]
    wanted: Filter


def recorded_view(
    run: Run,
    *,
    start: int = 0,
    at: int | None = None,
    wanted: Filter = Filter(),
    redactor: Redactor | None = None,
) -> RecordedView:
    """Lay out the events from `start` on, or around `at`; with a redactor, only what passes it."""
    types = [_type(entry, redactor) for entry in run.entries]
    chosen = [n for n, kind in enumerate(types) if not wanted.types or kind in wanted.types]
    if wanted.text:
        chosen = [n for n in chosen if _says(_event(run.entries[n], run, redactor), wanted.text)]
    first = _place_of(chosen, start if at is None else at, WINDOW // 3 if at is not None else 0)
    window = chosen[first : first + WINDOW]
    nodes = _nodes(run, redactor)
    places = {one.id: node.place for one, node in zip(run.executions, nodes, strict=True)}
    shown = len(nodes) if len(nodes) <= TREE else TREE
    return RecordedView(
        notices=tuple(_notices(run)),
        roots=tuple(_tree(run.executions, nodes)),
        executions=len(nodes),
        left_out=len(nodes) - shown,
        lines=tuple(
            _line(n, run.entries[n], _event(run.entries[n], run, redactor), places, shown, redactor is not None)
            for n in window
        ),
        total=len(types),
        found=len(chosen),
        previous=chosen[max(0, first - WINDOW)] if first else None,
        next=chosen[first + WINDOW] if first + WINDOW < len(chosen) else None,
        types=tuple(sorted(Counter(types).items())),
        wanted=wanted,
    )


def _event(entry: Entry, run: Run, redactor: Redactor | None) -> dict[str, Any]:
    told = neutral(entry, run).as_json()
    return told if redactor is None else redacted_event(redactor, told, _SURFACE) or {}


def _type(entry: Entry, redactor: Redactor | None) -> str:
    name = type_name(entry.record.type)
    return name if redactor is None else str(type_of(redactor, name))


def _says(event: Mapping[str, Any], text: str) -> bool:
    words = text.casefold()
    texts = [event["type"], event["label"], event["about"]]
    texts += [value for group in ("attributes", "payload", "identity") for value in event[group].values()]
    return any(words in one.casefold() for one in texts)


def _place_of(chosen: Sequence[int], ordinal: int, before: int) -> int:
    place = next((n for n, each in enumerate(chosen) if each >= ordinal), max(0, len(chosen) - 1))
    return max(0, place - before)


def _line(
    ordinal: int, entry: Entry, event: Mapping[str, Any], places: Mapping[str, int], shown: int, hidden: bool
) -> RecordedLine:
    payload: Mapping[str, str] = event["payload"]
    told = [(name, show(value, BRIEF, 100)) for name, value in payload.items() if value not in ("", "null", "{}", "[]")]
    place = places.get(entry.record.execution_id or "")
    return RecordedLine(
        ordinal=ordinal,
        time_ms=entry.record.time_ms,
        type=event["type"],
        label=event["label"],
        about=event["about"],
        told=tuple(told[:FIELDS]),
        more=max(0, len(told) - FIELDS),
        marks=tuple(_marks(entry, hidden)),
        quiet=entry.record.type in LIFE_CYCLE and entry.record.status in ("started", "success"),
        memory=entry.record.type in _MEMORY,
        execution=place if place is not None and place < shown else None,
    )


def _marks(entry: Entry, hidden: bool) -> Iterator[Mark]:
    if entry.how.concluded:
        said = {
            "content": "Placed in this run because it repeats what only this run had said; the log does not say.",
            "alone": "Placed in this run because no other run of the subtask was under way; the log does not say.",
        }
        yield Mark("≈ concluded", said[str(entry.how)])
    if entry.twice is Twice.CONFLICT:
        yield Mark("conflicting", "An earlier event has the same id and other content. Both are kept.", "bad")
    elif entry.twice is not Twice.NO:
        yield Mark(f"logged {entry.twice}", "The same event was logged before: a recovery does that.")
    if entry.record.truncations:
        cuts = entry.record.truncations
        # A place in a payload is made of names of the agent's own.
        places = [f"{'' if hidden else f'{cut.path}: '}{number(cut.omitted)} {cut.unit}" for cut in cuts[:4]]
        left = f"left out: {', '.join(places)}"
        yield Mark("cut short", f"STANDARD level cut it short ({left}).", "warn")


# What caused what ----------------------------------------------------------------------------------------------------


def _nodes(run: Run, redactor: Redactor | None) -> list[Node]:
    first: dict[str, int] = {}
    for ordinal, entry in enumerate(run.entries):
        if entry.record.execution_id is not None:
            first.setdefault(entry.record.execution_id, ordinal)
        first.setdefault(entry.record.event_id, ordinal)
    return [_node(n, one, first, redactor) for n, one in enumerate(run.executions)]


def _node(place: int, one: Execution, first: Mapping[str, int], redactor: Redactor | None) -> Node:
    kind, problem = one.type, one.problem_category
    name, error = one.name, ": ".join(part for part in (one.error_type, one.error) if part)
    if redactor is not None:
        kind = kind if kind in ENTITIES else redactor.text(kind, Reveal.NAMES) or ""
        problem = problem if problem is None or problem in CATEGORIES else redactor.text(problem, Reveal.NAMES)
        name = redactor.text(name, Reveal.NAMES) or ""
        error = (redactor.text(error, Reveal.TEXTS) or "") if error else ""
    took = None
    if one.started_ns is not None and one.ended_ns is not None:
        took = duration(max(0, (one.ended_ns - one.started_ns) // 1_000_000))
    begins = first.get(one.id, first.get(one.id.partition("/")[0]))
    return Node(place, kind, name, ENDS[one.status], problem, error, took, begins, one.concluded)


def _tree(executions: Sequence[Execution], nodes: Sequence[Node]) -> list[Node]:
    """The roots, each with what it caused below it; a circle is cut where it would close."""
    by_id = {one.id: node for one, node in zip(executions, nodes, strict=True)}
    parents = {one.id: one.parent for one in executions}
    roots = []
    for one, node in list(zip(executions, nodes, strict=True))[:TREE]:
        parent = by_id.get(one.parent or "")
        if parent is None or parent.place >= TREE or _circular(one.id, parents):
            roots.append(node)
        else:
            parent.children.append(node)
    return roots


def _circular(start: str, parents: Mapping[str, str | None]) -> bool:
    seen = {start}
    at = parents.get(start)
    while at is not None:
        if at in seen:
            return True
        seen.add(at)
        at = parents.get(at)
    return False


# What the log does not tell ------------------------------------------------------------------------------------------


def _notices(run: Run) -> Iterator[Notice]:
    if not run.verbose:
        cut = run.truncated
        yield Notice(
            "warn",
            "The log was not written at VERBOSE level.",
            (f"{plural(cut, 'event was', 'events were')} cut short here: what was left out is not known."
             if cut else "Nothing of this run was cut short, but longer values would have been.")
            + " STANDARD level keeps 2 000 characters, 20 elements and 5 levels of a value; a re-run needs the whole."
            " Set event-log.level to VERBOSE.",
        )  # fmt: skip
    if run.input_missing:
        yield Notice(
            "warn",
            "The input of this run is not in the log.",
            "It was logged in a file that is not here, or lost: the log is best effort.",
        )
    if run.concluded:
        yield Notice(
            "live",
            f"{plural(run.concluded, 'event was', 'events were')} placed by conclusion.",
            "This log names neither runs nor causes. Marked events were placed by what only this run can have sent.",
        )
    if run.unfinished:
        yield Notice(
            "warn",
            f"{plural(run.unfinished, 'execution', 'executions')} never ended.",
            "The job stopped, or the end was not logged.",
        )
