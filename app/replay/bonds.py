"""What ties a snapshot to a life of its key: traced clocks in its state, and nothing that the trace contradicts.

A wipe restarts the counter, so a state of another life may have the right counter, and the trace of that life need
not be at hand. A state that nothing ties to a life may still be of it; then it vouches for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from app.replay.attempts import Attempt, Category
from app.replay.evidence import Snapshot
from app.replay.lives import life_count, settled
from app.wire.records import EventType, StateSnapshot, TraceEvent


class Bond(StrEnum):
    """Whether a snapshot is of a life."""

    SURE = "sure"
    OPEN = "open"  # nothing ties it to this life, nothing speaks against it
    NONE = "none"


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


@dataclass(frozen=True)
class Chain:
    """The committed attempts of one life by the counter that each ran from, and the clocks of its escalations."""

    commits: Mapping[int, Attempt]
    escalated: frozenset[int] = field(default=frozenset())

    @cached_property
    def clocks(self) -> frozenset[int]:
        return frozenset(attempt.clock_ms for attempt in self.commits.values())


def chain_of(attempts: Sequence[Attempt], life: int, counters: Mapping[int, int]) -> Chain:
    """The chain of a life; `counters` gives the counter of each committed attempt by its identity."""
    own = settled(attempts, life)
    return Chain(
        {counters[id(attempt)]: attempt for attempt in own if attempt.committed},
        frozenset(attempt.clock_ms for attempt in own if attempt.category is Category.ESCALATION),
    )


def bond(snapshot: Snapshot, chain: Chain) -> Bond:
    """How a snapshot relates to the life that a chain is of."""
    counter, found = snapshot.counter, set(stamps(snapshot))
    lower = {at: attempt for at, attempt in chain.commits.items() if at < counter}
    last = lower.get(counter - 1)
    if last is not None and _contradicted(snapshot.record, last):
        return Bond.NONE
    clocks = {attempt.clock_ms for attempt in lower.values()}
    if counter and len(lower) == counter and not found <= clocks | chain.escalated:
        return Bond.NONE  # every commit is traced, and somebody else wrote this
    return Bond.SURE if found & clocks else Bond.OPEN


def bonds_of(snapshot: Snapshot, chains: Sequence[Chain]) -> list[Bond]:
    """The bond to each life; where clocks tie a snapshot to several, they tie it to none for sure."""
    found = [bond(snapshot, chain) for chain in chains]
    if found.count(Bond.SURE) == 1:
        return [one if one is Bond.SURE else Bond.NONE for one in found]
    return [Bond.OPEN if one is Bond.SURE else one for one in found]


def lives(attempts: Sequence[Attempt]) -> range:
    return range(life_count(attempts))


def _contradicted(record: StateSnapshot, last: Attempt) -> bool:
    """Whether a state cannot be the one that its last commit left: that one replaced what waits, and its answers."""
    waits = record.HasField("continuation")
    suspended = last.status == "suspended"
    if waits:
        continuation = record.continuation
        if not suspended or (continuation.suspended_at_ms, continuation.seq) != (last.clock_ms, last.seq):
            return True
    pending = list(record.pending)
    if waits and record.continuation.escalations:
        pending = pending[: -record.continuation.escalations]
    if any(intent.created_at_ms != last.clock_ms for intent in pending):
        return True
    # What a suspended activation asked for is gone once a timer has ended the wait.
    ended = suspended and not waits
    if ended and pending:
        return True
    if not ended and not pending and last.intent_ids():
        return True
    newest = {entry.created_at_ms for entry in record.llm_cache.entries}
    return last.clock_ms not in newest and any(_obtained(one.event) for one in last.records)


def _obtained(event: TraceEvent) -> bool:
    """Whether the provider answered this call through the context, so that its answer went into the cache."""
    told = event.attributes
    return (
        event.event_type == EventType.LLM_CALL
        and told.get("gen_ai.operation.name") == "chat"
        and told.get("beam_agents.cache_hit") == "false"
        and "beam_agents.attempts" not in told
    )
