"""Keeps the rows of attempts right as events arrive in any order, twice, or in parts.

Events of a key and seq that is new are grouped alone. Where rows are stored already and could be touched, all events
are read back from the raw frames and grouped anew, together with the new ones.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from app.incidents import collecting_sql as sql
from app.incidents.collecting_sql import DailyIds, copy
from app.incidents.columns import dumps, plain
from app.incidents.projection import (
    Facts,
    IntentMark,
    Owner,
    Place,
    Range,
    Shape,
    Traced,
    facts_of,
    group,
    independent,
    inside,
    ranges_of,
    read_places,
)
from app.incidents.segments import unpack
from app.wire import identity
from app.wire.records import TraceEvent

STRAY: Final = "stray"
"""Category of events whose trace id names no key and seq that is known; they wait for it."""


class Row(NamedTuple):
    """A stored attempt."""

    id: int
    clock_ms: int
    owner: Owner
    shape_id: int
    places: bytes


@dataclass
class Sorted:
    """New events by owner, and the rows that they make where nothing else is known of their owners."""

    owners: dict[Owner, list[Traced]]
    strays: list[Traced]
    facts: dict[Owner, list[Facts]]


def sort(traced: Sequence[Traced]) -> Sorted:
    """Do what needs no database: sort events by owner, and group those of each."""
    grouped = group(traced)
    facts = {owner: facts_of(owner, events) for owner, events in grouped.owners.items()}
    return Sorted(grouped.owners, grouped.strays, facts)


@dataclass
class AttemptStore:
    """The rows of one pipeline's attempts, inside the transactions of its intake."""

    pipeline: str
    ids: DailyIds
    _shapes: dict[int, Shape | None] = field(default_factory=dict)
    _numbers: dict[Shape, int] = field(default_factory=dict)
    _fresh: dict[Shape, int] = field(default_factory=dict)
    _strays: list[int] | None = None

    def keep(self) -> None:
        """What the transaction made is there for good."""
        self._numbers |= self._fresh
        self._fresh = {}

    def forget(self) -> None:
        """The transaction was rolled back, or somebody else wrote: trust nothing that was not committed."""
        self._fresh = {}
        self._strays = None

    def store(self, connection: Connection, new: Sorted) -> list[Facts]:
        """Bring the rows up to date with new events; returns those that are new or have changed."""
        if not new.owners and not new.strays:
            return []
        changed = self._take_strays(connection, new.owners, new.strays)
        made = new.facts | {owner: facts_of(owner, new.owners[owner]) for owner in changed}
        known = self._known(connection, list(new.owners))
        fresh: list[Facts] = []
        entangled: dict[Owner, list[Traced]] = {}
        for owner, events in new.owners.items():
            rows, own = known.get(owner, ()), made[owner]
            if not rows or (own and independent([(row.clock_ms, self._shape(row)) for row in rows], own)):
                fresh += own
            else:
                entangled[owner] = events
        self._insert(connection, [(self.ids.take(), facts) for facts in fresh])
        return fresh + self._regroup(connection, entangled, known)

    # Strays ----------------------------------------------------------------------------------------------------------

    def _take_strays(
        self, connection: Connection, owners: dict[Owner, list[Traced]], strays: list[Traced]
    ) -> set[Owner]:
        """Find owners for events whose trace id is nobody's in this batch, here or in what is stored; say which."""
        changed: set[Owner] = set()
        if strays:
            keys = list({traced.record_key for traced in strays})
            found = connection.execute(sql.SEQS_OF, {"keys": keys}).all()
            by_trace = {identity.trace_id(bytes(key), seq): (bytes(key), seq) for key, seq in found}
            lost: list[Traced] = []
            for traced in strays:
                owner = by_trace.get(traced.trace_id)
                if owner is None:
                    lost.append(traced)
                else:
                    owners.setdefault(owner, []).append(traced)
                    changed.add(owner)
            self._keep_strays(connection, lost)
        waiting = self._stray_shapes(connection)
        return changed | self._adopt(connection, owners, waiting) if waiting else changed

    def _keep_strays(self, connection: Connection, lost: Iterable[Traced]) -> None:
        """Note where they lie, under the key that they were sent with."""
        shape = Shape(kind="", category=STRAY, status=STRAY, plain=False)
        rows = [
            Facts(one.record_key, one.owner[1], one.event.start_ms, shape, 1, ranges_of(one.places)) for one in lost
        ]
        if rows:
            self._insert(connection, [(self.ids.take(), facts) for facts in rows])
            self._strays = None

    def _stray_shapes(self, connection: Connection) -> list[int]:
        if self._strays is None:
            self._strays = list(connection.execute(sql.STRAY_SHAPES, {"pipeline": self.pipeline}).scalars())
        return self._strays

    def _adopt(self, connection: Connection, owners: dict[Owner, list[Traced]], shapes: list[int]) -> set[Owner]:
        """Give stored strays to the owners that this batch has brought; say to which."""
        by_trace = {identity.trace_id(*owner): owner for owner in owners}
        keys = list({key for key, _ in owners})
        rows = [_row(row) for row in connection.execute(sql.STRAY_ROWS, {"keys": keys, "shapes": shapes})]
        if not rows:
            return set()
        read = self._read_back(connection, rows)
        adopted: list[Row] = []
        changed: set[Owner] = set()
        for row in rows:
            mine = [one for one in read if _inside(one, row)]
            found = [(by_trace[one.trace_id], one) for one in mine if one.trace_id in by_trace]
            if found:
                adopted.append(row)
                for owner, one in found:
                    owners[owner].append(one)
                    changed.add(owner)
        self._drop(connection, adopted)
        return changed

    # Rows ------------------------------------------------------------------------------------------------------------

    def _known(self, connection: Connection, owners: Sequence[Owner]) -> dict[Owner, list[Row]]:
        values = {"keys": [key for key, _ in owners], "seqs": [seq for _, seq in owners]}
        rows = [_row(row) for row in connection.execute(sql.KNOWN_ATTEMPTS, values)]
        self._load_shapes(connection, {row.shape_id for row in rows})
        known: dict[Owner, list[Row]] = defaultdict(list)
        for row in rows:
            shape = self._shapes[row.shape_id]
            if shape is not None and shape.category != STRAY:
                known[row.owner].append(row)
        return known

    def _regroup(
        self, connection: Connection, entangled: Mapping[Owner, list[Traced]], known: Mapping[Owner, list[Row]]
    ) -> list[Facts]:
        """Group all events of some owners anew; rows that are still of the same attempt keep their ids."""
        if not entangled:
            return []
        rows = [row for owner in entangled for row in known[owner]]
        stored: dict[Owner, list[Traced]] = defaultdict(list)
        by_trace = {identity.trace_id(*owner): owner for owner in entangled}
        for one in self._read_back(connection, rows):
            owner = by_trace.get(one.trace_id, one.owner)
            if owner in entangled:
                stored[owner].append(one)
        changed: list[Facts] = []
        inserts: list[tuple[int, Facts]] = []
        drops: list[Row] = []
        for owner, events in entangled.items():
            old = {(row.clock_ms, self._shape(row).entry_step): row for row in known[owner]}
            same = {(row.clock_ms, row.shape_id, row.places) for row in known[owner]}
            for facts in facts_of(owner, [*stored[owner], *events]):
                row = old.pop((facts.clock_ms, facts.shape.entry_step), None)
                number = self._number(connection, facts.shape)
                if row is None or (facts.clock_ms, number, facts.places) not in same:
                    changed.append(facts)
                inserts.append((self.ids.take() if row is None else row.id, facts))
            drops += known[owner]
        self._drop(connection, drops)
        self._insert(connection, inserts)
        return changed

    def _read_back(self, connection: Connection, rows: Iterable[Row]) -> list[Traced]:
        """Read stored events from their raw frames."""
        ranges = sorted({one for row in rows for one in read_places(row.places)[1]})
        found: dict[Place, Traced] = {}
        for stream_id, partition, data in segments_of(connection, ranges):
            wanted = inside((one.first, one.last) for one in ranges if one[:2] == (stream_id, partition))
            for raw in unpack(data, wanted):
                if raw.value is None:
                    continue
                event = TraceEvent()
                try:
                    event.ParseFromString(raw.value)
                except ValueError:
                    continue  # it lies between events of the attempt, and was told when it came
                place = Place(stream_id, partition, raw.offset)
                found[place] = Traced.of(event, raw.value, place, raw.key)
        return list(found.values())

    def _insert(self, connection: Connection, rows: Sequence[tuple[int, Facts]]) -> None:
        self._number_all(connection, {facts.shape for _, facts in rows})
        lines = []
        for number, facts in rows:
            first, *more = facts.intents or (None,)
            shape = self._number(connection, facts.shape)
            lines.append(
                (number, facts.clock_ms, facts.seq, first, shape, facts.entity_key, facts.places, more or None)
            )
        copy(connection, "attempts", sql.ATTEMPT_COLUMNS, lines)

    def _drop(self, connection: Connection, rows: Sequence[Row]) -> None:
        if rows:
            values = {"ids": [row.id for row in rows], "clocks": [row.clock_ms for row in rows]}
            connection.execute(sql.DROP_ATTEMPTS, values)

    # Shapes ----------------------------------------------------------------------------------------------------------

    def _shape(self, row: Row) -> Shape:
        shape = self._shapes[row.shape_id]
        assert shape is not None, "rows of other pipelines are left out"
        return shape

    def _load_shapes(self, connection: Connection, ids: set[int]) -> None:
        missing = [one for one in ids if one not in self._shapes]
        if missing:
            for row in connection.execute(sql.SHAPES, {"ids": missing}):
                self._shapes[row.id] = shape_of(row) if row.pipeline == self.pipeline else None

    def _number(self, connection: Connection, shape: Shape) -> int:
        number = self._numbers.get(shape) or self._fresh.get(shape)
        if number is None:
            self._number_all(connection, {shape})
            number = self._fresh[shape]
        return number

    def _number_all(self, connection: Connection, shapes: Iterable[Shape]) -> None:
        missing = [shape for shape in shapes if shape not in self._numbers and shape not in self._fresh]
        if not missing:
            return
        digests = {shape.digest(self.pipeline): shape for shape in missing}
        values = {"pipeline": self.pipeline, "digests": list(digests)}
        found = {bytes(row.digest): row.id for row in connection.execute(sql.SHAPE_IDS, values)}
        for digest, shape in digests.items():
            if digest not in found:
                connection.execute(sql.ADD_SHAPE, _shape_values(self.pipeline, shape, digest))
        if len(found) < len(digests):
            found = {bytes(row.digest): row.id for row in connection.execute(sql.SHAPE_IDS, values)}
        self._fresh |= {shape: found[digest] for digest, shape in digests.items()}


def segments_of(connection: Connection, ranges: Iterable[Range]) -> Iterable[tuple[int, int, bytes]]:
    """Read the segments that hold some ranges of offsets, each once: (stream, partition, data)."""
    columns = list(zip(*ranges, strict=True))
    if not columns:
        return []
    names = ("streams", "partitions", "firsts", "lasts")
    rows = connection.execute(sql.SEGMENTS, {name: list(column) for name, column in zip(names, columns, strict=True)})
    return list({(row.stream_id, row.partition, bytes(row.data)): None for row in rows})


def shape_of(row: Any) -> Shape:
    """A shape as it is stored; texts have their stand-ins for what PostgreSQL cannot hold."""
    intents = json.loads(row.intents) if isinstance(row.intents, str) else row.intents
    return Shape(
        row.kind, row.category, row.status, row.reason, row.error_type, row.entry_step, row.batch_size,
        row.batch_trigger, row.plain, tuple(row.tools), tuple(IntentMark(*one) for one in intents),
    )  # fmt: skip


def _shape_values(pipeline: str, shape: Shape, digest: bytes) -> dict[str, Any]:
    return {
        "pipeline": pipeline,
        "kind": plain(shape.kind),
        "category": shape.category,
        "status": plain(shape.status),
        "reason": plain(shape.reason),
        "error_type": plain(shape.error_type),
        "entry_step": shape.entry_step,
        "batch_size": shape.batch_size,
        "batch_trigger": plain(shape.batch_trigger),
        "plain": shape.plain,
        "tools": [plain(tool) for tool in shape.tools],
        "intents": dumps(shape.intents),
        "digest": digest,
    }


def _row(row: Any) -> Row:
    return Row(row.id, row.clock_ms, (bytes(row.entity_key), row.seq), row.shape_id, bytes(row.places))


def _inside(traced: Traced, row: Row) -> bool:
    place = traced.place
    return any(one[:2] == place[:2] and one.first <= place.offset <= one.last for one in read_places(row.places)[1])


__all__ = ["STRAY", "AttemptStore", "Sorted", "segments_of", "shape_of", "sort"]
