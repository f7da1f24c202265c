"""Which envelopes an adaptive flush took.

Members are consecutive start envelopes of the key in arrival order, and their latest time is the
clock; a member's own time need not be. Flushes before it took the envelopes before.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.replay.attempts import Attempt
from app.replay.evidence import Evidence
from app.replay.select import START, Target, Unanswerable, kind_of
from app.replay.verdict import Outcome, Reason
from app.wire.records import AgentEnvelope


def members_of(evidence: Evidence, target: Target, attempt: Attempt) -> list[AgentEnvelope]:
    """The envelopes of a flush in arrival order; raises Unanswerable when they cannot be told."""
    size = attempt.batch_size or 1
    arrived = _starts(evidence, target.entity_key)
    if len(evidence.triggers) > 1 and len(evidence.triggers) == size:
        return list(evidence.triggers)
    windows = [
        arrived[at : at + size]
        for at in range(len(arrived) - size + 1)
        if _fits(arrived[at : at + size], target.envelope, attempt.clock_ms)
    ]
    distinct = {b"".join(e.SerializeToString(deterministic=True) for e in w): w for w in windows}
    if len(distinct) > 1:
        taken = flush_of(arrived, target.all_attempts, attempt)
        distinct = {k: w for k, w in distinct.items() if w == taken} or distinct
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    raise Unanswerable(
        Outcome.IRREPRODUCIBLE,
        Reason(
            "batch_incomplete",
            f"the attempt took a batch of {size} envelopes and"
            f" {'their membership is ambiguous' if distinct else 'only one of them is known'}",
            "Hand in the events stream of this key (--events), or every envelope of the batch in"
            " arrival order (--event, repeated).",
            {"batch_size": size},
        ),
    )


def _starts(evidence: Evidence, key: bytes) -> list[AgentEnvelope]:
    return [e for e in evidence.events if e.entity_key == key and kind_of(e) == START]


def _fits(window: Sequence[AgentEnvelope], trigger: AgentEnvelope, clock_ms: int) -> bool:
    return trigger in window and max(e.event_time_ms for e in window) == clock_ms


def flush_of(envelopes: Sequence[AgentEnvelope], attempts: Sequence[Attempt], target: Attempt) -> list[AgentEnvelope]:
    """What a flush took when every earlier one of its life took its share; empty if it does not fit."""
    arrived = [e for e in envelopes if kind_of(e) == START]
    at = 0
    flushes = [a for a in attempts if a.life == target.life and a.committed and a.kind == START]
    for flush in sorted(flushes, key=lambda a: a.seq):
        size = flush.batch_size or 1
        if flush is target:
            taken = list(arrived[at : at + size])
            fits = len(taken) == size and max(e.event_time_ms for e in taken) == target.clock_ms
            return taken if fits else []
        at += size
    return []
