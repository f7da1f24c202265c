"""How a re-run's answers are served: as hits where that makes no difference, else as they were obtained, or in turn.

Answers that the attempt obtained are served from the cache first. Code that looks at how it was served gets them from
the provider's side, over the cache as it was found. Where requests were made at one time, nothing records in which
order their answers came back, so orders are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, permutations, product
from typing import Final

from app.replay.answers import PROVIDER_SIDE
from app.replay.plan import Plan
from app.replay.rerun_pb2 import RerunRequest, RerunResult
from app.replay.runner import FINISHED, Finished, Runner

ORDERS: Final = 48
_PERMUTED: Final = 6


def run(runner: Runner, plan: Plan, ledger_bytes: int = 0) -> tuple[Plan, Finished]:
    """Run a plan; once more, with its answers as they were obtained, where the code looked at how they came."""
    finished = runner.run(_asked(plan.request, ledger_bytes))
    result = finished.result
    if result is None or not (result.tallied or result.cache_seen) or plan.answers.mode == PROVIDER_SIDE:
        return plan, finished
    if not plan.answers.own:
        return plan, finished
    plan = as_obtained(plan)
    return plan, runner.run(_asked(plan.request, ledger_bytes))


def as_obtained(plan: Plan) -> Plan:
    """The same plan, the attempt's own answers coming from the provider's side."""
    answers = plan.answers.as_obtained()
    request = RerunRequest()
    request.CopyFrom(plan.request)
    request.cache.CopyFrom(answers.cache)
    request.provider_answers.CopyFrom(answers.provider)
    return replace(plan, answers=answers, request=request)


def _asked(request: RerunRequest, ledger_bytes: int) -> RerunRequest:
    asked = RerunRequest()
    asked.CopyFrom(request)
    asked.ledger_bytes = ledger_bytes
    return asked


def other_retries(plan: Plan) -> Iterator[Plan]:
    """The same plan with the provider's failures before other calls of the same step and model, at most `ORDERS`."""
    groups = [
        sorted(set(permutations(group.failed))) for group in plan.request.retries if len(group.failed) <= _PERMUTED
    ]
    if len(groups) < len(plan.request.retries):
        return
    for chosen in islice(product(*groups), 1, ORDERS):
        request = RerunRequest()
        request.CopyFrom(plan.request)
        for group, failed in zip(request.retries, chosen, strict=True):
            group.failed[:] = failed
        yield replace(plan, request=request)


class Orders:
    """Runs of one plan in which answers come back in one order and another."""

    def __init__(self, runner: Runner, plan: Plan, ledger_bytes: int = 0) -> None:
        self.plan = as_obtained(plan)
        self._runner = runner
        self._request = _asked(self.plan.request, ledger_bytes)
        self._request.in_turn = True
        self._tried: list[tuple[Finished, tuple[int, ...]]] = []
        self._left: list[tuple[int, ...]] = [()]

    def runs(self) -> Iterator[tuple[Finished, RerunResult]]:
        """The runs that finished, each made when it is asked for, at most `ORDERS` of them."""
        for finished, _ in list(self._tried):
            if finished.result is not None:
                yield finished, finished.result
        while self._left and len(self._tried) < ORDERS:
            finished = self._try(self._left.pop())
            if finished.ending == FINISHED and finished.result is not None:
                yield finished, finished.result

    @property
    def complete(self) -> bool:
        """Whether every order has been tried."""
        return not self._left

    def plan_of(self, finished: Finished) -> Plan:
        """The plan that gave one of the runs."""
        request = RerunRequest()
        request.CopyFrom(self._request)
        request.ClearField("turns")
        request.turns.extend(self._tried[[id(one) for one, _ in self._tried].index(id(finished))][1])
        request.ledger_bytes = 0
        return replace(self.plan, request=request)

    def _try(self, turns: tuple[int, ...]) -> Finished:
        del self._request.turns[:]
        self._request.turns.extend(turns)
        finished = self._runner.run(self._request)
        self._tried.append((finished, turns))
        options = [] if finished.result is None else list(finished.result.options)
        for at in range(len(turns), len(options)):
            others = range(1, options[at])
            self._left += [(*turns, *(0 for _ in range(at - len(turns))), other) for other in others]
        return finished
