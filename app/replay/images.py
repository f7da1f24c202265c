"""Which captured state a re-run may start from.

The commit counter names a state inside one life of a key: a start at seq s runs from counter s, the
k-th committed resume of s from s + k, a failed attempt from the counter that it leaves unchanged.
Clocks only bind a snapshot to a life; they never order states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.replay.attempts import Attempt, Category, life_count
from app.replay.evidence import Snapshot
from app.replay.select import RESUME, START, Unanswerable
from app.replay.verdict import Outcome, Reason
from app.wire.records import Continuation, LlmCacheBlob, MemoryBlob, serialize


class Fit(StrEnum):
    """How a state relates to the one that an attempt ran from."""

    EMPTY = "empty"  # a fresh key: exact, without any snapshot
    EXACT = "exact"  # the snapshot of the very counter
    FORWARD = "forward"  # re-run from an earlier exact state, each step verified
    AFTER = "after"  # taken later: may miss or show what was written since
    BEFORE = "before"  # taken earlier: may miss what was written up to the attempt
    NONE = "none"

    @property
    def exact(self) -> bool:
        """Whether it is known, by capture alone, to be the very state that the attempt ran from."""
        return self in (Fit.EMPTY, Fit.EXACT)

    @property
    def before(self) -> bool:
        """Whether it stands for the state just before the attempt, captured or re-run."""
        return self.exact or self is Fit.FORWARD


@dataclass(frozen=True)
class State:
    """A key's state as a re-run is fed with it, and where it came from."""

    fit: Fit
    counter: int
    memory: MemoryBlob | None = None
    cache: LlmCacheBlob | None = None
    continuation: Continuation | None = None
    source: str = ""


def counter_before(attempt: Attempt, kind: str, attempts: Iterable[Attempt], intent: str = "") -> int:
    """The commit counter that an attempt ran from."""
    if kind == START:
        return attempt.seq
    peers = [a for a in attempts if a.seq == attempt.seq and a.life == attempt.life]
    resumes = sorted(
        (a for a in peers if a.committed and a.kind == RESUME),
        key=lambda a: (a.entry_step or 0, a.clock_ms),
    )
    if attempt.committed:
        return attempt.seq + 1 + resumes.index(attempt)
    return attempt.seq + 1 + _resumes_before(attempt, peers, resumes, intent)


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


def stamps(snapshot: Snapshot) -> Iterator[int]:
    """Every activation clock that a snapshot's state carries."""
    record = snapshot.record
    for entry in record.memory.entries:
        yield entry.last_access_ms
    for cached in record.llm_cache.entries:
        yield cached.created_at_ms
        yield cached.last_access_ms
    for intent in record.pending:
        yield intent.created_at_ms
    if record.HasField("continuation"):
        yield record.continuation.suspended_at_ms


def life_of(snapshot: Snapshot, attempts: Sequence[Attempt]) -> int | None:
    """The life of the key that a snapshot belongs to; None when its content does not tell."""
    found = set(stamps(snapshot))
    lives = life_count(attempts)
    if lives == 1:
        return None if _older_than_known(found, attempts) else 0
    if not found:
        return None
    clocks = [{a.clock_ms for a in attempts if a.life == life} for life in range(lives)]
    votes = [len(found & known) for known in clocks]
    if max(votes) == 0:
        latest = max(found)
        begins = [min(known) for known in clocks if known]
        return max(0, sum(begin <= latest for begin in begins) - 1)
    return max(life for life, vote in enumerate(votes) if vote)


def _older_than_known(found: set[int], attempts: Sequence[Attempt]) -> bool:
    """Whether all stamps lie before the traced first start of the only known life."""
    begins = [a.clock_ms for a in attempts if a.committed and a.kind == START and a.seq == 0]
    if not found or not begins:
        return False
    return max(found) < begins[0] and not found & {a.clock_ms for a in attempts}


class Images:
    """The captured states of the target's life, by counter."""

    def __init__(self, snapshots: Iterable[Snapshot], attempts: Sequence[Attempt], life: int) -> None:
        self.life = life
        self.bound: list[Snapshot] = []
        self.unbound: list[Snapshot] = []
        for snapshot in snapshots:
            (self.bound if life_of(snapshot, attempts) == life else self.unbound).append(snapshot)

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

    def nearest(self, counter: int) -> State:
        """The best inexact state: the closest one after, else the closest before."""
        after = [s for s in self.bound if s.counter > counter]
        if after:
            return state(min(after, key=lambda s: s.counter), Fit.AFTER)
        before = [s for s in self.bound if s.counter < counter]
        if before:
            return state(max(before, key=lambda s: s.counter), Fit.BEFORE)
        return State(Fit.NONE, counter, source="no snapshot of this life of the key")


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


def escalated(continuation: Continuation, attempts: Iterable[Attempt], life: int) -> Continuation:
    """A captured continuation, advanced by the escalations that were traced after it."""
    current = Continuation()
    current.CopyFrom(continuation)
    steps = {
        a.records[0].event.step_index: a
        for a in attempts
        if a.category is Category.ESCALATION and a.seq == continuation.seq and a.life == life
    }
    while current.step_index in steps:
        event = steps[current.step_index].records[0].event
        current.pending_intent_ids.append(event.attributes["beam_agents.intent_id"])
        current.deadline_ms = int(event.attributes["beam_agents.expires_at_ms"])
        current.step_index += 1
        current.escalations += 1
    return current
