"""Whether a wipe may lie between a captured state and an attempt, so that the state is of the life before.

Where the first starts of a later life were not delivered, its attempts carry on the counter of the life before as if
nothing had been. How long a quiet key lives is not in the evidence, but a wipe takes a quiet time that is longer than
any that the key has survived. So nothing lies between two clocks when one captured state spans both, when a wait that
was captured had not yet run out, or when the key was quiet for as long elsewhere in the same life.

Two wipes, each hidden by lost traces and the one quiet time as long as the other, would vouch for one another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import groupby, pairwise

from app.replay.attempts import Attempt, Category
from app.replay.bonds import stamps
from app.replay.evidence import Snapshot
from app.replay.lives import settled
from app.wire.records import AgentEnvelope

Span = tuple[int, int]


@dataclass(frozen=True)
class Ties:
    """What of one life's evidence speaks against a hidden wipe: spans of clocks in ms, each from one to a later one.

    `held` are spans of captured states and of events, `survived` the quiet times after which the key was as it was,
    the longest two, `clocks` those of all that ran, in order.
    """

    held: tuple[Span, ...]
    survived: tuple[Span, ...]
    clocks: tuple[int, ...]

    def since(self, until: int) -> int:
        """The earliest clock from which to `until` no wipe lies."""
        at = until
        while True:
            at = min((begin for begin, end in self.held if begin < at <= end), default=at)
            place = bisect_left(self.clocks, at)
            if not place:
                return at - self._longest(at, at)
            before = self.clocks[place - 1]
            longest = self._longest(before, at)
            if at - before > longest:
                return at - longest
            at = before

    def _longest(self, begin: int, end: int) -> int:
        """The longest quiet time that the key survived outside a span; it would not vouch for itself."""
        return max((until - since for since, until in self.survived if until <= begin or end <= since), default=0)


def ties_of(
    attempts: Sequence[Attempt], life: int, snapshots: Sequence[Snapshot], events: Sequence[AgentEnvelope]
) -> Ties:
    """The ties of a life; `snapshots` and `events` are those of the key, the events as they arrived."""
    ran = sorted(
        (a for a in settled(attempts, life) if a.committed or a.category is Category.FAILURE),
        key=lambda a: (a.clock_ms, a.seq),
    )
    held = {(min(found), max(found)) for one in snapshots if (found := set(stamps(one)))}
    held.update(_accounted(events, Counter(a.clock_ms for a in ran)))
    suspended = {a.seq for a in ran if a.status == "suspended"}
    quiet = [(one.clock_ms, other.clock_ms) for one, other in pairwise(ran) if _follows(one, other, suspended)]
    longest = nlargest(2, quiet, key=lambda span: span[1] - span[0])  # a time between two clocks meets one at most
    return Ties(tuple(held), tuple(longest), tuple(a.clock_ms for a in ran))


def _follows(one: Attempt, other: Attempt, suspended: set[int]) -> bool:
    """Whether nothing ran between two attempts and nothing waited: a wait may be longer than a quiet key lives."""
    if one.committed:
        return one.status != "suspended" and other.seq == one.seq + 1
    return one.seq not in suspended and other.seq == one.seq


def _accounted(events: Sequence[AgentEnvelope], ran: Counter[int]) -> Iterator[Span]:
    """From where to where the events stream holds no start but those that ran; only a start begins a life."""
    starts = [one.event_time_ms for one in events if one.WhichOneof("payload") == "external_event"]
    lost = sorted(clock for clock, count in Counter(starts).items() if count > ran[clock])
    unseen = set(lost)
    known = [clock for clock in (one.event_time_ms for one in events) if clock in ran or clock in unseen]
    for untraced, stretch in groupby(known, key=unseen.__contains__):
        clocks = list(stretch)
        begin, end = min(clocks), max(clocks)
        if not untraced and bisect_left(lost, begin) == bisect_left(lost, end):
            yield begin, end
