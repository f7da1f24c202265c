"""What ends a run from inside: raised through agent code, and remembered, so that swallowing it gains nothing."""

from __future__ import annotations

from app.flink.inside.messages import Ending


class Stopped(BaseException):
    """The run is over; `ending` and `detail` say why."""

    def __init__(self, ending: Ending, detail: str) -> None:
        super().__init__(detail)
        self.ending = ending
        self.detail = detail


class RecordedFailure(Exception):
    """A try that failed when it was recorded fails again."""
