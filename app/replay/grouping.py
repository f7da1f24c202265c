"""Group the trace of one key into attempts.

One seq can hold a start, its resumes, failed tries, orphans, timer events and escalations, and after
a TTL wipe it can be used again. Each of these becomes a group of its own, so that none spoils a
neighbour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

from app.replay.attempts import (
    ATTRIBUTE_INTENT_ID,
    ATTRIBUTE_KIND,
    ATTRIBUTE_REASON,
    FAILURE_REASONS,
    FRAMES,
    REASON_ORPHAN,
    TIMER_REASONS,
    Attempt,
    Category,
    is_frame,
)
from app.replay.evidence import TraceRecord
from app.replay.lives import assign_lives
from app.wire import identity
from app.wire.records import EventType, TraceEvent


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
            if is_frame(event):
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
        roots = _roots(event.span_id if event.event_type in FRAMES else event.parent_span_id, self.parents)
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
