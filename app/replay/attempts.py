"""What an attempt is: one group of the trace events of a key, and what its events say of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from app.replay.evidence import TraceRecord
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
    `life` numbers the lives of the key; an `unsettled` attempt may be of that one or of the next.
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
    unsettled: bool = False

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


FRAMES: Final = (EventType.ACTIVATION_START, EventType.ACTIVATION_END)


def is_frame(event: TraceEvent) -> bool:
    """Whether the pipeline wrote this START or END: those say which kind of activation they frame."""
    return event.event_type in FRAMES and event.attributes.get(ATTRIBUTE_KIND) in ("start", "resume")
