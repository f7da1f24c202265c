"""From trace events to one row an attempt, grouped exactly as a replay would group them (`app.replay.grouping`).

Nearly every attempt arrives whole: START, its children, END. Those are recognised here at a fraction of the cost; all
others are grouped by the replay's own code, over every event of their key and seq that is known. So the order of
arrival, duplicates and the cut between two batches make no difference to what the rows say in the end.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from app.replay.attempts import (
    ATTRIBUTE_BATCH_SIZE,
    ATTRIBUTE_BATCH_TRIGGER,
    ATTRIBUTE_INTENT_ID,
    ATTRIBUTE_KIND,
    ATTRIBUTE_STATUS,
    Attempt,
    Category,
)
from app.replay.evidence import TraceRecord
from app.replay.grouping import attempts_of
from app.wire import identity
from app.wire.framing import read_varint, varint
from app.wire.records import EventType, TraceEvent

ATTRIBUTE_TOOL: Final = "beam_agents.tool_name"
ATTRIBUTE_INTENT_KIND: Final = "beam_agents.intent_kind"
ATTRIBUTE_ERROR_TYPE: Final = "error.type"

MAX_KEY: Final = 1024
"""Longest entity key that can be indexed, in bytes."""

# Events of one attempt lie close together; a gap of so many offsets costs less to read over than to note.
_GAP: Final = 64
_KINDS: Final = ("start", "resume")
_FRAMES: Final = frozenset({EventType.ACTIVATION_START, EventType.ACTIVATION_END})
# Steps beyond this are looked up by the replay's own code, which knows all of them.
_STEPS: Final = 64

Owner = tuple[bytes, int]
"""An entity key and a seq."""


class Place(NamedTuple):
    """Where one record lies; `stream` is a `Stream.id`."""

    stream: int
    partition: int
    offset: int


class Range(NamedTuple):
    """Offsets `first` to `last`, both included, of one partition."""

    stream: int
    partition: int
    first: int
    last: int


class IntentMark(NamedTuple):
    """One intent that an attempt emitted; `intent_id` is empty where it follows from key, seq and step."""

    step: int
    tool: str
    kind: str
    intent_id: str


@dataclass(slots=True)
class Traced:
    """One distinct trace event and where it was delivered, first and again; `record_key` is the key it was sent with.

    What grouping asks of every event is read out of it once: that costs more than all else.
    """

    event: TraceEvent
    content: bytes
    place: Place
    record_key: bytes
    owner: Owner
    trace_id: bytes
    again: list[Place] | None = None

    @classmethod
    def of(cls, event: TraceEvent, content: bytes, place: Place, record_key: bytes | None) -> Traced:
        return cls(event, content, place, record_key or b"", (event.entity_key, event.seq), event.trace_id)

    @property
    def places(self) -> list[Place]:
        return [self.place, *self.again] if self.again else [self.place]


@dataclass(frozen=True, slots=True)
class Shape:
    """What an attempt has in common with many others. `plain`: no other event can change how it is grouped."""

    kind: str
    category: str
    status: str
    reason: str = ""
    error_type: str = ""
    entry_step: int | None = None
    batch_size: int | None = None
    batch_trigger: str = ""
    plain: bool = True
    tools: tuple[str, ...] = ()
    intents: tuple[IntentMark, ...] = ()

    def digest(self, pipeline: str) -> bytes:
        """Name this shape in this pipeline: 16 bytes that are equal for equal ones."""
        parts = [pipeline, self.kind, self.category, self.status, self.reason, self.error_type, self.entry_step,
                 self.batch_size, self.batch_trigger, self.plain, self.tools, self.intents]  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).digest()[:16]


@dataclass(frozen=True, slots=True)
class Facts:
    """The row of one attempt; `intents` are hashes (`intent_hash`) of what it emitted, `events` counts its events."""

    entity_key: bytes
    seq: int
    clock_ms: int
    shape: Shape
    events: int
    ranges: tuple[Range, ...]
    intents: tuple[int, ...] = ()

    @property
    def places(self) -> bytes:
        """The row's `places`: the count of events and the ranges, as varints."""
        return write_places(self.events, self.ranges)


@dataclass
class Grouped:
    """Events by owner; `strays` name no owner that is known yet, though their trace id may."""

    owners: dict[Owner, list[Traced]] = field(default_factory=lambda: defaultdict(list))
    strays: list[Traced] = field(default_factory=list)


# Grouping ------------------------------------------------------------------------------------------------------------


def group(events: Iterable[Traced]) -> Grouped:
    """Sort events by key and seq; the trace id decides, for agents may stage events without either."""
    grouped = Grouped()
    owners = grouped.owners
    traces: dict[Owner, bytes] = {}
    others: list[Traced] = []
    for traced in events:
        owner = traced.owner
        trace = traces.get(owner)
        if trace is None:
            trace = traces[owner] = identity.trace_id(*owner)
        if traced.trace_id == trace:
            owners[owner].append(traced)
        else:
            others.append(traced)
    by_trace = {trace: owner for owner, trace in traces.items()}
    for traced in others:
        known = by_trace.get(traced.trace_id)
        if known is None:
            grouped.strays.append(traced)
        else:
            owners[known].append(traced)
    return grouped


def distinct(events: Iterable[Traced]) -> list[Traced]:
    """Collapse equal events into one that knows all its places."""
    seen: dict[bytes, Traced] = {}
    for traced in events:
        known = seen.get(traced.content)
        if known is None:
            seen[traced.content] = traced
        elif known is not traced:
            more = [place for place in traced.places if place not in known.places]
            known.again = [*(known.again or ()), *more]
    return list(seen.values())


def facts_of(owner: Owner, events: Sequence[Traced]) -> list[Facts]:
    """Make the rows of one key and seq from all of its events that are known."""
    events = distinct(events)
    whole = _whole(owner, events)
    if whole is not None:
        return [whole]
    places = {traced.content: traced.places for traced in events}
    records = [TraceRecord(traced.event, traced.content) for traced in events]
    return [_facts(attempt, places) for attempt in attempts_of(owner[0], records) if attempt.seq == owner[1]]


def _whole(owner: Owner, events: Sequence[Traced]) -> Facts | None:
    """Recognise one activation that is all there and nothing else; None where there is any doubt."""
    start = end = None
    children: list[tuple[int, TraceEvent]] = []
    for traced in events:
        event = traced.event
        kind = event.event_type
        if kind == EventType.ACTIVATION_START and start is None:
            start = event
        elif kind == EventType.ACTIVATION_END and end is None:
            end = event
        elif kind in _FRAMES or kind == EventType.ERROR:
            return None
        else:
            children.append((kind, event))
    if start is None or end is None:
        return None
    span, clock = start.span_id, start.start_ms
    opened, closed = start.attributes, end.attributes
    kind_told = opened.get(ATTRIBUTE_KIND, "")
    if kind_told not in _KINDS:
        return None  # an agent staged it: the pipeline's own frames say which kind they are
    if (end.span_id, end.start_ms, closed.get(ATTRIBUTE_KIND, "")) != (span, clock, kind_told):
        return None
    for _, child in children:
        if child.parent_span_id != span or child.start_ms != clock:
            return None
    step = _entry_step(owner, span, end.step_index)
    if step is None:
        return None
    size = opened.get(ATTRIBUTE_BATCH_SIZE, "")
    tools, intents = _tools_and_intents(owner, children)
    shape = Shape(
        kind=kind_told,
        category=Category.ACTIVATION.value,
        status=closed.get(ATTRIBUTE_STATUS, ""),
        entry_step=step,
        batch_size=int(size) if size.isdecimal() else None,
        batch_trigger=opened.get(ATTRIBUTE_BATCH_TRIGGER, ""),
        tools=tools,
        intents=tuple([mark for mark, _ in intents]),
    )
    places = [traced.place for traced in events]
    for traced in events:
        if traced.again:
            places += traced.again
    hashes = tuple([number for _, number in intents])
    return Facts(owner[0], owner[1], clock, shape, len(events), ranges_of(places), hashes)


def _entry_step(owner: Owner, span: bytes, last: int) -> int | None:
    """The step cursor at entry, from the activation's span; a start has 0, a resume no more than its last step."""
    for step in range(min(last, _STEPS) + 1):
        if identity.span_id(*owner, identity.ROLE_ACTIVATION, step) == span:
            return step
    return None


def _facts(attempt: Attempt, places: dict[bytes, list[Place]]) -> Facts:
    records = [*attempt.records, *attempt.shared]
    events = [(record.event.event_type, record.event) for record in attempt.records]
    tools, intents = _tools_and_intents((attempt.entity_key, attempt.seq), events)
    lone = attempt.records[0].event
    settled = attempt.category not in (Category.INCOMPLETE, Category.ESCALATION)
    shape = Shape(
        kind=attempt.kind,
        category=str(attempt.category),
        status=attempt.status,
        reason=attempt.reason,
        error_type=lone.attributes.get(ATTRIBUTE_ERROR_TYPE, "") if attempt.reason else "",
        entry_step=attempt.entry_step,
        batch_size=attempt.batch_size,
        batch_trigger=attempt.batch_trigger,
        plain=settled and not attempt.shared and all(r.event.start_ms == attempt.clock_ms for r in attempt.records),
        tools=tools,
        intents=tuple(mark for mark, _ in intents),
    )
    found = {record.content for record in records}
    ranges = ranges_of(place for content in found for place in places[content])
    hashes = tuple(number for _, number in intents)
    return Facts(attempt.entity_key, attempt.seq, attempt.clock_ms, shape, len(found), ranges, hashes)


def _tools_and_intents(
    owner: Owner, events: Iterable[tuple[int, TraceEvent]]
) -> tuple[tuple[str, ...], list[tuple[IntentMark, int]]]:
    """Read the tools and intents out of events, given with their types."""
    tools: set[str] = set()
    intents: set[tuple[IntentMark, int]] = set()
    for kind, event in events:
        if kind == EventType.TOOL_CALL:
            tools.add(event.attributes.get(ATTRIBUTE_TOOL, ""))
        elif kind == EventType.INTENT_EMITTED:
            told, step = event.attributes, event.step_index
            intent, tool = told.get(ATTRIBUTE_INTENT_ID, ""), told.get(ATTRIBUTE_TOOL, "")
            derived = identity.intent_id(*owner, step) == intent
            mark = IntentMark(step, tool, told.get(ATTRIBUTE_INTENT_KIND, ""), "" if derived else intent)
            tools.add(tool)
            intents.add((mark, intent_hash(intent)))
    return tuple(sorted(tools)), sorted(intents)


def independent(known: Sequence[tuple[int, Shape]], fresh: Sequence[Facts]) -> bool:
    """Whether rows made from new events alone are right beside those that are stored, given as (clock, shape).

    They are when nobody's events could belong to another: every attempt is whole, and no two share their entry.
    """
    taken = {(clock, *_entry(shape)) for clock, shape in known}
    for facts in fresh:
        mine = (facts.clock_ms, *_entry(facts.shape))
        if not facts.shape.plain or mine in taken:
            return False
    return all(shape.plain for _, shape in known)


def _entry(shape: Shape) -> tuple[object, ...]:
    """What two attempts of one seq and clock differ in if they are two: a lone error's reason, else kind and step."""
    if shape.reason:
        return shape.category, shape.reason, shape.error_type
    return shape.kind, shape.entry_step


# Small encodings -----------------------------------------------------------------------------------------------------


def intent_hash(intent_id: str) -> int:
    """An intent's id as the 64 bits that its index holds."""
    digest = hashlib.blake2b(intent_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def intent_id_of(owner: Owner, mark: IntentMark) -> str:
    """The whole id of an intent."""
    return mark.intent_id or identity.intent_id(*owner, mark.step)


def ranges_of(places: Iterable[Place]) -> tuple[Range, ...]:
    """Join places into ranges; those that lie close together become one."""
    ranges: list[Range] = []
    held: tuple[int, int] | None = None
    first = last = 0
    for stream, partition, offset in sorted(places):
        if held == (stream, partition) and offset - last <= _GAP:
            last = offset
            continue
        if held is not None:
            ranges.append(Range(*held, first, last))
        held, first, last = (stream, partition), offset, offset
    if held is not None:
        ranges.append(Range(*held, first, last))
    return tuple(ranges)


def inside(spans: Iterable[tuple[int, int]]) -> Callable[[int], bool]:
    """A test whether an offset lies in one of some spans, both ends included; there may be hundreds of them."""
    ordered = sorted(spans)
    firsts = [first for first, _ in ordered]
    # The furthest end of this span and all before it: spans may lie inside one another.
    ends = list(accumulate((last for _, last in ordered), max))

    def test(offset: int) -> bool:
        at = bisect_right(firsts, offset)
        return at > 0 and offset <= ends[at - 1]

    return test


def write_places(events: int, ranges: Iterable[Range]) -> bytes:
    """Encode the count of events and their ranges."""
    parts = [varint(events)]
    for one in ranges:
        parts += map(varint, (one.stream, one.partition, one.first, one.last - one.first))
    return b"".join(parts)


def read_places(data: bytes) -> tuple[int, tuple[Range, ...]]:
    """Undo `write_places`."""
    events, *numbers = _varints(data)
    ranges = [
        Range(stream, partition, first, first + more)
        for stream, partition, first, more in zip(*(iter(numbers),) * 4, strict=True)
    ]
    return events, tuple(ranges)


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        found = read_varint(data, at)
        if found is None:
            raise ValueError("places are cut off")
        value, at = found
        yield value
