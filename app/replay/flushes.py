"""What is told of an adaptive flush: by the trace of one that was committed, by the dead letters of one that failed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from app.replay.attempts import ATTRIBUTE_REASON, Attempt, Category
from app.replay.evidence import Evidence

_SUFFIX: Final = re.compile(r"\bbatch_size=([1-9][0-9]{0,8}),trigger=(size|timer)$")


@dataclass(frozen=True)
class Flush:
    """How many envelopes an attempt took, and what made it take them."""

    size: int
    trigger: str


def flush_told(evidence: Evidence, attempt: Attempt) -> Flush | None:
    """What a trace says of a flush, or of one that failed its dead letters; None where it was none or nothing tells."""
    if attempt.category is not Category.FAILURE:
        return Flush(attempt.batch_size, attempt.batch_trigger) if attempt.batch_size else None
    told = {found.groups() for detail in details_of(evidence, attempt) if (found := _SUFFIX.search(detail))}
    if len(told) != 1:
        return None
    size, trigger = told.pop()
    return Flush(int(size), trigger)


def details_of(evidence: Evidence, attempt: Attempt) -> list[str]:
    """The dead letters that a failed attempt may have left."""
    reason = attempt.records[0].event.attributes.get(ATTRIBUTE_REASON, "")
    return [
        letter.detail
        for letter in evidence.errors
        if letter.entity_key == attempt.entity_key
        and letter.event_time_ms == attempt.clock_ms
        and letter.reason == reason
    ]
