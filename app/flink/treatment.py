"""What a configuration says of one resource of a build, as rooms that act on it or show it read it."""

from __future__ import annotations

from typing import Any, Protocol


class Treatment(Protocol):
    """What becomes of calls to a resource while a recorded run is re-run: a policy, and an answer that stands in."""

    @property
    def policy(self) -> str: ...
    @property
    def answer(self) -> Any: ...
    @property
    def has_answer(self) -> bool: ...
