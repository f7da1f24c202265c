"""Which attempt an envelope triggered: the envelope's key, kind and time pick it, the seq narrows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from app.replay.attempts import Attempt, Category
from app.replay.bonds import stamps
from app.replay.evidence import Evidence, Snapshot
from app.replay.flushes import flush_told
from app.replay.grouping import attempts_of
from app.replay.lives import unsettle_backwards
from app.replay.mapping import type_name
from app.replay.verdict import Outcome, Reason, key_text
from app.wire.records import AgentEnvelope, Continuation, StateSnapshot

START: Final = "start"
RESUME: Final = "resume"


class Unanswerable(Exception):
    """No comparison is possible; carries the outcome and the reason for a person."""

    def __init__(self, outcome: Outcome, reason: Reason) -> None:
        super().__init__(reason.text)
        self.outcome = outcome
        self.reason = reason


@dataclass(frozen=True)
class Target:
    """The attempts that an envelope may have triggered, usually one.

    No candidates means that nothing has run yet: `pending` is then the continuation that the
    envelope would resume. `refused` tells that an answer at this clock was refused, which may be this one.
    `all_attempts` are those of the key, in every seq.
    """

    entity_key: bytes
    envelope: AgentEnvelope
    kind: str
    candidates: tuple[Attempt, ...]
    all_attempts: tuple[Attempt, ...] = field(repr=False)
    pending: Continuation | None = None
    refused: Unanswerable | None = None
    notes: tuple[str, ...] = ()

    @property
    def intent_id(self) -> str:
        return intent_of(self.envelope)

    def may_be(self, other: AgentEnvelope) -> bool:
        """Whether another envelope would select the same attempts."""
        return (
            other.entity_key == self.entity_key
            and other.event_time_ms == self.envelope.event_time_ms
            and kind_of(other) == self.kind
            and intent_of(other) == self.intent_id
        )


def intent_of(envelope: AgentEnvelope) -> str:
    """The intent that a resume envelope answers; empty for a start."""
    match envelope.WhichOneof("payload"):
        case "tool_result":
            return envelope.tool_result.intent_id
        case "approval":
            return envelope.approval.intent_id
    return ""


def kind_of(envelope: AgentEnvelope) -> str:
    """`start`, `resume`, or empty for an export request."""
    payload = envelope.WhichOneof("payload")
    if payload == "export_request":
        return ""
    return RESUME if payload in ("tool_result", "approval") else START


def select(evidence: Evidence, seq: int | None = None) -> Target:
    """Find the target; raises Unanswerable when the evidence does not belong together."""
    envelope = _trigger(evidence)
    key = envelope.entity_key
    _refuse_other_keys(evidence, key)
    attempts = attempts_of(key, evidence.traces.values())
    unsettle_backwards(attempts, [set(stamps(one)) for one in evidence.snapshots if one.record.entity_key == key])
    if not attempts:
        raise _no_traces(evidence, key)
    if seq is not None and not any(attempt.seq == seq for attempt in attempts):
        raise _mismatch(
            "seq_not_traced",
            f"no event of seq {seq} is in the traces of key {_name(key)}",
            "Leave out --seq, or hand in the traces of that seq.",
            attempts,
        )
    chosen = _Selection(evidence, envelope, attempts, seq)
    return chosen.resume() if kind_of(envelope) == RESUME else chosen.start()


def _trigger(evidence: Evidence) -> AgentEnvelope:
    if not evidence.triggers:
        raise Unanswerable(
            Outcome.UNUSABLE,
            Reason(
                "no_envelope",
                "the triggering envelope is missing",
                "Hand in the AgentEnvelope that triggered the activation.",
            ),
        )
    envelope = evidence.triggers[0]
    if not kind_of(envelope):
        raise Unanswerable(
            Outcome.UNUSABLE,
            Reason(
                "export_request",
                "the envelope is an export request, which never starts an activation",
                "Hand in the envelope that triggered the activation: an external event, a tool result or an approval.",
            ),
        )
    return envelope


def _refuse_other_keys(evidence: Evidence, key: bytes) -> None:
    keys = {snapshot.record.entity_key for snapshot in evidence.snapshots}
    if keys and key not in keys:
        others = ", ".join(sorted(_name(other) for other in keys))
        raise Unanswerable(
            Outcome.UNUSABLE,
            Reason(
                "other_key",
                f"the envelope is of key {_name(key)}, the snapshot of key {others}",
                "Hand in a snapshot and an envelope of one key.",
            ),
        )


def _no_traces(evidence: Evidence, key: bytes) -> Unanswerable:
    found = sorted({_name(record.event.entity_key) for record in evidence.traces.values()})
    what = f"they hold {', '.join(found[:5])}" if found else "they are empty"
    return Unanswerable(
        Outcome.UNUSABLE,
        Reason(
            "key_not_traced",
            f"the traces hold no event of key {_name(key)}: {what}",
            "Hand in the trace stream of this key.",
        ),
    )


class _Selection:
    def __init__(self, evidence: Evidence, envelope: AgentEnvelope, attempts: list[Attempt], seq: int | None) -> None:
        self.evidence = evidence
        self.envelope = envelope
        self.attempts = attempts
        self.seq = seq
        self.clock = envelope.event_time_ms

    def start(self) -> Target:
        # An envelope of this very time may all the same have waited for a later flush, and another made the clock.
        fitting = self._at_clock(START)
        fitting += [flush for flush in self._batches() if flush not in fitting]
        return self._target(START, fitting)

    def resume(self) -> Target:
        intent = intent_of(self.envelope)
        fitting = [a for a in self._at_clock(RESUME) if self._may_answer(a, intent)]
        refused = self._refused(intent)
        if not fitting:
            if refused is not None:
                raise refused
            pending = self._pending(intent)
            if pending is not None:
                return Target(
                    self.envelope.entity_key,
                    self.envelope,
                    RESUME,
                    (),
                    tuple(self.attempts),
                    pending=pending,
                )
        return replace(self._target(RESUME, fitting), refused=refused)

    def _at_clock(self, kind: str) -> list[Attempt]:
        return [
            attempt
            for attempt in self._in_seq()
            if attempt.clock_ms == self.clock
            and attempt.category in (Category.ACTIVATION, Category.FAILURE, Category.INCOMPLETE)
            and attempt.kind in (kind, "")
        ]

    def _in_seq(self) -> list[Attempt]:
        return [a for a in self.attempts if self.seq is None or a.seq == self.seq]

    def _batches(self) -> list[Attempt]:
        """Flushes that may have taken an envelope older than their clock; the nearest first."""
        flushes = [
            attempt
            for attempt in self._in_seq()
            if attempt.clock_ms >= self.clock
            and (flush := flush_told(self.evidence, attempt)) is not None
            and flush.size > 1
        ]
        return sorted(flushes, key=lambda a: a.clock_ms)

    def _may_answer(self, attempt: Attempt, intent: str) -> bool:
        """Whether the intent was open in that seq, as far as the evidence can tell."""
        emitters = [a for a in self.attempts if intent in a.intent_ids()]
        if emitters:
            return any(a.seq == attempt.seq for a in emitters)
        if any(intent in snapshot.record.continuation.pending_intent_ids for snapshot in self._own()):
            return True
        return not any(a.seq == attempt.seq and a.kind == START for a in self.attempts)

    def _own(self) -> list[Snapshot]:
        key = self.envelope.entity_key
        return [s for s in self.evidence.snapshots if s.record.entity_key == key]

    def _refused(self, intent: str) -> Unanswerable | None:
        """That the pipeline refused an answer at this clock, which then never ran."""
        for attempt in self._in_seq():
            if attempt.category is Category.ORPHAN and attempt.clock_ms == self.clock:
                why = attempt.records[0].event.attributes.get("error.type", "unknown")
                return Unanswerable(
                    Outcome.UNUSABLE,
                    Reason(
                        "never_ran",
                        f"the pipeline refused an answer to intent {intent} at this clock as an orphan ({why}), and"
                        " this one does not reproduce an attempt that ran",
                        "Replay the attempt that suspended, or the answer that was accepted.",
                        {"why": why},
                    ),
                )
        return None

    def _pending(self, intent: str) -> Continuation | None:
        """The captured continuation that waits for this answer and that nothing has resumed yet."""
        for snapshot in self._own():
            continuation = snapshot.record.continuation
            if intent not in continuation.pending_intent_ids:
                continue
            resumed = [
                a
                for a in self.attempts
                if a.committed
                and a.kind == RESUME
                and a.seq == continuation.seq
                and a.entry_step == continuation.step_index
            ]
            if not resumed and self.seq in (None, continuation.seq):
                self._refuse_late(snapshot.record, intent)
                return continuation
        return None

    def _refuse_late(self, snapshot: StateSnapshot, intent: str) -> None:
        """The pipeline refuses an answer after the deadline or after its intent expired."""
        deadline = snapshot.continuation.deadline_ms
        expiries = [pending.expires_at_ms for pending in snapshot.pending if pending.intent_id == intent]
        late = "deadline_passed" if self.clock >= deadline or deadline <= 0 else ""
        if not late and any(self.clock >= expiry or expiry <= 0 for expiry in expiries):
            late = "intent_expired"
        if late:
            raise Unanswerable(
                Outcome.UNUSABLE,
                Reason(
                    "would_be_refused",
                    f"the pipeline would refuse this answer to intent {intent} as an orphan ({late})",
                    "Use an event_time_ms before the deadline and before the intent expires.",
                    {"why": late},
                ),
            )

    def _target(self, kind: str, fitting: Sequence[Attempt]) -> Target:
        complete = [a for a in fitting if a.category is not Category.INCOMPLETE]
        if complete:
            return Target(
                self.envelope.entity_key,
                self.envelope,
                kind,
                tuple(complete),
                tuple(self.attempts),
            )
        if fitting:
            raise _gap(fitting[0])
        raise _mismatch(
            "no_attempt",
            f"no traced attempt of key {_name(self.envelope.entity_key)} is a {kind} at clock"
            f" {self.clock}" + ("" if self.seq is None else f" in seq {self.seq}"),
            "Hand in the envelope whose event_time_ms is the attempt's clock, or the traces that hold that attempt.",
            self.attempts,
        )


def _gap(attempt: Attempt) -> Unanswerable:
    names = sorted({type_name(record.event.event_type) for record in attempt.records})
    missing = [n for n in ("ACTIVATION_START", "ACTIVATION_END") if n not in names]
    return Unanswerable(
        Outcome.UNUSABLE,
        Reason(
            "incomplete_attempt",
            f"the trace of seq {attempt.seq} lacks its {' and '.join(missing)}; a committed"
            f" attempt has both. Found: {', '.join(names)}",
            "Dump the traces again, over a wider range of offsets.",
            {"found": names, "missing": missing},
        ),
    )


def _mismatch(code: str, text: str, remedy: str, attempts: Sequence[Attempt]) -> Unanswerable:
    found = [attempt.describe() for attempt in attempts]
    listed = "; ".join(found[:6]) + (f"; and {len(found) - 6} more" if len(found) > 6 else "")
    return Unanswerable(
        Outcome.UNUSABLE,
        Reason(code, f"{text}. Traced: {listed}", remedy, {"attempts": found[:100]}),
    )


def _name(key: bytes) -> str:
    text = key_text(key)
    return f"{text!r}" if text else f"0x{key.hex()}" if key else "(empty)"
