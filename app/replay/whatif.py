"""What if: put an operator's decision where the triggering envelope would be. Nothing is sent anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.replay.attempts import Attempt, Category
from app.replay.evidence import Evidence, EvidenceFile, Role, Snapshot, load
from app.replay.grouping import attempts_of
from app.replay.images import Counters, life_of
from app.replay.select import Unanswerable, select
from app.wire.records import AgentEnvelope, RecordError, StateSnapshot, ToolIntent, ToolResult, parse, serialize

DECIDER = "what-if"


class NothingPends(ValueError):
    """No snapshot waits for the decision; the text says what does wait."""


@dataclass(frozen=True)
class Decision:
    """An approval or rejection of an intent, or the bytes of a ToolResult that names its intent."""

    intent: str = ""
    approved: bool = True
    result: bytes | None = None


@dataclass(frozen=True)
class Waiting:
    """One intent that a suspended activation waits for. Times are epoch milliseconds; None where nothing tells.

    `moment_ms` is when a decision that is tried out would come in. `kind` is `tool` or `approval`; tool and arguments
    are empty where no snapshot holds the intent itself.
    """

    intent: str
    kind: str
    tool: str
    args_json: str
    created_at_ms: int | None
    expires_at_ms: int | None
    deadline_ms: int
    moment_ms: int
    seq: int
    snapshot: str


def with_decision(files: Sequence[EvidenceFile], decision: Decision) -> list[EvidenceFile]:
    """The files without their triggering envelope and with the decision as one.

    Raises NothingPends when no snapshot waits for the intent, UnusableEvidence for files that cannot be read.
    """
    others = [file for file in files if file.role is not Role.EVENT]
    envelope = _envelope(load(others).snapshots, decision)
    return [*others, EvidenceFile(Role.EVENT, f"{DECIDER}: {_intent_of(decision)}", serialize(envelope))]


def waiting(files: Sequence[EvidenceFile], key: bytes | None = None) -> tuple[Waiting, ...]:
    """What the newest snapshot waits for, and may still be answered; empty where it is not suspended.

    `key` narrows to one key. Raises UnusableEvidence for files that cannot be read.
    """
    evidence = load(files)
    own = [snapshot for snapshot in evidence.snapshots if key is None or snapshot.record.entity_key == key]
    if not own:
        return ()
    attempts = attempts_of(own[0].record.entity_key, evidence.traces.values())
    newest = _newest(own, attempts)
    if _moved_on(newest, attempts):
        return ()
    continuation = newest.record.continuation
    held = {intent.intent_id: intent for snapshot in own for intent in snapshot.record.pending}
    return tuple(
        _told(intent, held.get(intent), newest)
        for intent in continuation.pending_intent_ids
        if _open(intent, own, evidence)
    )


def _newest(snapshots: Sequence[Snapshot], attempts: Sequence[Attempt]) -> Snapshot:
    """The state that nothing captured comes after: of the latest life, then of the highest counter."""

    def place(snapshot: Snapshot) -> tuple[int, int, int]:
        life = life_of(snapshot, attempts) if attempts else 0
        return (-1 if life is None else life, snapshot.counter, snapshot.record.snapshot_at_ms)

    return max(snapshots, key=place)


def _moved_on(newest: Snapshot, attempts: Sequence[Attempt]) -> bool:
    """Whether the trace shows that the wait is over: a timer ended it, or an activation was committed after it."""
    life = life_of(newest, attempts) if attempts else None
    seq = newest.record.continuation.seq
    counters = Counters(attempts)
    return any(
        a.life == life
        and (
            (a.category is Category.TIMER and a.seq == seq)
            or (a.committed and counters.before(a, a.kind) >= newest.counter)
        )
        for a in attempts
    )


def _open(intent: str, snapshots: Sequence[Snapshot], evidence: Evidence) -> bool:
    """Whether the pipeline would still take an answer: nothing traced has taken one, and it is not too late."""
    envelope = _envelope(snapshots, Decision(intent))
    try:
        return select(replace(evidence, triggers=[envelope], events=[])).pending is not None
    except Unanswerable:
        return False


def _told(intent: str, held: ToolIntent | None, snapshot: Snapshot) -> Waiting:
    continuation = snapshot.record.continuation
    return Waiting(
        intent=intent,
        kind="approval" if held is not None and held.kind == ToolIntent.APPROVAL else "tool",
        tool="" if held is None else held.tool_name,
        args_json="" if held is None else held.args_json,
        created_at_ms=None if held is None else held.created_at_ms,
        expires_at_ms=None if held is None else held.expires_at_ms,
        deadline_ms=continuation.deadline_ms,
        moment_ms=_moment(snapshot.record),
        seq=continuation.seq,
        snapshot=snapshot.name,
    )


def _envelope(snapshots: Sequence[Snapshot], decision: Decision) -> AgentEnvelope:
    """The envelope that would carry the decision to the key that waits for it."""
    envelope = AgentEnvelope()
    intent = _intent_of(decision)
    if decision.result is not None:
        envelope.tool_result.CopyFrom(_result_of(decision.result))
    else:
        envelope.approval.intent_id = intent
        envelope.approval.approved = decision.approved
        envelope.approval.approver = DECIDER
    snapshot = _waiting([held.record for held in snapshots], intent)
    envelope.entity_key = snapshot.entity_key
    envelope.event_time_ms = _moment(snapshot)
    if decision.result is None:
        envelope.approval.decided_at_ms = envelope.event_time_ms
    return envelope


def _intent_of(decision: Decision) -> str:
    return decision.intent if decision.result is None else _result_of(decision.result).intent_id


def _result_of(data: bytes) -> ToolResult:
    try:
        return parse(ToolResult, data)
    except RecordError as error:
        raise NothingPends(f"the result is {error}") from error


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
