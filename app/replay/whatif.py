"""What if: put an operator's decision where the triggering envelope would be. Nothing is sent anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.replay.evidence import EvidenceFile, Role, load
from app.wire.records import AgentEnvelope, RecordError, StateSnapshot, ToolResult, parse, serialize

DECIDER = "what-if"


class NothingPends(ValueError):
    """No snapshot waits for the decision; the text says what does wait."""


@dataclass(frozen=True)
class Decision:
    """An approval or rejection of an intent, or the bytes of a ToolResult that names its intent."""

    intent: str = ""
    approved: bool = True
    result: bytes | None = None


def with_decision(files: Sequence[EvidenceFile], decision: Decision) -> list[EvidenceFile]:
    """The files without their triggering envelope and with the decision as one.

    Raises NothingPends when no snapshot waits for the intent, UnusableEvidence for files that cannot be read.
    """
    envelope = AgentEnvelope()
    if decision.result is not None:
        try:
            envelope.tool_result.CopyFrom(parse(ToolResult, decision.result))
        except RecordError as error:
            raise NothingPends(f"the result is {error}") from error
        intent = envelope.tool_result.intent_id
    else:
        intent = decision.intent
        envelope.approval.intent_id = intent
        envelope.approval.approved = decision.approved
        envelope.approval.approver = DECIDER
    others = [file for file in files if file.role is not Role.EVENT]
    snapshot = _waiting([held.record for held in load(others).snapshots], intent)
    envelope.entity_key = snapshot.entity_key
    envelope.event_time_ms = _moment(snapshot)
    if decision.result is None:
        envelope.approval.decided_at_ms = envelope.event_time_ms
    return [*others, EvidenceFile(Role.EVENT, f"{DECIDER}: {intent}", serialize(envelope))]


def _waiting(snapshots: Sequence[StateSnapshot], intent: str) -> StateSnapshot:
    pending: list[str] = []
    for snapshot in snapshots:
        waits = list(snapshot.continuation.pending_intent_ids)
        if intent in waits:
            return snapshot
        pending += waits
    waiting = f"waiting are {', '.join(pending[:10])}" if pending else "no snapshot is suspended"
    raise NothingPends(f"no snapshot waits for intent {intent!r}; {waiting}")


def _moment(snapshot: StateSnapshot) -> int:
    """When the decision comes in: at the export, but after the suspension and before the deadline."""
    continuation = snapshot.continuation
    moment = max(snapshot.snapshot_at_ms, continuation.suspended_at_ms + 1)
    return min(moment, continuation.deadline_ms - 1) if continuation.deadline_ms > 0 else moment
