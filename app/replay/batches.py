"""Which envelopes an adaptive flush took.

Members are consecutive start envelopes of the key in arrival order, and their latest time is the
clock; a member's own time need not be. Flushes before it took the envelopes before. A stream may lack
an envelope, hold one twice or in another place, so what is read off it is not known for sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.replay.attempts import Attempt, Category
from app.replay.evidence import Evidence
from app.replay.flushes import flush_told
from app.replay.select import START, Target, Unanswerable, kind_of
from app.replay.suspicion import BATCH, ENVELOPE, Suspect, Weight
from app.replay.verdict import Outcome, Reason
from app.wire.records import AgentEnvelope, serialize

NOT_A_MEMBER: Final = "not_a_member"
_ALIKE: Final = "others have its kind and time, and not as many attempts of it are traced"
_READ_OFF: Final = "its members were read off the events stream, which need not hold every envelope once and in order"


@dataclass(frozen=True)
class Members:
    """The envelopes of an attempt in arrival order; `trigger` is why a batch was flushed, empty where there is none."""

    envelopes: Sequence[AgentEnvelope]
    trigger: str = ""
    suspects: tuple[Suspect, ...] = ()


def members_of(evidence: Evidence, target: Target, attempt: Attempt, kind: str) -> Members:
    """The envelopes that the target attempt took; raises Unanswerable when they cannot be told."""
    flush = flush_told(evidence, attempt) if kind == START else None
    trigger = "" if flush is None else flush.trigger
    size = 1 if flush is None else flush.size
    if size == 1 and attempt.clock_ms == target.envelope.event_time_ms:
        return Members([target.envelope], trigger, _rivals(evidence, target))
    if len(evidence.triggers) > 1 and len(evidence.triggers) == size:
        return Members(list(evidence.triggers), trigger)
    arrived = _starts(evidence.events, target.entity_key)
    taken = _from_the_beginning(evidence, arrived, target.all_attempts, attempt)
    if taken and target.envelope not in taken:
        raise _not_a_member(size)
    if taken:
        return Members(taken, trigger, (Suspect(BATCH, "", _READ_OFF, Weight.DIFFERENCE),))
    windows = _windows(arrived, target.envelope, attempt.clock_ms, size)
    if len(windows) == 1:
        return Members(windows[0], trigger, (Suspect(BATCH, "", _READ_OFF),))
    raise Unanswerable(
        Outcome.IRREPRODUCIBLE,
        Reason(
            "batch_incomplete",
            f"the attempt took a batch of {size} envelopes and"
            f" {'their membership is ambiguous' if windows else 'only one of them is known'}",
            "Hand in the events stream of this key (--events), or every envelope of the batch in"
            " arrival order (--event, repeated).",
            {"batch_size": size},
        ),
    )


def _not_a_member(size: int) -> Unanswerable:
    return Unanswerable(
        Outcome.UNUSABLE,
        Reason(
            NOT_A_MEMBER,
            f"the attempt took a batch of {size} envelopes, and by the events stream the one handed in is none of them",
            "Hand in an envelope of the batch, or every one of them in arrival order (--event, repeated).",
            {"batch_size": size},
        ),
    )


def _rivals(evidence: Evidence, target: Target) -> tuple[Suspect, ...]:
    """A doubt where more envelopes have this kind and time than attempts are traced: it may be another's attempt."""
    alike = {serialize(target.envelope), *(serialize(one) for one in evidence.events if target.may_be(one))}
    return (Suspect(ENVELOPE, "", _ALIKE, Weight.DIFFERENCE),) * (len(alike) > len(target.candidates))


def _starts(envelopes: Iterable[AgentEnvelope], key: bytes) -> list[AgentEnvelope]:
    return [e for e in envelopes if e.entity_key == key and kind_of(e) == START]


def _windows(
    arrived: Sequence[AgentEnvelope], trigger: AgentEnvelope, clock_ms: int, size: int
) -> list[list[AgentEnvelope]]:
    """Runs of envelopes that hold the trigger and whose latest time is the clock, each once."""
    windows = [list(arrived[at : at + size]) for at in range(len(arrived) - size + 1)]
    fitting = [w for w in windows if trigger in w and max(e.event_time_ms for e in w) == clock_ms]
    return list({b"".join(map(serialize, window)): window for window in fitting}.values())


def _from_the_beginning(
    evidence: Evidence, arrived: Sequence[AgentEnvelope], attempts: Sequence[Attempt], target: Attempt
) -> list[AgentEnvelope]:
    """What a flush took when each before it, took its share; empty where that fits not."""
    at, expected = 0, 0
    for attempt, size in _shares(evidence, attempts, target.life):
        taken = list(arrived[at : at + size])
        if len(taken) < size or max(e.event_time_ms for e in taken) != attempt.clock_ms:
            return []
        if attempt is target:
            whole = arrived[: at + size]
            return taken if len({serialize(e) for e in whole}) == len(whole) else []
        if attempt.committed and attempt.seq < expected:
            return []
        expected = attempt.seq
        at += size
    return []


def _shares(evidence: Evidence, attempts: Sequence[Attempt], life: int) -> Iterator[tuple[Attempt, int]]:
    """The attempts of a life that took start envelopes, in order, and how many each took."""
    starts = [
        a for a in attempts if a.life == life and ((a.committed and a.kind == START) or a.category is Category.FAILURE)
    ]
    for attempt in sorted(starts, key=lambda a: (a.seq, a.committed)):
        flush = flush_told(evidence, attempt)
        if flush is not None or attempt.committed:
            yield attempt, 1 if flush is None else flush.size


def flush_of(evidence: Evidence, attempts: Sequence[Attempt], target: Attempt) -> list[AgentEnvelope]:
    """What a committed flush took, as far as the events stream tells; empty if it does not fit."""
    return _from_the_beginning(evidence, _starts(evidence.events, target.entity_key), attempts, target)
