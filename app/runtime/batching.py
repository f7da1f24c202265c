"""Adaptive batching: how many events wait for one activation and when they are let through."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from app.runtime import trace

DEFAULT_MAX_BATCH_SIZE: Final = 10
DEFAULT_MAX_WAIT_MS: Final = 500
BUFFER_HEADROOM: Final = 4

TRIGGER_SIZE: Final = "size"
TRIGGER_TIMER: Final = "timer"
TRACE_BATCH_SIZE: Final = trace.BATCH_SIZE
TRACE_BATCH_TRIGGER: Final = trace.BATCH_TRIGGER


class BatchPolicy(Enum):
    """Whether every event is its own activation or several share one."""

    NONE = "none"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True)
class BatchSettings:
    """The resolved numbers of ADAPTIVE batching; `max_wait_ms` in milliseconds of the wall clock."""

    max_batch_size: int
    max_wait_ms: int
    max_buffered_events: int


def resolve_batch_settings(
    policy: BatchPolicy,
    max_batch_size: int | None = None,
    max_wait_ms: int | None = None,
    max_buffered_events: int | None = None,
) -> BatchSettings | None:
    """Fill in the defaults of ADAPTIVE; None under NONE.

    Raises ValueError for a number set under NONE, one that is not positive, or a buffer smaller
    than one batch.
    """
    given = {
        "max_batch_size": max_batch_size,
        "max_wait_ms": max_wait_ms,
        "max_buffered_events": max_buffered_events,
    }
    if policy is BatchPolicy.NONE:
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} is {value} but batch_policy is NONE: leave it out or choose ADAPTIVE")
        return None
    for name, value in given.items():
        if value is not None and value <= 0:
            raise ValueError(f"{name} must be above 0, not {value}")
    size = DEFAULT_MAX_BATCH_SIZE if max_batch_size is None else max_batch_size
    wait = DEFAULT_MAX_WAIT_MS if max_wait_ms is None else max_wait_ms
    cap = BUFFER_HEADROOM * size if max_buffered_events is None else max_buffered_events
    if cap < size:
        raise ValueError(f"max_buffered_events ({cap}) must hold at least one batch of {size}")
    return BatchSettings(size, wait, cap)


def should_flush_on_size(settings: BatchSettings, buffered: int, *, suspended: bool) -> bool:
    """Whether a buffer of this length is let through right after an append."""
    return not suspended and buffered >= settings.max_batch_size


def should_flush_on_timer(buffered: int, *, suspended: bool) -> bool:
    """Whether the flush timer finds something to let through."""
    return not suspended and buffered > 0


def buffer_is_full(settings: BatchSettings, buffered: int) -> bool:
    """Whether one more event has to be refused."""
    return buffered >= settings.max_buffered_events
