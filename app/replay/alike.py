"""Hold a finished re-run against its record, the ids and times that a framework draws anew set aside."""

from __future__ import annotations

from app.replay import compare, drawn
from app.replay.images import Fit
from app.replay.plan import Plan
from app.replay.rerun_pb2 import RerunResult
from app.replay.runner import Runner
from app.replay.timeline import Comparison, compare_run

_STATE = frozenset({compare.MEMORY, compare.CONTINUATION})


def held_against(plan: Plan, result: RerunResult, runner: Runner) -> Comparison:
    """Compare a re-run with its record.

    Where the state left behind differs, the same run is made once more: values of a framework's own state that come
    out differently there too, and stand one to one for the recorded ones, are no difference.
    """
    comparison = compare_run(plan, result)
    if not any(row.differs and row.surface in _STATE for row in comparison.rows):
        return comparison
    if not drawn.values_of(result.memory) and not result.continuation.adapter:
        return comparison
    again = runner.run(plan.request).result
    if again is None:
        return comparison
    renamed, count = _renamed(plan, result, again)
    if not count:
        return comparison
    comparison = compare_run(plan, renamed)
    comparison.notes.append(
        f"{count} ids and times in the state that the agent's framework keeps for itself are drawn anew in every run;"
        " they stand one to one for the recorded ones"
    )
    return comparison


def _renamed(plan: Plan, result: RerunResult, again: RerunResult) -> tuple[RerunResult, int]:
    """The re-run with the recorded values in the places of those it drew, and how many these are."""
    carried = drawn.values_of(plan.request.memory).values() if plan.state.fit is Fit.FORWARD else ()
    names = drawn.Names(drawn.found(carried))
    copy = RerunResult()
    copy.CopyFrom(result)
    count = 0
    recorded = plan.originals.memory
    if recorded is not None:
        theirs, anew = drawn.values_of(recorded), drawn.values_of(again.memory)
        for entry in copy.memory.entries:
            if drawn.is_framework(entry.key) and entry.key in theirs:
                taken = names.match(theirs[entry.key], entry.value, anew.get(entry.key))
                entry.value = theirs[entry.key] if taken else entry.value
                count += taken
    wait = plan.originals.continuation
    if wait is not None and wait.adapter and wait.adapter == copy.continuation.adapter:
        taken = names.match(wait.snapshot, copy.continuation.snapshot, again.continuation.snapshot)
        copy.continuation.snapshot = wait.snapshot if taken else copy.continuation.snapshot
        count += taken
    return copy, count
