"""Decide what a compared run comes to: the order of the questions is the promise.

First whether a difference could be anything but the code's doing, then whether what was not compared could still
hang on a value that may have been another one, and only then `reproduced`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.replay import compare, missing
from app.replay.alike import held_against
from app.replay.attempts import Attempt
from app.replay.doubts import Doubt, Settler, of_reads
from app.replay.plan import Plan
from app.replay.rerun_pb2 import RerunResult
from app.replay.serving import Orders
from app.replay.surfaces import Judged
from app.replay.suspicion import CACHE, SERVING, Suspect, Weight, unseen
from app.replay.verdict import Outcome, Reason, Row, RowState


@dataclass(frozen=True)
class Case:
    """A compared run and everything that speaks for and against it.

    `certain` are its rows if every time that may have been read off the clock was. `suspects` are inputs that may
    have been other ones, `supplied` tool answers that the operator gave, `orders` the orders in which its answers may
    have come back (None: one alone).
    """

    plan: Plan
    attempt: Attempt
    attempts: Sequence[Attempt]
    result: RerunResult
    judged: Judged
    rows: Sequence[Row]
    unclaimed: int
    certain: Sequence[Row]
    suspects: Sequence[Suspect]
    supplied: Sequence[Doubt]
    settler: Settler
    orders: Orders | None

    def decide(self) -> tuple[Outcome, str, Reason | None]:
        """The outcome, its headline, and the reason where it is no comparison."""
        first = compare.first_divergence(self.rows)
        reason = next(self._excuses() if first is not None else self._openings(), None)
        if reason is not None:
            return Outcome.IRREPRODUCIBLE, reason.text, reason
        if first is not None:
            return Outcome.DIVERGED, headline_of(first), None
        return Outcome.REPRODUCED, "The same run again: everything that could be compared is equal.", None

    def _excuses(self) -> Iterator[Reason]:
        """Why a difference need not be the code's doing."""
        confined = missing.confined_difference(self.result)
        if confined is not None:
            yield confined
        if not any(row.differs for row in self.certain):
            yield missing.unclear_times()
        if self._unsteady() or (self._only_memory() and self.settler.unsteady_memory()):
            yield missing.unsteady()
        certain = [suspect for suspect in self.suspects if suspect.weight is not Weight.KIND]
        if certain:
            yield missing.drift(self.plan, certain)
        if missing.only_retries(self.rows):
            yield missing.retries()
        for doubt in self.supplied:
            if not self.settler.settle(doubt).proven:
                yield missing.supplied(doubt)
        for suspect in self.suspects:
            if suspect.weight is Weight.KIND and self._explains(suspect):
                yield missing.drift(self.plan, [suspect])
        if self.orders is not None and not self.orders.complete:
            yield missing.concurrent()

    def _explains(self, suspect: Suspect) -> bool:
        (doubt,) = of_reads([suspect])
        return self.settler.explains(doubt, committed=self.attempt.committed)

    def _openings(self) -> Iterator[Reason]:
        """Why no difference need not mean the same run."""
        uncompared = (*self.judged.unseen, *self.judged.loose)
        confined = missing.confined_unproven(self.result, uncompared)
        if confined is not None:
            yield confined
        unasked = missing.unasked(self.plan, self.result, self.attempts) or missing.unattributed(self.unclaimed)
        if unasked is not None:
            yield unasked
        full = [suspect for suspect in self.suspects if suspect.weight is Weight.FULL]
        kinds = [suspect for suspect in self.suspects if suspect.weight is Weight.KIND]
        open_doubt = self.settler.unsettled([*of_reads(full), *self.supplied, *of_reads(kinds)])
        if open_doubt is not None:
            yield missing.unproven(self.plan, *open_doubt)
        if uncompared and self.settler.may_vary and self._unsteady():
            yield missing.unsteady()
        if uncompared and self._depends_on_order(uncompared):
            yield missing.concurrent()

    def _unsteady(self) -> bool:
        """Whether the same code on the same inputs comes out differently when it is run once more."""
        return self.settler.unsteady()

    def _only_memory(self) -> bool:
        """Whether nothing but the memory left behind differs for certain."""
        return all(row.surface == compare.MEMORY for row in self.certain if row.differs)

    def _depends_on_order(self, names: Sequence[str]) -> bool:
        """Whether another order of answers comes out as recorded too, with something else that was not compared."""
        if self.orders is None:
            return False
        own = unseen(self.result, names)
        for _, other in self.orders.runs():
            if (
                own.moved(unseen(other, names))
                and not held_against(self.orders.plan, other, self.settler.runner).differs
            ):
                return True
        return not self.orders.complete


def suspicious_serving(plan: Plan, result: RerunResult, *, as_recorded: bool) -> list[Suspect]:
    """What code that looks at how its answers are served may have seen otherwise."""
    found = []
    if (result.tallied or result.cache_seen) and not as_recorded:
        found.append(Suspect(SERVING, "", "the agent looked at how it was answered, and was answered otherwise here"))
    if result.cache_seen and not plan.state.fit.exact:
        found.append(Suspect(CACHE, "", "the agent looked into it, and it is not captured as it was found"))
    return found


def headline_of(row: Row) -> str:
    """One sentence about the first diverging row."""
    event = row.event
    name = f"event {row.ordinal}, {event.title}"
    if row.surface == compare.MEMORY:
        name = "memory after the run"
    elif row.surface != compare.TRACE:
        name = row.surface
    match row.state:
        case RowState.RECORDED_ONLY:
            return f"First divergence at {name}: recorded, and not in the re-run."
        case RowState.REPLAYED_ONLY:
            detail = event.payload.get("detail") or event.payload.get("output")
            more = f": {_short(detail)}" if detail else "."
            return f"First divergence at {name}: only in the re-run{more}"
    if row.recorded is not None and row.replayed is not None and row.recorded.title != row.replayed.title:
        return f"First divergence at event {row.ordinal}: recorded {row.recorded.title}, replayed {row.replayed.title}."
    field = next(field for field in row.fields if field.state == "changed")
    return (
        f"First divergence at {name}, {field.name.removeprefix('attributes.')}: recorded"
        f" {_short(field.recorded)}, replayed {_short(field.replayed)}."
    )


def _short(value: str | None) -> str:
    if value is None:
        return "nothing"
    return value if len(value) <= 80 else f"{value[:77]}…"
