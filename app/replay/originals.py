"""What was recorded beside the trace: arguments, outputs, error detail, the state after.

Ids repeat after a TTL wipe, so an original counts only when its time is the attempt's as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.replay.attempts import ATTRIBUTE_INTENT_ID, Attempt, Category
from app.replay.bonds import stamps
from app.replay.evidence import Evidence, Role
from app.replay.flushes import details_of
from app.replay.images import Images
from app.wire.records import Continuation, EventType, MemoryBlob, TraceEvent


@dataclass
class Originals:
    """Recorded payloads of one attempt; None or absent where nothing recorded them.

    `args` maps intent ids to arguments, `details` are the dead letters that fit, `outputs` all
    outputs of the stream (they carry no key), `memory` and `continuation` the state it committed.
    """

    args: dict[str, str] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)
    outputs: list[bytes] | None = None
    memory: MemoryBlob | None = None
    memory_source: str = ""
    continuation: Continuation | None = None

    def payload(self, event: TraceEvent) -> dict[str, str]:
        """What was recorded for one trace event apart from its attributes."""
        if event.event_type == EventType.INTENT_EMITTED:
            args = self.args.get(event.attributes.get(ATTRIBUTE_INTENT_ID, ""))
            return {} if args is None else {"args_json": args}
        if event.event_type == EventType.ERROR and self.details:
            return {"detail": self.details[0]}
        return {}


def originals_of(evidence: Evidence, attempt: Attempt, images: Images, counter: int, since: int) -> Originals:
    """Collect the originals of an attempt that ran from a counter; no wipe lies between the clock `since` and it."""
    found = Originals(args=_args(evidence, attempt))
    if evidence.has(Role.OUTPUTS):
        found.outputs = evidence.outputs
    if attempt.category is Category.FAILURE:
        found.details = details_of(evidence, attempt)
    if attempt.committed:
        _state_after(found, attempt, images, counter, since)
    return found


def _args(evidence: Evidence, attempt: Attempt) -> dict[str, str]:
    pending = [
        intent
        for snapshot in evidence.snapshots
        if snapshot.record.entity_key == attempt.entity_key
        for intent in snapshot.record.pending
    ]
    return {
        intent.intent_id: intent.args_json
        for intent in [*pending, *evidence.intents]
        if intent.entity_key == attempt.entity_key
        and intent.seq == attempt.seq
        and intent.created_at_ms == attempt.clock_ms
    }


def _state_after(found: Originals, attempt: Attempt, images: Images, counter: int, since: int) -> None:
    after = [one for one in images.at(counter + 1) if max(stamps(one)) >= since]
    for snapshot in after:
        record = snapshot.record
        if found.memory is None:
            found.memory = record.memory if record.HasField("memory") else MemoryBlob()
            found.memory_source = snapshot.name
        if record.HasField("continuation") and _is_own(record.continuation, attempt) and found.continuation is None:
            found.continuation = record.continuation


def _is_own(continuation: Continuation, attempt: Attempt) -> bool:
    return (
        continuation.suspended_at_ms == attempt.clock_ms
        and continuation.seq == attempt.seq
        and continuation.escalations == 0
    )


def unmatched(details: Sequence[str], replayed: str) -> bool:
    """Whether none of the recorded details is the replayed one."""
    return bool(details) and replayed not in details
