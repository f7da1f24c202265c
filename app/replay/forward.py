"""Reach a state by running forward: from an earlier exact one, through every envelope between.

The result is exact only while each step comes out as it was recorded; a step that does not (the
agent was upgraded in between, an envelope is gone) ends the attempt, and nothing of it is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from app.replay import serving
from app.replay.alike import drawn_in, held_against
from app.replay.attempts import Attempt
from app.replay.batches import Members, flush_of
from app.replay.evidence import Evidence
from app.replay.images import Fit, State
from app.replay.lives import settled
from app.replay.plan import Plan, Planner
from app.replay.rerun_pb2 import RerunResult
from app.replay.runner import FINISHED, Runner
from app.replay.select import Target, Unanswerable, intent_of, kind_of
from app.replay.timeline import committed
from app.wire.records import AgentEnvelope, LlmCacheBlob, serialize

T = TypeVar("T")


class Forward:
    """Runs a key's life forward inside one set of evidence."""

    def __init__(self, evidence: Evidence, target: Target, planner: Planner, runner: Runner) -> None:
        self.evidence = evidence
        self.target = target
        self.planner = planner
        self.runner = runner

    def reach(self, life: int, counter: int) -> State | None:
        """The state at a counter, or None when it cannot be reached exactly."""
        route = self.route(life, counter)
        if route is None:
            return None
        state, steps = route
        for at, attempt in enumerate(steps, state.counter + 1):
            reached = self._step(attempt, state, at)
            if reached is None:
                return None
            state = reached
        return state

    def route(self, life: int, counter: int) -> tuple[State, tuple[Attempt, ...]] | None:
        """An exact state to begin from and the attempts to run through, their envelopes at hand; runs nothing."""
        steps = {self.planner.counter(a, a.kind): a for a in settled(self.target.all_attempts, life) if a.committed}
        base = self._base(life, counter, steps)
        if base is None:
            return None
        between = tuple(steps[at] for at in range(base.counter, counter))
        if any(next(self._envelopes(attempt), None) is None for attempt in between):
            return None
        return base, between

    def _base(self, life: int, counter: int, steps: dict[int, Attempt]) -> State | None:
        """The nearest earlier exact state from which every step is traced."""
        images = self.planner.images(life)
        for at in range(counter - 1, -1, -1):
            if at not in steps:
                return None
            state = images.exact(at, first_start=at == 0)
            if state is not None:
                return state
        return None

    def _step(self, attempt: Attempt, state: State, counter: int) -> State | None:
        for envelopes in self._envelopes(attempt):
            ran = self._run(attempt, state, envelopes)
            if ran is not None:
                plan, result = ran
                return State(
                    Fit.FORWARD,
                    counter,
                    result.memory,
                    _consumed(result, state),
                    result.continuation if result.HasField("continuation") else None,
                    source=f"re-run from {_origin(state)}",
                    drawn=drawn_in(plan, result, self.runner),
                )
        return None

    def _run(self, attempt: Attempt, state: State, envelopes: list[AgentEnvelope]) -> tuple[Plan, RerunResult] | None:
        """One step and its result when it came out exactly as recorded, else None."""
        try:
            members = Members(envelopes, attempt.batch_trigger)
            plan = self.planner.plan(attempt, attempt.kind, members, state, intent_of(envelopes[0]))
        except Unanswerable:
            return None
        plan, finished = serving.run(self.runner, plan)
        result = finished.result
        if finished.ending != FINISHED or result is None or not committed(result):
            return None
        if result.longterm_read or result.refusals or held_against(plan, result, self.runner).differs:
            return None
        return plan, result

    def _envelopes(self, attempt: Attempt) -> Iterator[list[AgentEnvelope]]:
        """What the attempt may have consumed: envelopes of its kind and clock, or its batch."""
        if (attempt.batch_size or 1) > 1:
            flush = flush_of(self.evidence, self.target.all_attempts, attempt)
            if flush:
                yield flush
            return
        rivals = [a for a in self._attempts_at[attempt.clock_ms] if a.kind in (attempt.kind, "")]
        if len(rivals) > 1:
            return
        alike = (envelope for envelope in self._envelopes_at[attempt.clock_ms] if kind_of(envelope) == attempt.kind)
        seen = {serialize(envelope): envelope for envelope in alike}
        if len(seen) == 1:
            yield list(seen.values())

    @cached_property
    def _attempts_at(self) -> Mapping[int, Sequence[Attempt]]:
        """The attempts of each clock."""
        return _grouped((attempt.clock_ms, attempt) for attempt in self.target.all_attempts)

    @cached_property
    def _envelopes_at(self) -> Mapping[int, Sequence[AgentEnvelope]]:
        """The key's envelopes of each event time."""
        key = self.target.entity_key
        return _grouped((one.event_time_ms, one) for one in self.evidence.events if one.entity_key == key)


def _grouped(pairs: Iterable[tuple[int, T]]) -> Mapping[int, Sequence[T]]:
    groups: dict[int, list[T]] = defaultdict(list)
    for at, one in pairs:
        groups[at].append(one)
    return groups


def _consumed(result: RerunResult, before: State) -> LlmCacheBlob:
    """The cache that a step leaves: what was there before it, and of the captured answers those it asked for."""
    held = {entry.cache_key for entry in before.cache.entries} if before.cache is not None else set()
    kept = held | {answer.cache_key for answer in result.served}
    blob = LlmCacheBlob(state_schema_version=result.cache.state_schema_version)
    blob.entries.extend(entry for entry in result.cache.entries if entry.cache_key in kept)
    blob.total_response_bytes = sum(len(entry.response) for entry in blob.entries)
    return blob


def _origin(state: State) -> str:
    return state.source.removeprefix("re-run from ")
