"""Which captured state a re-run may start from.

The commit counter names a state inside one life of a key: a start at seq s runs from counter s, the
k-th committed resume of s from s + k, a failed attempt from the counter that it leaves unchanged.
Clocks only bind a snapshot to a life; they never order states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.replay.attempts import Attempt, Category
from app.replay.bonds import Bond, bonds_of, chain_of, lives, stamps
from app.replay.evidence import Snapshot
from app.replay.lives import settled
from app.replay.select import RESUME, START, Unanswerable
from app.replay.verdict import Outcome, Reason
from app.wire.records import Continuation, LlmCacheBlob, MemoryBlob, serialize


class Fit(StrEnum):
    """How a state relates to the one that an attempt ran from."""

    EMPTY = "empty"  # a fresh key: exact, without any snapshot
    EXACT = "exact"  # the snapshot of the very counter
    MET = "met"  # a loose snapshot of the very counter, and the state that was re-run, are the same
    FORWARD = "forward"  # re-run from an earlier exact state, each step verified
    OPEN = "open"  # of the very counter, but nothing ties it to this life of the key
    AFTER = "after"  # taken later: may miss or show what was written since
    BEFORE = "before"  # taken earlier: may miss what was written up to the attempt
    NONE = "none"

    @property
    def exact(self) -> bool:
        """Whether it is known, by capture, to be the very state that the attempt ran from."""
        return self in (Fit.EMPTY, Fit.EXACT, Fit.MET)

    @property
    def before(self) -> bool:
        """Whether it stands for the state just before the attempt, captured or re-run."""
        return self.exact or self is Fit.FORWARD


@dataclass(frozen=True)
class State:
    """A key's state as a re-run is fed with it, and where it came from.

    `drawn` are ids and times of a framework's own that re-runs on the way to it drew: the recorded ones are others.
    """

    fit: Fit
    counter: int
    memory: MemoryBlob | None = None
    cache: LlmCacheBlob | None = None
    continuation: Continuation | None = None
    source: str = ""
    drawn: frozenset[bytes] = frozenset()


class Counters:
    """The commit counters that the attempts of one key ran from; attempts of other seqs say nothing of one."""

    def __init__(self, attempts: Iterable[Attempt], snapshots: Sequence[Snapshot] = ()) -> None:
        self._snapshots = snapshots
        self._of_seq: dict[int, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            self._of_seq[attempt.seq].append(attempt)

    def before(self, attempt: Attempt, kind: str, intent: str = "") -> int:
        """The counter that an attempt ran from.

        A captured wait says it of the resume that ended it, also where what came between was not traced.
        """
        if kind == START:
            return attempt.seq
        peers = self.peers(attempt)
        resumes = sorted(
            (a for a in peers if a.committed and a.kind == RESUME),
            key=lambda a: (a.entry_step or 0, a.clock_ms),
        )
        if not attempt.committed:
            return attempt.seq + 1 + _resumes_before(attempt, peers, resumes, intent)
        least = attempt.seq + 1 + resumes.index(attempt)
        told = set(_captured_waits(attempt, peers, self._snapshots))
        return told.pop() if len(told) == 1 and min(told) >= least else least

    def peers(self, attempt: Attempt) -> list[Attempt]:
        """The attempts that are surely of its seq in its life."""
        return settled(self._of_seq[attempt.seq], attempt.life)

    def by_identity(self) -> dict[int, int]:
        """The counter that each committed attempt ran from, by the attempt's identity."""
        sure = (a for peers in self._of_seq.values() for a in peers if a.committed and not a.unsettled)
        return {id(a): self.before(a, a.kind) for a in sure}


def _captured_waits(resume: Attempt, peers: Sequence[Attempt], snapshots: Sequence[Snapshot]) -> Iterator[int]:
    """Counters of the captured waits of a seq that end at a resume's entry step, be it after escalations."""
    steps = {a.records[0].event.step_index for a in peers if a.category is Category.ESCALATION}
    for snapshot in snapshots:
        continuation = snapshot.record.continuation
        if continuation.seq != resume.seq or not snapshot.record.HasField("continuation"):
            continue
        step = continuation.step_index
        while step in steps and step != resume.entry_step:
            step += 1
        if step == resume.entry_step:
            yield snapshot.counter


def _resumes_before(failed: Attempt, peers: Sequence[Attempt], resumes: Sequence[Attempt], intent: str) -> int:
    """How many resumes had been committed when a failed one ran: its intent tells which wait it was."""
    for index, resume in enumerate(resumes):
        if intent in resume.intent_ids():
            return index + 1
    for peer in peers:
        if intent not in peer.intent_ids():
            continue
        if peer.category is not Category.ESCALATION:
            return 0
        step = peer.records[0].event.step_index
        return sum((resume.entry_step or 0) <= step for resume in resumes)
    return sum(resume.clock_ms <= failed.clock_ms for resume in resumes)


def life_of(snapshot: Snapshot, attempts: Sequence[Attempt], snapshots: Sequence[Snapshot] = ()) -> int | None:
    """The life of the key that a snapshot belongs to; None when its content does not tell."""
    counters = Counters(attempts, snapshots or [snapshot]).by_identity()
    found = bonds_of(snapshot, [chain_of(attempts, life, counters) for life in lives(attempts)])
    if Bond.SURE in found:
        return found.index(Bond.SURE)
    possible = [life for life, one in enumerate(found) if one is Bond.OPEN]
    return possible[0] if len(possible) == 1 else None


class Images:
    """The captured states of the target's life, by counter."""

    def __init__(self, snapshots: Sequence[Snapshot], attempts: Sequence[Attempt], life: int) -> None:
        self.life = life
        self.bound: list[Snapshot] = []
        self.open: list[Snapshot] = []
        counters = Counters(attempts, snapshots).by_identity()
        chains = [chain_of(attempts, one, counters) for one in lives(attempts)]
        for snapshot in snapshots:
            match bonds_of(snapshot, chains)[life]:
                case Bond.SURE:
                    self.bound.append(snapshot)
                case Bond.OPEN:
                    self.open.append(snapshot)

    @property
    def usable(self) -> list[Snapshot]:
        """Those that are of this life, and those that may be."""
        return [*self.bound, *self.open]

    def at(self, counter: int) -> list[Snapshot]:
        return [snapshot for snapshot in self.bound if snapshot.counter == counter]

    def exact(self, counter: int, *, first_start: bool) -> State | None:
        """The state of a counter: captured, or empty where the key was fresh."""
        if first_start:
            return State(Fit.EMPTY, 0, MemoryBlob(), LlmCacheBlob(), source="a fresh key")
        captured = self.at(counter)
        if len({_content(snapshot) for snapshot in captured}) > 1:
            raise Unanswerable(
                Outcome.IRREPRODUCIBLE,
                Reason(
                    "conflicting_states",
                    f"{' and '.join(s.name for s in captured)} have one counter ({counter}) and different states; one"
                    " life of a key has one state at each counter",
                    "Leave out the snapshot that belongs to another life of the key, or that was altered.",
                ),
            )
        return state(captured[0], Fit.EXACT) if captured else None

    def met(self, reached: State, *, in_order: bool) -> State | None:
        """A state that was re-run, as a loose snapshot of its counter holds it too: each ties the other down.

        Two states without a stamp do so only where the clocks of the life are `in_order`.
        """
        for snapshot in self.open:
            tied = in_order or any(True for _ in stamps(snapshot))
            if tied and snapshot.counter == reached.counter and _agree(snapshot, reached):
                return state(snapshot, Fit.MET)
        return None

    def nearest(self, counter: int) -> State:
        """The best inexact state: one of the counter itself, the closest one after, else the closest before."""
        same = [s for s in self.open if s.counter == counter]
        if same:
            return state(same[0], Fit.OPEN)
        for snapshots in (self.bound, self.open):
            after = [s for s in snapshots if s.counter > counter]
            if after:
                return state(min(after, key=lambda s: s.counter), Fit.AFTER)
            before = [s for s in snapshots if s.counter < counter]
            if before:
                return state(max(before, key=lambda s: s.counter), Fit.BEFORE)
        return State(Fit.NONE, counter, source="no snapshot of this life of the key")


def _agree(snapshot: Snapshot, reached: State) -> bool:
    """Whether memory is the same but for its version, and what waits as well."""
    held, made = MemoryBlob(), MemoryBlob()
    held.CopyFrom(snapshot.record.memory)
    made.CopyFrom(reached.memory or MemoryBlob())
    made.state_schema_version = held.state_schema_version
    waits = snapshot.record.continuation if snapshot.record.HasField("continuation") else None
    return held == made and waits == reached.continuation


def _content(snapshot: Snapshot) -> bytes:
    """Memory and cache, by which two snapshots of one counter must agree."""
    return serialize(snapshot.record.memory) + b"|" + serialize(snapshot.record.llm_cache)


def state(snapshot: Snapshot, fit: Fit) -> State:
    record = snapshot.record
    return State(
        fit,
        snapshot.counter,
        record.memory if record.HasField("memory") else MemoryBlob(),
        record.llm_cache if record.HasField("llm_cache") else LlmCacheBlob(),
        record.continuation if record.HasField("continuation") else None,
        source=snapshot.name,
    )


def escalations_of(continuation: Continuation, attempts: Iterable[Attempt], life: int) -> Iterator[Continuation]:
    """A captured continuation, what it was before its escalations, and what each traced after it made of it.

    Deadlines of the earlier ones are not known; no agent sees them.
    """
    steps = {
        a.records[0].event.step_index: a
        for a in attempts
        if a.category is Category.ESCALATION and a.seq == continuation.seq and a.life == life
    }
    yield from reversed(list(_before_escalations(continuation)))
    yield continuation
    while continuation.step_index in steps:
        event = steps[continuation.step_index].records[0].event
        advanced = Continuation()
        advanced.CopyFrom(continuation)
        advanced.pending_intent_ids.append(event.attributes["beam_agents.intent_id"])
        advanced.deadline_ms = int(event.attributes["beam_agents.expires_at_ms"])
        advanced.step_index += 1
        advanced.escalations += 1
        yield advanced
        continuation = advanced


def _before_escalations(continuation: Continuation) -> Iterator[Continuation]:
    """The latest first."""
    while continuation.escalations and continuation.step_index and continuation.pending_intent_ids:
        earlier = Continuation()
        earlier.CopyFrom(continuation)
        earlier.pending_intent_ids.pop()
        earlier.step_index -= 1
        earlier.escalations -= 1
        yield earlier
        continuation = earlier
