"""What can go wrong between us and the broker, told so that an operator can mend it: which broker, which setting."""

from __future__ import annotations


class BrokerError(Exception):
    """The broker could not do, or did not do in time, what was asked.

    `retriable` says that the same call may succeed later without anybody changing a setting, `moving` that it may
    in an instant: a partition is changing its leader.
    """

    def __init__(
        self, pipeline: str, problem: str, remedy: str = "", *, retriable: bool = False, moving: bool = False
    ) -> None:
        super().__init__(f"pipeline {pipeline!r}: {problem}" + (f"; {remedy}" if remedy else ""))
        self.pipeline = pipeline
        self.problem = problem
        self.remedy = remedy
        self.retriable = retriable
        self.moving = moving


class Cancelled(Exception):
    """Somebody set the event that ends a wait."""
