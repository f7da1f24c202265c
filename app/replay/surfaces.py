"""Say of each surface whether it was compared, what came of it, and why not where it was not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.replay import compare
from app.replay.attempts import ATTRIBUTE_INTENT_ID, Attempt, Category
from app.replay.plan import Plan
from app.replay.rerun_pb2 import RerunResult
from app.replay.timeline import committed
from app.replay.verdict import Row, Surface, SurfaceState

STATUS_OF: Final[dict[int, str]] = {
    RerunResult.COMPLETED: "completed",
    RerunResult.SUSPENDED: "suspended",
    RerunResult.FAILED: "failed",
    RerunResult.TIMED_OUT: "timed out",
}


@dataclass(frozen=True)
class Judged:
    """Surfaces in the order of the page.

    `unseen` names products that nothing was held against; `loose` those that were only looked up in a stream which
    does not say whose they are.
    """

    surfaces: tuple[Surface, ...]
    unseen: tuple[str, ...]
    loose: tuple[str, ...]


def judge_surfaces(plan: Plan, attempt: Attempt, result: RerunResult, rows: Sequence[Row]) -> Judged:
    """Judge every surface of a finished re-run."""
    return _Surfaces(plan, attempt, result, rows).all()


class _Surfaces:
    def __init__(self, plan: Plan, attempt: Attempt, result: RerunResult, rows: Sequence[Row]) -> None:
        self.plan = plan
        self.attempt = attempt
        self.result = result
        self.rows = rows
        self.differing = {difference.surface for difference in compare.differences(rows)}
        self.unseen: list[str] = []
        self.loose: list[str] = []

    def all(self) -> Judged:
        surfaces = [self.status(), self.trace(), self.intents(), self.outputs()]
        if self.attempt.category is Category.FAILURE or self.result.outcome == RerunResult.FAILED:
            surfaces.append(self.detail())
        surfaces.append(self.memory())
        if self.result.outcome == RerunResult.SUSPENDED:
            surfaces.append(self.continuation())
        return Judged(tuple(surfaces), tuple(self.unseen), tuple(self.loose))

    def compared(self, name: str, detail: str = "") -> Surface:
        state = SurfaceState.DIFFERENT if name in self.differing else SurfaceState.EQUAL
        return Surface(name, state, detail)

    def skipped(self, name: str, why: str) -> Surface:
        """Not compared, unless a difference shows all the same."""
        if name in self.differing:
            return self.compared(name)
        return Surface(name, SurfaceState.NOT_COMPARED, why)

    def status(self) -> Surface:
        recorded = self.attempt.status
        replayed = STATUS_OF.get(self.result.outcome, "unknown")
        if recorded == replayed:
            return Surface(compare.STATUS, SurfaceState.EQUAL, replayed)
        return Surface(compare.STATUS, SurfaceState.DIFFERENT, f"recorded {recorded}, replayed {replayed}")

    def trace(self) -> Surface:
        recorded = sum(r.surface == compare.TRACE and r.recorded is not None for r in self.rows)
        return self.compared(compare.TRACE, f"{recorded} recorded")

    def intents(self) -> Surface:
        emitted = [row for row in self.rows if row.surface == compare.TRACE and row.event.type == "INTENT_EMITTED"]
        if not emitted:
            return self.compared(compare.INTENTS, "none on either side")
        lacking = [r for r in emitted if r.recorded is not None and not r.recorded.payload]
        for row in lacking:
            if row.replayed is not None:
                intent = row.replayed.attributes.get(ATTRIBUTE_INTENT_ID, "")
                self.unseen.append(f"args:{intent}")
        if lacking:
            return self.skipped(
                compare.INTENTS,
                f"the arguments of {len(lacking)} of {len(emitted)} intents are in no snapshot and"
                " in no intents stream",
            )
        return self.compared(compare.INTENTS, f"{len(emitted)} with arguments")

    def outputs(self) -> Surface:
        if self.plan.originals.outputs is None:
            self.unseen.append("output")
            return self.skipped(compare.OUTPUTS, "no outputs stream was handed in")
        if not self.result.outputs:
            self.unseen.append("output")
            return self.skipped(compare.OUTPUTS, "the re-run has none, and recorded outputs carry no key or seq")
        stream = set(self.plan.originals.outputs)
        if stream <= set(self.result.outputs):
            return self.compared(compare.OUTPUTS, "the only output of the stream")
        self.loose.append("output")
        return self.skipped(
            compare.OUTPUTS, f"an equal one is in the stream, but its {len(stream)} outputs do not say whose they are"
        )

    def detail(self) -> Surface:
        if self.attempt.category is not Category.FAILURE:
            return self.skipped(compare.ERRORS, "the recorded attempt did not fail")
        if not self.plan.originals.details:
            self.unseen.append("detail")
            return self.skipped(compare.ERRORS, "no dead letter of this attempt was handed in")
        return self.compared(compare.ERRORS)

    def memory(self) -> Surface:
        originals = self.plan.originals
        if not self.attempt.committed:
            return self.skipped(compare.MEMORY, "a failed attempt commits nothing")
        if originals.memory is None:
            return self.skipped(compare.MEMORY, f"no snapshot with counter {self.plan.counter + 1}")
        if not committed(self.result):
            return self.skipped(compare.MEMORY, "the re-run committed nothing")
        if not self.plan.state.fit.exact:
            return self.skipped(
                compare.MEMORY,
                f"no snapshot with counter {self.plan.counter}; only keys that the re-run set were"
                " held against the one after",
            )
        return self.compared(compare.MEMORY, f"against {originals.memory_source}")

    def continuation(self) -> Surface:
        if self.plan.originals.continuation is None:
            self.unseen.append("continuation")
            return self.skipped(compare.CONTINUATION, "no snapshot was taken while this attempt was suspended")
        return self.compared(compare.CONTINUATION)
