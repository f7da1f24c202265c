"""Settle what a run cannot vouch for: vary the value, run again, and see whether anything unseen moves.

A value is proven when the varied run asks for a model response that was never recorded: the recorded request
then carried the value. It is harmless when runs with other values come out the same in all that was not compared.
What neither proves nor clears stays a doubt, for a plausible but wrong reproduction is the one thing not allowed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.replay.drawn import canonical_memory, canonical_wait, values_of
from app.replay.mapping import content
from app.replay.rerun_pb2 import RerunRequest, RerunResult
from app.replay.runner import FINISHED, Runner
from app.replay.suspicion import Suspect, Weight, scalar_variants, unseen, variants, varied_json
from app.wire.records import MemoryBlob, serialize

LIMIT: Final = 12
REPEATS: Final = 4  # of a run that may come out differently by itself


@dataclass(frozen=True)
class Doubt:
    """One value that may have been another one: a memory read, or a tool answer that the operator supplied."""

    name: str
    why: str
    suspect: Suspect | None = None
    answer: int | None = None  # index among the request's tool answers

    @property
    def of_kind(self) -> bool:
        """Whether it has just one other possibility, so that trying that one settles it."""
        return self.suspect is not None and self.suspect.weight is Weight.KIND

    def requests(self, base: RerunRequest) -> Iterator[RerunRequest]:
        """The same request with other values in the place of the doubtful one."""
        if self.suspect is not None:
            for image in variants(self.suspect, base.memory if base.HasField("memory") else MemoryBlob()):
                request = _copy(base)
                request.memory.CopyFrom(image)
                if request != base:
                    yield request
        elif self.answer is not None:
            for value in _other_answers(base.tool_answers[self.answer].value_json):
                request = _copy(base)
                request.tool_answers[self.answer].value_json = value
                if request != base:
                    yield request


def of_reads(suspects: Sequence[Suspect]) -> list[Doubt]:
    """Doubts about memory reads."""
    return [Doubt(suspect.name, suspect.why, suspect=suspect) for suspect in suspects]


def of_answers(request: RerunRequest, used: set[tuple[str, str]]) -> list[Doubt]:
    """Doubts about supplied tool answers that the run used."""
    return [
        Doubt(f"{answer.tool}({answer.args_json})", "the operator supplied the answer", answer=index)
        for index, answer in enumerate(request.tool_answers)
        if (answer.tool, answer.args_json) in used
    ]


@dataclass(frozen=True)
class Settled:
    """What varying a doubtful value showed; `moved` names an uncompared product that hangs on it."""

    proven: bool
    moved: str | None
    pinned: bool = False  # every other value that was tried changed something that was compared


class Settler:
    """Runs the variations of one finished run."""

    def __init__(
        self, runner: Runner, request: RerunRequest, base: RerunResult, names: Sequence[str], loose: Sequence[str] = ()
    ) -> None:
        """`names` are products that were not compared, `loose` those that were only looked up in a stream."""
        self.runner = runner
        self._request = request
        self._base = base
        self._names = names
        self._loose = loose
        self._settled: dict[Doubt, Settled] = {}
        self._repeated: list[RerunResult | None] = []

    def unsettled(self, doubts: Sequence[Doubt]) -> tuple[Doubt, str] | None:
        """The first doubt on which an uncompared product hangs, or may hang; None when all are settled."""
        if not self._names and not self._loose:
            return None
        for doubt in doubts[:LIMIT]:
            moved = self.settle(doubt).moved
            if moved is not None:
                return doubt, moved
        return (doubts[LIMIT], [*self._names, *self._loose][0]) if len(doubts) > LIMIT else None

    def settle(self, doubt: Doubt) -> Settled:
        """Vary one doubtful value; asked again, it remembers."""
        if doubt not in self._settled:
            self._settled[doubt] = self._settle(doubt)
        return self._settled[doubt]

    @property
    def may_vary(self) -> bool:
        """Whether another run may come out otherwise: the code's looks say so, or it kept state as frameworks do."""
        kept = values_of(self._base.memory) or self._base.continuation.adapter
        return self._base.may_vary or bool(kept)

    def unsteady(self) -> bool:
        """Whether the very same request comes out differently when made again; a run without a result tells nothing."""
        return any(_products(again) != _products(self._base) for again in self._repeats())

    def unsteady_memory(self) -> bool:
        """Whether the very same request leaves another memory when made again."""
        left = canonical_memory(self._base.memory)
        return any(canonical_memory(again.memory) != left for again in self._repeats())

    def _repeats(self) -> Iterator[RerunResult]:
        """The very same request made again, each time when asked for: one that tosses a coin may come out equal."""
        for at in range(REPEATS if self.may_vary else 1):
            if at == len(self._repeated):
                self._repeated.append(self.runner.run(self._request).result)
            if (again := self._repeated[at]) is not None:
                yield again

    def explains(self, doubt: Doubt, *, committed: bool) -> bool:
        """Whether a run with another value goes another way, so that a difference may be the value's doing.

        `committed` is how the recorded attempt ended: a run that ends otherwise is not the recorded one.
        """
        endings = (RerunResult.COMPLETED, RerunResult.SUSPENDED)
        for request in doubt.requests(self._request):
            varied = self.runner.run(request).result
            if varied is None or varied.outcome == RerunResult.CACHE_MISS:
                return True
            if (varied.outcome in endings) == committed and _products(varied) != _products(self._base):
                return True
        return False

    def _settle(self, doubt: Doubt) -> Settled:
        strict, looked_up = unseen(self._base, self._names), unseen(self._base, self._loose)
        compared = _compared(self._base, self._names)
        proven = told = False
        pinned = True
        constrained: str | None = None
        for request in doubt.requests(self._request):
            finished = self.runner.run(request)
            varied = finished.result if finished.ending == FINISHED else None
            if varied is None:
                continue
            if varied.outcome == RerunResult.CACHE_MISS:
                # A request in the place of a recorded one carried the value; one on another path only refutes.
                proven |= any(answer.step_index == varied.miss.step_index for answer in self._base.served)
                continue
            if varied.outcome != self._base.outcome:
                continue  # it failed on a value of the wrong kind, which tells nothing
            told = True
            same = _compared(varied, self._names) == compared
            pinned = pinned and not same
            moved = strict.moved(unseen(varied, self._names))
            slipped = looked_up.moved(unseen(varied, self._loose))
            if (moved or slipped) and same:
                return Settled(proven, [*moved, *slipped][0])
            # Where something that was compared moves as well, a looked-up product is pinned down by it.
            constrained = moved[0] if moved else constrained
        if doubt.of_kind:
            return Settled(proven, moved=None)
        if proven and not told:
            return Settled(proven=True, moved=None)
        if constrained is None:
            constrained = next(iter(self._names if told else [*self._names, *self._loose]), None)
        return Settled(proven=False, moved=constrained, pinned=told and pinned)


def _compared(result: RerunResult, names: Sequence[str]) -> tuple[frozenset[bytes], frozenset[tuple[str, str]]]:
    """What of a run was held against a record: its trace, and the arguments that are not among the unseen."""
    args = {(i.intent_id, i.args_json) for i in result.intents if f"args:{i.intent_id}" not in names}
    return frozenset(content(event) for event in result.events), frozenset(args)


def _products(result: RerunResult) -> tuple[object, ...]:
    """Everything that a run produced but the memory it left, ids and times of a framework's wait aside."""
    wait, detail = serialize(canonical_wait(result.continuation)), result.dead_letter.detail
    return result.outcome, list(result.events), list(result.intents), list(result.outputs), wait, detail


def _copy(request: RerunRequest) -> RerunRequest:
    copy = RerunRequest()
    copy.CopyFrom(request)
    return copy


def _other_answers(value_json: str) -> Iterator[str]:
    """Other answers of the same kind."""
    value = json.loads(value_json)
    if isinstance(value, str):
        for varied in scalar_variants(value.encode()):
            yield json.dumps(varied.decode("utf-8", "replace"))
    else:
        yield json.dumps(varied_json(value))
