"""When to try a model call again and when to stop asking an endpoint that keeps failing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from app.runtime.model.client import ProviderError, RateLimitError


class Uniform(Protocol):
    """The one draw that back-off needs; a seeded `random.Random` has it."""

    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True)
class RetryPolicy:
    """Attempts in all, and the base and ceiling of the exponential back-off in milliseconds."""

    max_attempts: int
    base_ms: int
    max_ms: int

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"RetryPolicy.max_attempts must be at least 1, not {self.max_attempts}")
        if self.base_ms < 0 or self.max_ms < 0:
            raise ValueError(f"RetryPolicy times must be 0 or more, not base_ms={self.base_ms}, max_ms={self.max_ms}")

    def delay_ms(self, attempt: int, error: ProviderError, rng: Uniform) -> int:
        """Milliseconds to wait after failed attempt `attempt` (from 1), never less than the provider asked for."""
        ceiling = min(self.base_ms * 2 ** (attempt - 1), self.max_ms)
        delay = int(rng.uniform(0, ceiling))
        if isinstance(error, RateLimitError) and error.retry_after_ms is not None:
            delay = max(delay, error.retry_after_ms)
        return delay


class CircuitState(Enum):
    """Closed lets calls through, open refuses them, half-open lets one try whether the endpoint is back."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitOpenError(Exception):
    """The endpoint failed too often just now, so the call was not made."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(f"the circuit of endpoint {endpoint!r} is open: its last calls all failed")
        self.endpoint = endpoint


class CircuitBreaker:
    """Opens after `threshold` failed calls in a row, tries again after `cooldown_ms`."""

    def __init__(self, *, endpoint: str, threshold: int, cooldown_ms: int) -> None:
        if threshold < 1:
            raise ValueError(f"CircuitBreaker threshold must be at least 1, not {threshold}")
        if cooldown_ms < 0:
            raise ValueError(f"CircuitBreaker cooldown_ms must be 0 or more, not {cooldown_ms}")
        self.endpoint = endpoint
        self.threshold = threshold
        self.cooldown_ms = cooldown_ms
        self.state = CircuitState.CLOSED
        self._failures = 0
        self._opened_at_ms = 0

    def allow(self, now_ms: int) -> bool:
        """Whether a call may be made; an open circuit turns half-open once its cooldown is over."""
        if self.state is CircuitState.OPEN and now_ms - self._opened_at_ms >= self.cooldown_ms:
            self.state = CircuitState.HALF_OPEN
        return self.state is not CircuitState.OPEN

    def record_success(self) -> None:
        """A call came back: close the circuit."""
        self.state = CircuitState.CLOSED
        self._failures = 0

    def record_failure(self, now_ms: int) -> None:
        """A call failed for good, all its attempts counting as one."""
        self._failures += 1
        if self.state is CircuitState.HALF_OPEN or self._failures >= self.threshold:
            self.state = CircuitState.OPEN
            self._opened_at_ms = now_ms
