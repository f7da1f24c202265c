"""Group the trace of one key into attempts, and the attempts into lives of the key.

One seq can hold a start, its resumes, failed tries, orphans, timer events and escalations, and after
a TTL wipe it can be used again. Each of these becomes a group of its own, so that none spoils a
neighbour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from app.replay.evidence import TraceRecord
from app.wire import identity
from app.wire.records import EventType, TraceEvent

ATTRIBUTE_KIND: Final = "beam_agents.activation.kind"
ATTRIBUTE_STATUS: Final = "beam_agents.activation.status"
ATTRIBUTE_REASON: Final = "beam_agents.reason"
ATTRIBUTE_INTENT_ID: Final = "beam_agents.intent_id"
ATTRIBUTE_BATCH_SIZE: Final = "beam_agents.batch.size"
ATTRIBUTE_BATCH_TRIGGER: Final = "beam_agents.batch.trigger"

REASON_ORPHAN: Final = "orphaned_result"
REASON_TIMEOUT: Final = "activation_timeout"
FAILURE_REASONS: Final = frozenset({"activation_error", "budget_exceeded", REASON_TIMEOUT})
TIMER_REASONS: Final = frozenset({"hitl_timeout", "ttl_wiped_suspension"})


class Category(StrEnum):
    """What a group of trace events is."""

    ACTIVATION = "activation"  # committed: START to END
    FAILURE = "failure"  # one ERROR; nothing was committed
    ORPHAN = "orphan"  # a result or approval that never ran
    TIMER = "timer"
    ESCALATION = "escalation"
    INCOMPLETE = "incomplete"  # START or END was not delivered


@dataclass
class Attempt:
    """One group of trace events of a key.

    `kind` is `start`, `resume`, or empty where the trace does not tell (failures). `entry_step` is
    the step cursor at entry, known from the activation span; None for a failure.
    `shared` are events that could equally belong to another attempt, `strays` those that could belong to any key.
    """

    entity_key: bytes
    seq: int
    clock_ms: int
    category: Category
    kind: str = ""
    entry_step: int | None = None
    records: list[TraceRecord] = field(default_factory=list)
    shared: list[TraceRecord] = field(default_factory=list)
    strays: list[TraceRecord] = field(default_factory=list, repr=False)
    life: int = 0

    @property
    def committed(self) -> bool:
        return self.category is Category.ACTIVATION

    @property
    def reason(self) -> str:
        """The reason of a lone ERROR; empty for anything else."""
        if self.category in (Category.ACTIVATION, Category.INCOMPLETE, Category.ESCALATION):
            return ""
        return self.records[0].event.attributes.get(ATTRIBUTE_REASON, "")

    @property
    def status(self) -> str:
        """How it ended, as recorded."""
        if self.category is Category.FAILURE:
            return "timed out" if self.reason == REASON_TIMEOUT else "failed"
        for record in self.records:
            if record.event.event_type == EventType.ACTIVATION_END:
                return record.event.attributes.get(ATTRIBUTE_STATUS, "")
        return str(self.category)

    @property
    def start(self) -> TraceEvent | None:
        for record in self.records:
            if record.event.event_type == EventType.ACTIVATION_START:
                return record.event
        return None

    @property
    def batch_size(self) -> int | None:
        """How many envelopes an adaptive flush took; None when it was no batch."""
        start = self.start
        if start is None or ATTRIBUTE_BATCH_SIZE not in start.attributes:
            return None
        text = start.attributes[ATTRIBUTE_BATCH_SIZE]
        return int(text) if text.isdecimal() and len(text) < 10 else None

    @property
    def batch_trigger(self) -> str:
        start = self.start
        return "" if start is None else start.attributes.get(ATTRIBUTE_BATCH_TRIGGER, "")

    def intent_ids(self) -> set[str]:
        """Ids of the intents that it emitted."""
        return {
            record.event.attributes.get(ATTRIBUTE_INTENT_ID, "")
            for record in self.records
            if record.event.event_type == EventType.INTENT_EMITTED
        }

    def describe(self) -> str:
        """A short name for messages: seq, kind or category, status, clock."""
        what = self.kind or str(self.category)
        if self.category is Category.ORPHAN:
            what = "refused (orphaned) result"
        elif self.category is Category.FAILURE:
            what = f"{self.status} attempt"
        elif self.committed:
            what = f"{what}, {self.status}"
        return f"seq {self.seq} {what} at clock {self.clock_ms}"


def attempts_of(entity_key: bytes, records: Iterable[TraceRecord]) -> list[Attempt]:
    """All attempts of one key, ordered by seq, then by clock and entry step."""
    sorting = _Sorting(entity_key, list(records))
    found = [
        attempt
        for seq, members in sorting.by_seq.items()
        for attempt in _Grouping(entity_key, seq, sorting.open).run(members)
    ]
    found.sort(key=lambda a: (a.seq, a.clock_ms, -1 if a.entry_step is None else a.entry_step))
    for attempt in found:
        attempt.strays = sorting.strays
    assign_lives(found)
    return found


class _Sorting:
    """A key's events by seq.

    The trace id decides, then the span that an event hangs on, for agents may stage events under ids of their own;
    only then what the event itself says. `open` are events (by their bytes) that hang on spans of several seqs, and
    stand under each of them; `strays` those that an agent of any key may have staged.
    """

    def __init__(self, entity_key: bytes, records: list[TraceRecord]) -> None:
        self.by_seq: dict[int, list[TraceRecord]] = defaultdict(list)
        self.open: set[bytes] = set()
        self.strays: list[TraceRecord] = []
        self._spans: dict[bytes, set[int]] = defaultdict(set)
        self._clocks: set[tuple[int, int]] = set()
        seqs = {record.event.seq for record in records if record.event.entity_key == entity_key}
        by_trace = {identity.trace_id(entity_key, seq): seq for seq in seqs}
        others: list[TraceRecord] = []
        for record in records:
            seq = by_trace.get(record.event.trace_id)
            if seq is None:
                others.append(record)
                continue
            self.by_seq[seq].append(record)
            self._spans[record.event.span_id].add(seq)
            self._clocks.add((seq, record.event.start_ms))
        self._parents = _parents(others)
        for record in others:
            self._place(record, entity_key)

    def _place(self, record: TraceRecord, entity_key: bytes) -> None:
        event = record.event
        hung = {seq for span in _roots(event.parent_span_id, self._parents) for seq in self._spans.get(span, ())}
        if len(hung) > 1:
            hung = {seq for seq in hung if (seq, event.start_ms) in self._clocks} or hung
        if len(hung) > 1 and event.entity_key == entity_key:
            hung = hung & {event.seq} or hung
        for seq in hung:
            self.by_seq[seq].append(record)
        if len(hung) > 1:
            self.open.add(record.content)
        elif not hung and event.entity_key == entity_key:
            self.by_seq[event.seq].append(record)
        elif not hung and event.trace_id != identity.trace_id(event.entity_key, event.seq):
            self.strays.append(record)


def _parents(records: Iterable[TraceRecord]) -> dict[bytes, set[bytes]]:
    """Which spans each span hangs on; agents may use one span again and again."""
    parents: dict[bytes, set[bytes]] = defaultdict(set)
    for record in records:
        parents[record.event.span_id].add(record.event.parent_span_id)
    return parents


def _roots(span: bytes, parents: Mapping[bytes, set[bytes]]) -> set[bytes]:
    """A span, and those that it hangs on through others."""
    waiting, seen = [span], set[bytes]()
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += parents.get(one, ())
    return seen


class _Grouping:
    """The grouping of one seq's events."""

    def __init__(self, entity_key: bytes, seq: int, open_events: Set[bytes]) -> None:
        self.entity_key = entity_key
        self.seq = seq
        self.open = open_events
        self.lone: list[Attempt] = []
        self.spans: dict[tuple[bytes, int, str], Attempt] = {}
        self.parents: dict[bytes, set[bytes]] = {}

    def run(self, records: list[TraceRecord]) -> list[Attempt]:
        self.entries = self._entries(records)
        rest = []
        for record in records:
            event = record.event
            if _is_frame(event):
                self._frame(record)
            elif self._is_lone_error(event):
                self._lone_error(record)
            else:
                rest.append(record)
        self.parents = _parents(rest)
        for record in rest:
            self._child(record)
        found = [self._finish(attempt) for attempt in self.spans.values()]
        return found + self.lone

    def _entries(self, records: list[TraceRecord]) -> dict[bytes, int]:
        """Which step cursor each possible activation span of this seq stands for."""
        top = max((record.event.step_index for record in records), default=0)
        span = identity.span_id
        return {
            span(self.entity_key, self.seq, identity.ROLE_ACTIVATION, step): step
            for step in range(min(top, 100_000) + 2)
        }

    def _is_lone_error(self, event: TraceEvent) -> bool:
        if event.event_type != EventType.ERROR:
            return False
        reason = event.attributes.get(ATTRIBUTE_REASON, "")
        return reason in FAILURE_REASONS or reason in TIMER_REASONS or reason == REASON_ORPHAN

    def _lone_error(self, record: TraceRecord) -> None:
        reason = record.event.attributes[ATTRIBUTE_REASON]
        if reason == REASON_ORPHAN:
            category = Category.ORPHAN
        elif reason in TIMER_REASONS:
            category = Category.TIMER
        else:
            category = Category.FAILURE
        self.lone.append(Attempt(self.entity_key, self.seq, record.event.start_ms, category, records=[record]))

    def _frame(self, record: TraceRecord) -> None:
        event = record.event
        kind = event.attributes.get(ATTRIBUTE_KIND, "")
        self._group(event.span_id, event.start_ms, kind).records.append(record)

    def _group(self, span: bytes, clock_ms: int, kind: str) -> Attempt:
        attempt = self.spans.get((span, clock_ms, kind))
        if attempt is None:
            attempt = Attempt(
                self.entity_key,
                self.seq,
                clock_ms,
                Category.INCOMPLETE,
                kind=kind,
                entry_step=self.entries.get(span),
            )
            self.spans[span, clock_ms, kind] = attempt
        return attempt

    def _child(self, record: TraceRecord) -> None:
        """An event inside an activation: it hangs on the activation's span, and its time is the clock."""
        event = record.event
        # An agent may stage frames of its own; they carry the span of its activation, not a parent.
        roots = _roots(event.span_id if event.event_type in _FRAMES else event.parent_span_id, self.parents)
        owners = [a for (span, _, _), a in self.spans.items() if span in roots]
        fitting = [a for a in owners if a.clock_ms == event.start_ms]
        if len(fitting) == 1 and record.content not in self.open:
            fitting[0].records.append(record)
        elif not fitting and self._is_escalation(event):
            self.lone.append(
                Attempt(
                    self.entity_key,
                    self.seq,
                    event.start_ms,
                    Category.ESCALATION,
                    records=[record],
                )
            )
        elif fitting or owners:
            # An agent may stage events of another time; so may an attempt of the same span whose frames are missing.
            for attempt in fitting or owners:
                attempt.shared.append(record)
        else:
            self._orphaned(record, roots)

    def _orphaned(self, record: TraceRecord, roots: set[bytes]) -> None:
        """An event on a span that no traced activation has: its frames are missing, or the agent chose the span."""
        event = record.event
        attempts = list(self.spans.values())
        known = next((root for root in roots if root in self.entries), None)
        if known is not None or not attempts:
            self._group(event.parent_span_id if known is None else known, event.start_ms, "").records.append(record)
            return
        for attempt in [a for a in attempts if a.clock_ms == event.start_ms] or attempts:
            attempt.shared.append(record)

    def _is_escalation(self, event: TraceEvent) -> bool:
        """An intent that hangs on a span which no activation carries, at the step it names and with its id."""
        return (
            event.event_type == EventType.INTENT_EMITTED
            and self.entries.get(event.parent_span_id) == event.step_index
            and event.attributes.get(ATTRIBUTE_INTENT_ID)
            == identity.intent_id(self.entity_key, self.seq, event.step_index)
            and event.attributes.get("beam_agents.expires_at_ms", "").isdecimal()
        )

    def _finish(self, attempt: Attempt) -> Attempt:
        types = {int(record.event.event_type) for record in attempt.records}
        if EventType.ACTIVATION_START in types and EventType.ACTIVATION_END in types:
            attempt.category = Category.ACTIVATION
        return attempt


_FRAMES: Final = (EventType.ACTIVATION_START, EventType.ACTIVATION_END)


def _is_frame(event: TraceEvent) -> bool:
    """Whether the pipeline wrote this START or END: those say which kind of activation they frame."""
    return event.event_type in _FRAMES and event.attributes.get(ATTRIBUTE_KIND) in ("start", "resume")


def assign_lives(attempts: list[Attempt]) -> None:
    """Number the lives of a key: a TTL wipe restarts its counter, so a seq can be started twice.

    A life begins at the clock of a committed start at seq 0. Event times may run backwards inside a
    life, so an attempt earlier than every such start belongs to the first one, and an attempt whose
    seq is taken in its life moves on to the next.
    """
    starts = [a for a in attempts if a.committed and a.kind == "start"]
    begins = sorted(a.clock_ms for a in starts if a.seq == 0)
    if len(begins) < 2:
        begins = _begins_from_repeats(starts) or begins
    taken: set[tuple[int, int]] = set()
    for attempt in sorted(attempts, key=lambda a: a.clock_ms):
        attempt.life = max(0, sum(begin <= attempt.clock_ms for begin in begins) - 1)
        if attempt.committed and attempt.kind == "start":
            while (attempt.seq, attempt.life) in taken:
                attempt.life += 1
            taken.add((attempt.seq, attempt.life))


def _begins_from_repeats(starts: list[Attempt]) -> list[int]:
    """Where lives begin when their first start was not delivered: at the first repeat of a seq."""
    begins: list[int] = []
    seen: set[int] = set()
    for attempt in sorted(starts, key=lambda a: a.clock_ms):
        if not begins:
            begins.append(attempt.clock_ms)
        if attempt.seq in seen:
            begins.append(attempt.clock_ms)
            seen = set()
        seen.add(attempt.seq)
    return begins if len(begins) > 1 else []


def life_count(attempts: Iterable[Attempt]) -> int:
    """How many lives of the key the trace shows (at least 1)."""
    return max((attempt.life for attempt in attempts), default=0) + 1


def tangled(attempts: Sequence[Attempt]) -> bool:
    """Whether clocks fail to tell the lives of a key apart, so that no attempt but a first start is surely of its life.

    Event times may run backwards inside one life. With several lives, a start that is earlier than one of a lower seq,
    or a resume that is earlier than its start, may belong to another; so may the second of two equal attempts.
    """
    committed = [attempt for attempt in attempts if attempt.committed]
    places = [(a.life, a.kind, a.seq, a.entry_step) for a in committed]
    if len(set(places)) < len(places):
        return True
    if life_count(attempts) < 2:
        return False
    starts = sorted((a for a in committed if a.kind == "start"), key=lambda a: (a.life, a.seq))
    by_place = {(a.life, a.seq): a.clock_ms for a in starts}
    backwards = any(one.life == other.life and one.clock_ms > other.clock_ms for one, other in pairwise(starts))
    early = any(
        a.clock_ms < by_place.get((a.life, a.seq), a.clock_ms)
        for a in attempts
        if a.kind != "start" and a.category in (Category.ACTIVATION, Category.FAILURE)
    )
    return backwards or early or same_start(attempts)


def same_start(attempts: Sequence[Attempt]) -> bool:
    """Whether one span at one clock holds the frames of two attempts, as when two lives begin at one event time."""
    frames = [
        (a.seq, a.clock_ms, record.event.span_id, record.event.event_type)
        for a in attempts
        for record in a.records
        if _is_frame(record.event)
    ]
    return len(set(frames)) < len(frames)
