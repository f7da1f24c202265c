"""Slows down who tries many times: tokens at the door and in headers, links that are dead, links that are alive.

Counted in this process's memory, so that nothing that strangers do writes to the database: each console process counts
for itself, and a restart forgets. Behind a proxy all share its address; let the proxy limit as well.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import HTTPConnection

from app.web.problems import Problem, Refused

_SUBJECTS: Final = 10_000


class Limiter:
    """At most `count` tries of each subject in any `window_s` seconds."""

    def __init__(self, count: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._window = window_s
        self._clock = clock
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, subject: str) -> float:
        """How long the subject has to wait before its next try; 0 when it need not."""
        tries = self._tries.get(subject)
        if tries is None:
            return 0
        now = self._clock()
        while tries and tries[0] <= now - self._window:
            tries.popleft()
        return max(0.0, tries[0] + self._window - now) if len(tries) >= self._count else 0

    def note(self, subject: str) -> None:
        """Count a try; of too many subjects the one that was quiet longest is forgotten."""
        tries = self._tries.setdefault(subject, deque(maxlen=self._count))
        tries.append(self._clock())
        self._tries.move_to_end(subject)
        if len(self._tries) > _SUBJECTS:
            self._tries.popitem(last=False)

    def check(self, subject: str) -> None:
        """Raise `Refused` with 429 while the subject has to wait."""
        if wait := self.wait_s(subject):
            raise Refused(too_many(wait))


@dataclass(frozen=True)
class RateLimits:
    """The console's limits, per address and minute."""

    entering: Limiter = field(default_factory=lambda: Limiter(20, 60))  # wrong tokens
    login: Limiter = field(default_factory=lambda: Limiter(30, 60))  # log-ins begun
    exports: Limiter = field(default_factory=lambda: Limiter(30, 60))  # exports of keys, and bundles, of one person
    shares: Limiter = field(default_factory=lambda: Limiter(30, 60))  # links made by one person
    dead: Limiter = field(default_factory=lambda: Limiter(20, 60))  # links that show nothing
    shared: Limiter = field(default_factory=lambda: Limiter(240, 60))  # pages of links that do


def address_of(connection: HTTPConnection) -> str:
    """Whom to count: the address, of IPv6 the network that one household has."""
    host = connection.client.host if connection.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def too_many(wait_s: float) -> Problem:
    seconds = max(1, math.ceil(wait_s))
    return Problem(
        429,
        "Too many tries",
        "There were too many tries from this address.",
        "fewer in a minute",
        f"Wait {seconds} s.",
        headers={"Retry-After": str(seconds)},
    )
