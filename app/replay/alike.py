"""Hold a finished re-run against its record, the ids and times that a framework draws anew set aside."""

from __future__ import annotations

from collections.abc import Sequence

from app.replay import compare, drawn
from app.replay.ledger import DEFAULT_BYTES
from app.replay.plan import Plan
from app.replay.rerun_pb2 import RerunRequest, RerunResult
from app.replay.runner import Runner
from app.replay.timeline import Comparison, compare_run
from app.wire.records import MemoryBlob, serialize

_RUNS = 4  # made again at most: two readings of a clock that coincide in one may part in the next
_STATE = frozenset({compare.MEMORY, compare.CONTINUATION})


def held_against(plan: Plan, result: RerunResult, runner: Runner) -> Comparison:
    """Compare a re-run with its record.

    Where the state left behind differs, the same run is made anew: values of a framework's own state that come
    out differently there too, and stand one to one for the recorded ones, are no difference.
    """
    comparison = compare_run(plan, result)
    if not any(row.differs and row.surface in _STATE for row in comparison.rows):
        return comparison
    if not drawn.values_of(result.memory) and not result.continuation.adapter:
        return comparison
    again: list[RerunResult] = []
    told, granted, count = result, result, 0
    for _ in range(_RUNS):
        ran = runner.run(_with_tools_shown(plan.request, result)).result
        if ran is None:
            break
        again.append(ran)
        told, granted, count = _renamed(plan, result, again)
        if told == granted:
            break  # no two readings of a clock are left that another run may tell apart
    if told != result:
        comparison = compare_run(plan, told)
    if comparison.differs and granted != told:
        comparison.certain = compare_run(plan, granted).rows
    if count:
        comparison.notes.append(
            f"{count} ids and times in the state that the agent's framework keeps for itself are drawn anew in every"
            " run; they stand one to one for the recorded ones"
        )
    return comparison


def drawn_in(plan: Plan, result: RerunResult, runner: Runner) -> frozenset[bytes]:
    """The ids and times in the framework state that a run left which it, or a re-run before it, drew."""
    left = drawn.found(result.memory, result.continuation)
    fresh = left - drawn.found(plan.request.memory, plan.request.continuation)
    again = runner.run(plan.request).result if fresh else None
    steady = fresh if again is None else drawn.found(again.memory, again.continuation)
    return (fresh - steady) | (left & plan.state.drawn)


def _renamed(plan: Plan, result: RerunResult, again: Sequence[RerunResult]) -> tuple[RerunResult, RerunResult, int]:
    """The re-run with the recorded values in the places of those it drew, and how many these are.

    The second one has recorded times also where it is unclear whether they were drawn.
    """
    names = drawn.Names(plan.state.drawn, _given(plan, result, again[0]))
    told, granted = RerunResult(), RerunResult()
    told.CopyFrom(result)
    granted.CopyFrom(result)
    count = 0
    recorded = plan.originals.memory
    if recorded is not None:
        theirs, anew = drawn.values_of(recorded), [drawn.values_of(one.memory) for one in again]
        for key, value in drawn.values_of(result.memory).items():
            match = names.match(theirs[key], value, [one.get(key, b"") for one in anew]) if key in theirs else None
            if match is None:
                continue
            _put(granted.memory, key, theirs[key])
            if not match.unclear:
                _put(told.memory, key, theirs[key])
                count += match.count
    wait, ours = plan.originals.continuation, result.continuation
    if wait is not None and wait.adapter and wait.adapter == ours.adapter:
        match = names.match(wait.snapshot, ours.snapshot, [one.continuation.snapshot for one in again])
        if match is not None:
            granted.continuation.snapshot = wait.snapshot
            if not match.unclear:
                told.continuation.snapshot = wait.snapshot
                count += match.count
    return told, granted, count


def _put(memory: MemoryBlob, key: str, value: bytes) -> None:
    """Put a value in the place of another; times are not all of one length."""
    entry = next(entry for entry in memory.entries if entry.key == key)
    memory.total_value_bytes += len(value) - len(entry.value)
    entry.value = value


def _with_tools_shown(request: RerunRequest, result: RerunResult) -> RerunRequest:
    """The same request; where tools ran, their answers come with its result, in the ledger."""
    if not result.tools:
        return request
    asked = RerunRequest()
    asked.CopyFrom(request)
    asked.ledger_bytes = DEFAULT_BYTES
    return asked


def _given(plan: Plan, result: RerunResult, again: RerunResult) -> list[bytes]:
    """What the attempt was handed, as far as it is known that the recorded one was handed the same."""
    request = plan.request
    served = {answer.cache_key for answer in result.served}
    answers = [*request.cache.entries, *request.provider_answers.entries]
    return [
        *(serialize(envelope) for envelope in request.envelopes),
        *((serialize(request.memory),) if plan.state.fit.before else ()),
        serialize(request.continuation),
        *(answer.response for answer in answers if answer.cache_key in served),
        *(entry for entry in again.ledger.splitlines() if entry.startswith(b'{"kind": "tool"')),
    ]
