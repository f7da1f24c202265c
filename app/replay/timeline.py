"""Lay the record of an attempt beside its re-run, as aligned rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from app.replay import compare
from app.replay.attempts import ATTRIBUTE_INTENT_ID, Attempt
from app.replay.events import Event
from app.replay.ledger import memory_value
from app.replay.mapping import content, ordered
from app.replay.originals import Originals
from app.replay.plan import Plan
from app.replay.rerun_pb2 import RerunResult
from app.replay.verdict import FieldPair, FieldState, Row, RowState
from app.wire.records import Continuation, EventType, MemoryBlob, TraceEvent, serialize

EXTRA_TYPES: Final = {
    compare.OUTPUTS: "OUTPUT",
    compare.MEMORY: "MEMORY",
    compare.CONTINUATION: "CONTINUATION",
}


@dataclass
class Comparison:
    """Aligned rows, and notes on what could not be attributed."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unclaimed: int = 0  # recorded events that could be this attempt's and that the re-run did not emit
    certain: list[Row] | None = None  # its rows if every time that may have been read off the clock was; None: the same

    @property
    def differs(self) -> bool:
        return any(row.differs for row in self.rows)


def compare_run(plan: Plan, result: RerunResult) -> Comparison:
    """Compare a finished re-run with the record of its attempt, surface by surface."""
    assert plan.attempt is not None, "a what-if has nothing to compare with"
    comparison = Comparison()
    recorded = _recorded(plan, plan.attempt, result, comparison)
    replayed = replayed_events(plan, result, plan.attempt)
    comparison.rows = compare.rows_of(recorded, replayed)
    _outputs(plan.originals, result, comparison)
    if plan.attempt.committed:
        _memory(plan, result, comparison)
        _continuation(plan.originals, result, comparison)
    comparison.rows = compare.fold(comparison.rows)
    return comparison


def replayed_events(plan: Plan, result: RerunResult, attempt: Attempt | None) -> list[Event]:
    """What the re-run emitted; where only it failed, also what it had staged until then."""
    args = {intent.intent_id: intent.args_json for intent in result.intents}

    def payload(event: TraceEvent) -> Mapping[str, str]:
        if event.event_type == EventType.INTENT_EMITTED:
            text = args.get(event.attributes.get(ATTRIBUTE_INTENT_ID, ""))
            return {} if text is None else {"args_json": text}
        if event.event_type == EventType.ERROR and result.HasField("dead_letter"):
            return {"detail": result.dead_letter.detail}
        return {}

    key = plan.request.entity_key
    events = ordered(result.events, key, plan.seq, payload)
    if attempt is not None and attempt.committed and result.staged:
        return ordered(result.staged, key, plan.seq, payload) + events
    return events


def _recorded(plan: Plan, attempt: Attempt, result: RerunResult, comparison: Comparison) -> list[Event]:
    originals = plan.originals
    if result.dead_letter.detail in originals.details:
        originals = replace(originals, details=[result.dead_letter.detail])
    records = list(attempt.records)
    if attempt.shared or attempt.strays:
        again = {content(event) for event in result.events}
        belonging = [record for record in attempt.shared if content(record.event) in again]
        left = len(attempt.shared) - len(belonging)
        records += belonging + [record for record in attempt.strays if content(record.event) in again]
        comparison.unclaimed = left
        if left:
            comparison.notes.append(
                f"{left} traced events could belong to this attempt or to another one of the same"
                " span; they are not compared"
            )
    events = [record.event for record in records]
    return ordered(events, plan.request.entity_key, plan.seq, originals.payload)


def _outputs(originals: Originals, result: RerunResult, comparison: Comparison) -> None:
    if result.output_problem:
        _extra(comparison, compare.OUTPUTS, None, {"output": result.output_problem})
        return
    for output in result.outputs:
        if originals.outputs is not None and output not in originals.outputs:
            _extra(comparison, compare.OUTPUTS, None, {"output": shown(output)})


def _extra(
    comparison: Comparison,
    surface: str,
    recorded: Mapping[str, str] | None,
    replayed: Mapping[str, str] | None,
) -> None:
    """Add a row for what no trace event carries; None stands for the side that lacks it."""
    kind = EXTRA_TYPES[surface]
    left = None if recorded is None else Event(kind, payload=recorded)
    right = None if replayed is None else Event(kind, payload=replayed)
    state = RowState.CHANGED
    fields: tuple[FieldPair, ...] = ()
    if recorded is not None and replayed is not None:
        fields = tuple(
            FieldPair(name, recorded.get(name), replayed.get(name), FieldState.CHANGED)
            for name in dict.fromkeys((*recorded, *replayed))
            if recorded.get(name) != replayed.get(name)
        )
    else:
        state = RowState.REPLAYED_ONLY if left is None else RowState.RECORDED_ONLY
    comparison.rows.append(Row(len(comparison.rows), state, surface, left, right, fields))


def _memory(plan: Plan, result: RerunResult, comparison: Comparison) -> None:
    original = plan.originals.memory
    if original is None or not committed(result):
        return
    recorded, replayed = original, result.memory
    if not plan.state.fit.exact:
        recorded, replayed = _only(recorded, result.overwritten), _only(replayed, result.overwritten)
    left, right = _content(recorded), _content(replayed)
    if left != right:
        view = _memory_view if plan.state.fit.exact else _values
        one, other = view(recorded), view(replayed)
        if one == other:  # told apart by their bytes alone
            one["sha256"], other["sha256"] = hashlib.sha256(left).hexdigest(), hashlib.sha256(right).hexdigest()
        _extra(comparison, compare.MEMORY, one, other)


def _only(blob: MemoryBlob, keys: Iterable[str]) -> MemoryBlob:
    """The entries of some keys, in the order of the keys and without their stamps: what a run itself set."""
    held = {entry.key: entry.value for entry in blob.entries}
    chosen = MemoryBlob()
    for key in keys:
        if key in held:
            chosen.entries.add(key=key, value=held[key])
    return chosen


def _content(blob: MemoryBlob) -> bytes:
    """Everything but the version stamp."""
    copy = MemoryBlob()
    copy.CopyFrom(blob)
    copy.ClearField("state_schema_version")
    return serialize(copy)


def committed(result: RerunResult) -> bool:
    return result.outcome in (RerunResult.COMPLETED, RerunResult.SUSPENDED)


def _memory_view(blob: MemoryBlob) -> dict[str, str]:
    """Everything of a memory image but its version stamp, in words that can be compared."""
    view = _values(blob)
    view["order, least recently used first"] = ", ".join(entry.key for entry in blob.entries)
    view |= {f"last access of {entry.key}": str(entry.last_access_ms) for entry in blob.entries}
    view["total_value_bytes"] = str(blob.total_value_bytes)
    return view


def _values(blob: MemoryBlob) -> dict[str, str]:
    return {f"memory.{entry.key}": _entry(entry.value) for entry in blob.entries}


def _entry(encoded: bytes) -> str:
    """A memory value for a person: a scalar as text, a ring as a list."""
    value = memory_value(encoded)
    if encoded[:1] not in (b"\x00", b"\x01"):
        return shown(encoded)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _continuation(originals: Originals, result: RerunResult, comparison: Comparison) -> None:
    if result.outcome != RerunResult.SUSPENDED or originals.continuation is None:
        return
    recorded, replayed = _wait(originals.continuation), _wait(result.continuation)
    if recorded != replayed:
        _extra(comparison, compare.CONTINUATION, recorded, replayed)


def _wait(continuation: Continuation) -> dict[str, str]:
    return {
        "snapshot": shown(continuation.snapshot),
        "adapter": continuation.adapter,
        "step_index": str(continuation.step_index),
        "pending_intent_ids": ", ".join(continuation.pending_intent_ids),
        "deadline_ms": str(continuation.deadline_ms),
    }


def shown(value: bytes) -> str:
    """Bytes for a person: text where it is printable, else hex."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return text if text.isprintable() else f"0x{value.hex()}"
