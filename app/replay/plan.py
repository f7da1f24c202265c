"""Plan a re-run: which state, which continuation, which answers, which envelopes, and why.

The plan is data and is shown with the verdict. What cannot be had is an Unanswerable, naming the
missing input.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from app.replay import batches
from app.replay.answers import Answers, Consumer, gather, retries_of
from app.replay.attempts import Attempt, Category
from app.replay.batches import Members
from app.replay.bonds import stamps
from app.replay.evidence import Evidence, Snapshot
from app.replay.images import Counters, Fit, Images, State, escalations_of
from app.replay.lives import settled
from app.replay.originals import Originals, originals_of
from app.replay.rerun_pb2 import AgentCode, RerunRequest, ToolAnswer
from app.replay.select import RESUME, START, Target, Unanswerable
from app.replay.suspicion import CONTINUATION, Clocks, Suspect
from app.replay.ties import Ties, ties_of
from app.replay.verdict import Outcome, Reason
from app.wire.records import AgentEnvelope, Continuation

_RERUN: Final = "it was re-run with this code, and no trace shows what the recorded code left"
_LOOSE: Final = "nothing that was traced ties its snapshot to this life of the key"


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
    ran: frozenset[tuple[int, int]] = frozenset()  # seq and clock of every traced attempt
    suspects: tuple[Suspect, ...] = ()

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
    """Plans attempts of one key from one set of evidence, and reads that no more than once for all of them."""

    evidence: Evidence
    target: Target
    code: AgentCode
    allow_network: bool = False
    tool_answers: tuple[ToolAnswer, ...] = ()
    snapshots: list[Snapshot] = field(init=False)

    def __post_init__(self) -> None:
        key = self.target.entity_key
        self.snapshots = [s for s in self.evidence.snapshots if s.record.entity_key == key]
        self._counters = Counters(self.target.all_attempts, self.snapshots)
        self._ran = Tally((one.seq, one.clock_ms) for one in self.target.all_attempts)
        self._lives: dict[int, _Life] = {}

    def images(self, life: int) -> Images:
        return self._life(life).images

    def counter(self, attempt: Attempt, kind: str, intent: str = "") -> int:
        return self._counters.before(attempt, kind, intent)

    def captured(self, attempt: Attempt, kind: str, counter: int) -> State | None:
        """The exact captured state that an attempt ran from."""
        first = kind == START and attempt.seq == 0
        state = self.images(attempt.life).exact(counter, first_start=first)
        return state if state is None or first else self.trusted(state, attempt)

    def trusted(self, state: State, attempt: Attempt) -> State:
        """A captured state as exact as it may count for an attempt: not, where a wipe may lie between the two."""
        since = [clock for one in self.snapshots if one.name == state.source for clock in stamps(one)]
        latest = max(since, default=min(a.clock_ms for a in self.target.all_attempts if a.life == attempt.life))
        if self._waited(state, attempt) or latest >= self._since(attempt):
            return state
        return replace(state, fit=Fit.OPEN)

    def _waited(self, state: State, attempt: Attempt) -> bool:
        """Whether the wait that a state holds had not run out, be it after escalations, when an attempt ran."""
        wait = state.continuation
        if wait is None or wait.seq != attempt.seq:
            return False
        waits = escalations_of(wait, self.target.all_attempts, attempt.life)
        return attempt.clock_ms < max(one.deadline_ms for one in waits)

    def _since(self, attempt: Attempt) -> int:
        """The earliest clock from which to an attempt no wipe can lie."""
        return self._life(attempt.life).ties.since(attempt.clock_ms)

    def _life(self, life: int) -> _Life:
        if life not in self._lives:
            attempts, key = self.target.all_attempts, self.target.entity_key
            events = [one for one in self.evidence.events if one.entity_key == key]
            committed = [one for one in settled(attempts, life) if one.committed]
            self._lives[life] = _Life(
                Images(self.snapshots, attempts, life),
                ties_of(attempts, life, self.snapshots, events),
                [(one, self.counter(one, one.kind)) for one in committed],
            )
        return self._lives[life]

    def plan(
        self,
        attempt: Attempt,
        kind: str,
        members: Members,
        state: State,
        intent: str = "",
        wait: Wait | None = None,
    ) -> Plan:
        """Plan the re-run of a recorded attempt from a state; raises Unanswerable. `wait` is what a resume ends."""
        images = self.images(attempt.life)
        counter = self.counter(attempt, kind, intent)
        if wait is None:
            wait = self.waits(attempt, kind, state, intent)[0]
        since = self._since(attempt)
        consumer = self._consumer(attempt, kind, counter)
        answers = gather(consumer, state, images.usable)
        request = self._request(attempt.seq, attempt.clock_ms, kind, members.envelopes, state, answers)
        request.retries.extend(retries_of(attempt))
        request.batch_trigger = members.trigger
        if wait.continuation is not None:
            request.continuation.CopyFrom(wait.continuation)
            request.entry_step = wait.continuation.step_index
        return Plan(
            attempt,
            kind,
            attempt.seq,
            attempt.clock_ms,
            counter,
            state,
            images,
            answers,
            originals_of(self.evidence, attempt, images, counter, since),
            request,
            self._clocks(attempt, counter, since),
            tuple(answers.notes),
            wait.source,
            self._known_keys,
            self._ran_beside(attempt),
            (*members.suspects, *wait.suspects),
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
        peers = [a for a in self._counters.peers(attempt) if a.committed]
        earlier = {a.clock_ms for a in peers if a is not attempt and self.counter(a, a.kind) < counter}
        return Consumer(
            attempt,
            kind,
            attempt.clock_ms,
            frozenset(earlier),
            start_traced=any(a.kind == START for a in peers),
        )

    def _clocks(self, attempt: Attempt, counter: int, since: int) -> Clocks:
        """Clocks by counter: what a lower counter wrote was there, all else may not have been."""
        lower: set[int] = set()
        other = {attempt.clock_ms}
        life = self._life(attempt.life)
        for peer, ran_from in life.committed:
            if peer is not attempt:
                before = ran_from < counter and peer.clock_ms >= since
                (lower if before else other).add(peer.clock_ms)
        return Clocks(frozenset(lower), frozenset(other), life.counters)

    def _ran_beside(self, attempt: Attempt) -> frozenset[tuple[int, int]]:
        """Seq and clock of every other attempt."""
        own = attempt.seq, attempt.clock_ms
        return frozenset(self._ran if self._ran[own] > 1 else self._ran.keys() - {own})

    @cached_property
    def _known_keys(self) -> tuple[str, ...]:
        """Keys in hex that the evidence names; a request may have been recorded for another one."""
        traced = {record.event.entity_key.hex() for record in self.evidence.traces.values()}
        return tuple(sorted(traced))[:1000]

    def waits(self, attempt: Attempt, kind: str, state: State, intent: str) -> list[Wait]:
        """The waits that a resume may have ended, advanced by traced escalations where needed; of a start, none.

        More than one only for a failed resume, of which nothing tells where it stood. Raises Unanswerable.
        """
        if kind != RESUME:
            return [Wait()]
        images, counter = self.images(attempt.life), self.counter(attempt, kind, intent)
        loose = (Suspect(CONTINUATION, "", _LOOSE),)
        bound = loose if state.fit is Fit.OPEN else ()
        offered = [Wait(s.record.continuation, s.name, bound) for s in images.at(counter)]
        if state.fit is Fit.MET and state.continuation is not None:
            offered.append(Wait(state.continuation, state.source))
        if state.fit is Fit.FORWARD and state.continuation is not None:
            offered.append(Wait(state.continuation, state.source, (Suspect(CONTINUATION, "", _RERUN),)))
        offered += [Wait(s.record.continuation, s.name, loose) for s in images.open if s.counter == counter]
        for wait in offered:
            fitting = list(self._fitting(wait, attempt, intent))
            if fitting:
                return fitting
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

    def _fitting(self, wait: Wait, attempt: Attempt, intent: str) -> Iterator[Wait]:
        """The wait as it was captured and after each traced escalation, where the attempt can have ended it."""
        captured = wait.continuation
        if captured is None or captured.seq != attempt.seq:
            return
        if not captured.pending_intent_ids and not captured.suspended_at_ms:
            return
        for one in escalations_of(captured, self.target.all_attempts, attempt.life):
            if attempt.category is not Category.FAILURE and one.step_index != attempt.entry_step:
                continue
            if not intent or intent in one.pending_intent_ids:
                yield replace(wait, continuation=one)

    def members_of(self, attempt: Attempt, kind: str) -> Members:
        """The envelopes that the target attempt consumed; raises Unanswerable when some are missing."""
        return batches.members_of(self.evidence, self.target, attempt, kind)


@dataclass(frozen=True)
class _Life:
    """What the evidence says of one life of the key; `committed` with the counter that each attempt ran from."""

    images: Images
    ties: Ties
    committed: Sequence[tuple[Attempt, int]]

    @cached_property
    def counters(self) -> frozenset[int]:
        return frozenset(counter for _, counter in self.committed)


@dataclass(frozen=True)
class Wait:
    """A continuation that a resume may have ended, and where it is from; None for a start."""

    continuation: Continuation | None = None
    source: str = ""
    suspects: tuple[Suspect, ...] = ()


def document_row(plan: Plan) -> str:
    """Which row of the table of what replays exactly applies."""
    if plan.attempt is None:
        return "pending resume: the exact state that it will load; nothing recorded to compare with"
    if plan.state.fit is Fit.FORWARD:
        return "re-run from an earlier state, each step as recorded: exact as far as traces can show"
    if plan.state.fit.exact:
        return "exact: the state that the attempt ran from is known"
    if plan.state.fit is Fit.OPEN:
        return "a state of this counter, of this life of the key or of another: exact if it is of this one"
    if plan.attempt.category is Category.FAILURE:
        return "failed: it committed nothing; exact up to its first uncached model call"
    return "post-image: exact as long as it did not read memory that was overwritten since"


def exact_would_need(plan: Plan) -> str | None:
    """What evidence would make the state exact; None when it is."""
    if plan.state.fit.exact:
        return None
    return f"a snapshot with counter {plan.counter}: an export of the key just before this activation"
