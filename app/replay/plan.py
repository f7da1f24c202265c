"""Plan a re-run: which state, which continuation, which answers, which envelopes, and why.

The plan is data and is shown with the verdict. What cannot be had is an Unanswerable, naming the
missing input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.replay.answers import Answers, Consumer, gather
from app.replay.attempts import Attempt, Category
from app.replay.batches import members_of
from app.replay.evidence import Evidence, Snapshot
from app.replay.images import Fit, Images, State, counter_before, escalated
from app.replay.originals import Originals, originals_of
from app.replay.rerun_pb2 import AgentCode, RerunRequest, ToolAnswer
from app.replay.select import RESUME, START, Target, Unanswerable
from app.replay.suspicion import Clocks
from app.replay.verdict import Outcome, Reason
from app.wire.records import AgentEnvelope, Continuation


@dataclass(frozen=True)
class Plan:
    """One planned re-run of one attempt (None: a pending resume that has not run)."""

    attempt: Attempt | None
    kind: str
    seq: int
    clock_ms: int
    counter: int
    state: State
    images: Images
    answers: Answers
    originals: Originals
    request: RerunRequest
    clocks: Clocks
    notes: tuple[str, ...] = ()
    continuation_source: str = ""
    known_keys: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """What the re-run is fed with, for a person and for the page."""
        return {
            "counter": self.counter,
            "memory": {
                "fit": str(self.state.fit),
                "exact": self.state.fit.exact,
                "counter": self.state.counter,
                "source": self.state.source,
            },
            "continuation": self.continuation_source or None,
            "answers": {
                "mode": self.answers.mode,
                "available": len(self.answers.sources),
                "sources": sorted(set(self.answers.sources.values())),
                "withheld": len(self.answers.withheld),
            },
            "envelopes": len(self.request.envelopes),
            "row": document_row(self),
            "exact_would_need": exact_would_need(self),
        }


@dataclass
class Planner:
    """Plans attempts of one key from one set of evidence."""

    evidence: Evidence
    target: Target
    code: AgentCode
    allow_network: bool = False
    tool_answers: tuple[ToolAnswer, ...] = ()
    snapshots: list[Snapshot] = field(init=False)

    def __post_init__(self) -> None:
        key = self.target.entity_key
        self.snapshots = [s for s in self.evidence.snapshots if s.record.entity_key == key]

    def images(self, life: int) -> Images:
        return Images(self.snapshots, self.target.all_attempts, life)

    def counter(self, attempt: Attempt, kind: str, intent: str = "") -> int:
        return counter_before(attempt, kind, self.target.all_attempts, intent)

    def captured(self, attempt: Attempt, kind: str, counter: int) -> State | None:
        """The exact captured state that an attempt ran from."""
        first = kind == START and attempt.seq == 0
        return self.images(attempt.life).exact(counter, first_start=first)

    def plan(
        self,
        attempt: Attempt,
        kind: str,
        envelopes: Sequence[AgentEnvelope],
        state: State,
        intent: str = "",
    ) -> Plan:
        """Plan the re-run of a recorded attempt from a state; raises Unanswerable."""
        images = self.images(attempt.life)
        counter = self.counter(attempt, kind, intent)
        continuation, source = (
            self._continuation(attempt, images, counter, state, intent) if kind == RESUME else (None, "")
        )
        consumer = self._consumer(attempt, kind, counter)
        answers = gather(consumer, state, images.bound)
        request = self._request(attempt.seq, attempt.clock_ms, kind, envelopes, state, answers)
        request.batch_trigger = attempt.batch_trigger
        if continuation is not None:
            request.continuation.CopyFrom(continuation)
            request.entry_step = continuation.step_index
        return Plan(
            attempt,
            kind,
            attempt.seq,
            attempt.clock_ms,
            counter,
            state,
            images,
            answers,
            originals_of(self.evidence, attempt, images, counter),
            request,
            self._clocks(attempt, counter),
            tuple(answers.notes),
            source,
            self._known_keys(),
        )

    def plan_pending(self, continuation: Continuation) -> Plan:
        """Plan the run of an answer that nothing has consumed yet: a what-if."""
        holder = next(s for s in self.snapshots if s.record.continuation == continuation)
        from app.replay.images import life_of, state

        life = life_of(holder, self.target.all_attempts) or 0
        images = self.images(life)
        own = state(holder, Fit.EXACT)
        clock = self.target.envelope.event_time_ms
        consumer = Consumer(None, RESUME, clock, frozenset(), start_traced=True)
        answers = gather(consumer, own, [])
        envelopes = [self.target.envelope]
        request = self._request(continuation.seq, clock, RESUME, envelopes, own, answers)
        request.continuation.CopyFrom(continuation)
        request.entry_step = continuation.step_index
        clocks = Clocks(frozenset(), frozenset())
        return Plan(
            None,
            RESUME,
            continuation.seq,
            clock,
            holder.counter,
            own,
            images,
            answers,
            Originals(),
            request,
            clocks,
            continuation_source=holder.name,
        )

    def _request(
        self,
        seq: int,
        clock_ms: int,
        kind: str,
        envelopes: Sequence[AgentEnvelope],
        state: State,
        answers: Answers,
    ) -> RerunRequest:
        return RerunRequest(
            code=self.code,
            entity_key=self.target.entity_key,
            seq=seq,
            clock_ms=clock_ms,
            kind=RerunRequest.RESUME if kind == RESUME else RerunRequest.START,
            envelopes=envelopes,
            memory=state.memory,
            cache=answers.cache,
            provider_answers=answers.provider,
            allow_network=self.allow_network,
            tool_answers=self.tool_answers,
        )

    def _consumer(self, attempt: Attempt, kind: str, counter: int) -> Consumer:
        peers = [a for a in self.target.all_attempts if a.seq == attempt.seq and a.life == attempt.life and a.committed]
        earlier = {a.clock_ms for a in peers if a is not attempt and self.counter(a, a.kind) < counter}
        return Consumer(
            attempt,
            kind,
            attempt.clock_ms,
            frozenset(earlier),
            start_traced=any(a.kind == START for a in peers),
        )

    def _clocks(self, attempt: Attempt, counter: int) -> Clocks:
        """Clocks by counter: what a lower counter wrote was there, all else may not have been."""
        lower: set[int] = set()
        other = {attempt.clock_ms}
        for peer in self.target.all_attempts:
            if peer.life != attempt.life or not peer.committed or peer is attempt:
                continue
            before = self.counter(peer, peer.kind) < counter
            (lower if before else other).add(peer.clock_ms)
        return Clocks(frozenset(lower), frozenset(other), self._counters(attempt.life))

    def _counters(self, life: int) -> frozenset[int]:
        """Counters from which a traced activation of a life committed."""
        return frozenset(
            self.counter(peer, peer.kind) for peer in self.target.all_attempts if peer.life == life and peer.committed
        )

    def _known_keys(self) -> tuple[str, ...]:
        """Keys in hex that the evidence names; a request may have been recorded for another one."""
        traced = {record.event.entity_key.hex() for record in self.evidence.traces.values()}
        return tuple(sorted(traced))[:1000]

    def _continuation(
        self, attempt: Attempt, images: Images, counter: int, state: State, intent: str
    ) -> tuple[Continuation, str]:
        """The continuation that a resume ran from, advanced by traced escalations where needed."""
        offered = [(s.record.continuation, s.name) for s in images.at(counter)]
        if state.fit is Fit.FORWARD and state.continuation is not None:
            offered.append((state.continuation, state.source))
        for continuation, source in offered:
            if not continuation.pending_intent_ids and not continuation.suspended_at_ms:
                continue
            if continuation.seq != attempt.seq:
                continue
            advanced = escalated(continuation, self.target.all_attempts, attempt.life)
            for one in (continuation, advanced):
                if self._fits(one, attempt, intent):
                    return one, source
        raise Unanswerable(
            Outcome.IRREPRODUCIBLE,
            Reason(
                "continuation_missing",
                f"the continuation that this resume of seq {attempt.seq} ran from is in no"
                f" snapshot: it takes one with counter {counter}",
                "Export the key while it is suspended, before the answer is consumed; or hand in the"
                " events so that the activations before can be run again.",
                {"counter": counter, "captured": sorted(s.counter for s in images.bound)},
            ),
        )

    def _fits(self, continuation: Continuation, attempt: Attempt, intent: str) -> bool:
        if attempt.category is Category.FAILURE:
            return not intent or intent in continuation.pending_intent_ids
        return continuation.step_index == attempt.entry_step and (
            not intent or intent in continuation.pending_intent_ids
        )

    def envelopes_of(self, attempt: Attempt, kind: str) -> list[AgentEnvelope]:
        """The envelopes that the target attempt consumed; raises Unanswerable when some are missing."""
        envelope = self.target.envelope
        if (attempt.batch_size or 1) == 1 and attempt.clock_ms == envelope.event_time_ms:
            return [envelope]
        return members_of(self.evidence, self.target, attempt)


def document_row(plan: Plan) -> str:
    """Which row of the table of what replays exactly applies."""
    if plan.attempt is None:
        return "pending resume: the exact state that it will load; nothing recorded to compare with"
    if plan.state.fit is Fit.FORWARD:
        return "re-run from an earlier state, each step as recorded: exact as far as traces can show"
    if plan.state.fit.exact:
        return "exact: the state that the attempt ran from is known"
    if plan.attempt.category is Category.FAILURE:
        return "failed: it committed nothing; exact up to its first uncached model call"
    return "post-image: exact as long as it did not read memory that was overwritten since"


def exact_would_need(plan: Plan) -> str | None:
    """What evidence would make the state exact; None when it is."""
    if plan.state.fit.exact:
        return None
    return f"a snapshot with counter {plan.counter}: an export of the key just before this activation"
