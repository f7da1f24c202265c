"""Feeds a stretch of recorded inputs, in order, to a build, beside the build that made the record; and sums it up.

Each input gets the state that it really had: from the log where it has it, else from the runs of the recording build
that came out as recorded. What a changed build did with one input never reaches the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.flink.inside.messages import Call, Ending, Exchange, Input, InputResult, Outcome, Request, ToolAnswer
from app.flink.model import Run
from app.flink.rerun.case import Case, Options, Proof, Ran, Runner, Source
from app.flink.rerun.judge import AFTER_MISSING, judge, unjudged
from app.flink.rerun.recorded import Recorded, from_wire, numbered, to_wire
from app.replay.verdict import Outcome as Found
from app.replay.verdict import Reason, Report

_UNKNOWN: Final = "unknown"  # no request has this for its digest
PIECE: Final = 500  # inputs of one child, which has a time limit and an answer of bounded size


@dataclass(frozen=True)
class Replayed:
    """The reports on a stretch, in the order of its inputs, and how long one input took on average (milliseconds)."""

    build: str
    reference: str
    inputs: tuple[Recorded, ...]
    reports: tuple[Report, ...]
    calls: tuple[tuple[Call, ...], ...]
    child_ms: float = 0.0

    @property
    def outcome(self) -> Found:
        """The verdict on the whole: the first in this order that an input has."""
        found = {report.verdict.outcome for report in self.reports}
        order = (Found.UNUSABLE, Found.DIVERGED, Found.IRREPRODUCIBLE, Found.WHAT_IF, Found.REPRODUCED)
        return next((one for one in order if one in found), Found.UNUSABLE)


@dataclass(frozen=True)
class _Outcome:
    """What one build made of a stretch."""

    ran: Ran
    results: tuple[InputResult, ...]

    def then(self, ran: Ran, results: tuple[InputResult, ...]) -> _Outcome:
        """The same with a further piece."""
        whole = replace(
            ran,
            refusals=tuple(dict.fromkeys((*self.ran.refusals, *ran.refusals))),
            printed=self.ran.printed + ran.printed,
            duration_ms=self.ran.duration_ms + ran.duration_ms,
        )
        return _Outcome(whole, self.results + results)


def _continued(piece: Sequence[Input], left: Mapping[str, list[Any]]) -> Iterator[Input]:
    """The same inputs; the first of each key gets the memory that the process before left, which this one has not."""
    begun: set[str] = set()
    for one in piece:
        goes_on = one.memory is None and one.key not in begun and one.key in left
        yield one.model_copy(update={"memory": left[one.key]}) if goes_on else one
        begun.add(one.key)


class Stretch:
    """Inputs, and the builds that they are given to; `reference` made the record, None where nobody said."""

    def __init__(
        self,
        runs: Sequence[Run],
        build: Runner,
        reference: Runner | None,
        options: Options,
        wanted: frozenset[str] | None = None,
        after: Sequence[Run] = (),
        captured: Sequence[str] | None = None,
        gaps: Mapping[str, Sequence[str]] | None = None,
        unsure: frozenset[str] = frozenset(),
    ) -> None:
        """`wanted` are the runs to report on; the others only lead up to them.

        Those in `after` are not run: what memory they begin with is what a run before should have left. `captured` are
        the runs with a captured input, in the capture's order: they alone are fed, and in that order. `gaps` name by
        run the inputs that came before it and of which the log holds nothing; before those in `unsure` some may be so.
        """
        later = {run.ref for run in after}
        whole = numbered([*runs, *after])
        self._given = [one for one in whole if one.run.ref not in later]
        self._after = [one for one in whole if one.run.ref in later]
        self._build = build
        self._reference = reference
        self._options = options
        self._good: dict[str, bool] = {}  # which inputs the recording build reproduces
        fed = self._given
        if captured is not None:
            place = {ref: at for at, ref in enumerate(captured)}
            fed = sorted((one for one in self._given if one.run.ref in place), key=lambda one: place[one.run.ref])
        self._reported = [one for one in fed if wanted is None or one.run.ref in wanted]
        self._usable = [one for one in fed if _refused(one) is None]
        self._complete = captured is not None
        self._unsure = unsure
        self._lost = dict(self._missing(fed, gaps or {}))

    def _missing(
        self, fed: Sequence[Recorded], gaps: Mapping[str, Sequence[str]]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """By run, the inputs of its key before it that could not be fed; memory in the log makes up for all of them."""
        held: dict[str, list[str]] = {}
        for one in fed:
            names = held.setdefault(self._key(one), [])
            names += gaps.get(one.run.ref, ())
            if one.memory is not None:
                names.clear()
            yield one.run.ref, tuple(names)
            refused = _refused(one)
            if refused is not None:
                names.append(f"input {one.seq}, which could not be fed ({refused[1].code})")

    @property
    def _own(self) -> bool:
        return self._reference is not None and self._reference.build == self._build.build

    def replay(self) -> Replayed:
        """Run everything and judge it."""
        known: list[Case] = []
        if self._reference is not None and not self._own:
            base = self._feed(self._reference, [None] * len(self._usable), None)
            known = self._cases(base, self._reference.build, Proof.OWN, [])
        vouched = {case.recorded.run.ref: case for case in known}
        memories = self._memories(known)
        done = self._feed(self._build, memories, vouched or None, live=self._options.live)
        proof = self._proof()
        cases = self._cases(done, self._build.build, proof, known)
        return self._replayed(cases, done)

    def _proof(self) -> Proof:
        if self._own:
            return Proof.OWN
        return Proof.NONE if self._reference is None else Proof.COMPARED

    # Feeding --------------------------------------------------------------------------------------------------------

    def _feed(
        self,
        runner: Runner,
        memories: Sequence[list[Any] | None],
        vouched: Mapping[str, Case] | None,
        *,
        live: bool = False,
    ) -> _Outcome:
        inputs = [
            self._input(one, memory, None if vouched is None else vouched.get(one.run.ref))
            for one, memory in zip(self._usable, memories, strict=True)
        ]
        done = _Outcome(Ran(None, detail="nothing to run"), ())
        left: dict[str, list[Any]] = {}
        for start in range(0, len(inputs), PIECE):
            piece = list(_continued(inputs[start : start + PIECE], left))
            ran = runner.run(Request(live=live, handling=dict(self._options.handling), inputs=piece))
            results = tuple(ran.result.inputs) if ran.result is not None else ()
            left |= {one.key: one.memory for one in results}
            done = done.then(ran, results)
            if len(results) < len(piece):
                break
        return done

    def _input(self, one: Recorded, memory: list[Any] | None, reference: Case | None) -> Input:
        begun = one.memory if one.memory is not None else memory
        if begun is None and one.seq == 0:
            begun = to_wire(self._options.memory.get(one.key, {}))
        supplied = [answer for answer in self._options.supplied if isinstance(answer, ToolAnswer)]
        return Input(
            key=self._key(one),
            seq=one.seq,
            value=one.value,
            memory=begun,
            exchanges=self._exchanges(one, reference),
            tools=[*one.tools, *supplied],
            retrievals=list(one.retrievals),
        )

    def _exchanges(self, one: Recorded, reference: Case | None) -> list[Exchange]:
        """The recorded exchanges with the digest of each whole request, as far as a build tells it.

        In a what-if nobody may take the answer to another prompt for the answer to this one: where no build tells, the
        record answers nothing.
        """
        if reference is not None:
            return _whole(one.exchanges, reference.result)
        if self._options.live and self._reference is None:
            return [exchange.model_copy(update={"full": _UNKNOWN}) for exchange in one.exchanges]
        return list(one.exchanges)

    @staticmethod
    def _key(one: Recorded) -> str:
        """Runs of no key share no memory, and neither do those of two jobs."""
        return f"{one.run.stream.job} {one.key}" if one.run.key is not None else f"run {one.run.ref}"

    def _memories(self, known: Sequence[Case]) -> list[list[Any] | None]:
        """The memory before each input, as the recording build's runs left it; None to go on with the key's own."""
        if not known:
            return [None] * len(self._usable)
        held: dict[str, list[Any]] = {}
        found: list[list[Any] | None] = []
        for case in known:
            key = self._key(case.recorded)
            found.append(held.get(key) or to_wire(self._options.memory.get(case.recorded.key, {})))
            held[key] = case.result.memory
        return found

    # Judging --------------------------------------------------------------------------------------------------------

    def _cases(self, done: _Outcome, build: str, proof: Proof, known: Sequence[Case]) -> list[Case]:
        """Pair inputs with results, and say what the memory of each rests on."""
        clean: dict[str, bool] = {}
        cases: list[Case] = []
        nexts = self._next_memories()
        for index, (one, result) in enumerate(zip(self._usable, done.results, strict=False)):
            reference = known[index] if known else None
            key = self._key(one)
            memory = reference.memory if reference is not None else self._source(one, clean.get(key))
            case = Case(
                recorded=one,
                result=result,
                ran=done.ran,
                build=build,
                memory=memory,
                proof=proof,
                live=self._options.live and build == self._build.build,
                reference=None if reference is None else reference.result,
                reference_build="" if reference is None else reference.build,
                vouched=reference is None or self._good[one.run.ref],
                next_memory=nexts.get(one.run.ref),
                lost=self._lost[one.run.ref],
            )
            if reference is None:
                verdict = judge(case).verdict
                good = verdict.outcome is Found.REPRODUCED
                # What came after it in the log is not known, but what it did itself is as recorded.
                self._good[one.run.ref] = good or bool(verdict.reason and verdict.reason.code == AFTER_MISSING)
                clean[key] = clean.get(key, True) and good
            cases.append(case)
        return cases

    def _source(self, one: Recorded, clean: bool | None) -> Source:
        if one.memory is not None:
            return Source.LOG
        if self._lost[one.run.ref]:
            return Source.GAP
        if clean is None:
            # Of an input that others came before, which were not fed, only those could tell.
            told = one.seq == 0 and (self._options.begins_empty or one.key in self._options.memory)
            return Source.EMPTY if told and one.run.ref not in self._unsure else Source.ASSUMED
        if not clean:
            return Source.CARRIED
        begun = self._options.begins_empty or bool(self._options.memory)
        if not begun:
            return Source.GROWN
        return Source.RERUN if self._complete and one.run.ref not in self._unsure else Source.FORWARD

    def _next_memories(self) -> dict[str, Mapping[str, Any]]:
        """What the next run of the same key began with, by run."""
        last: dict[str, str] = {}
        found: dict[str, Mapping[str, Any]] = {}
        for one in (*self._given, *self._after):
            key = self._key(one)
            if one.memory is not None and key in last:
                found[last[key]] = from_wire(one.memory)
            last[key] = one.run.ref
        return found

    def _replayed(self, cases: Sequence[Case], done: _Outcome) -> Replayed:
        by_ref = {case.recorded.run.ref: case for case in cases}
        inputs, reports, calls = [], [], []
        for one in self._reported:
            case = by_ref.get(one.run.ref)
            if case is not None:
                reports.append(judge(case))
            else:
                outcome, reason = _refused(one) or _from_child(done.ran)
                reports.append(unjudged(self._nothing(one, done.ran), outcome, reason))
            inputs.append(one)
            calls.append(() if case is None else tuple(case.result.calls))
        reference = "" if self._reference is None else self._reference.build
        ms = done.ran.duration_ms / max(1, len(self._usable))
        return Replayed(self._build.build, reference, tuple(inputs), tuple(reports), tuple(calls), ms)

    def _nothing(self, one: Recorded, ran: Ran) -> Case:
        result = InputResult(key=self._key(one), seq=one.seq, ending=Ending.UNSUPPORTED)
        return Case(one, result, ran, self._build.build, Source.ASSUMED, Proof.NONE)


def _whole(exchanges: Sequence[Exchange], reference: InputResult) -> list[Exchange]:
    """The exchanges with the digest of each whole request, as the recording build sent it."""
    full: dict[str, list[str]] = {}
    for call in reference.calls:
        if call.kind == "model" and call.outcome is Outcome.ANSWERED:
            full.setdefault(call.digest, []).append(call.full)
    found = []
    for exchange in exchanges:
        held = full.get(exchange.digest)
        known = None if not held else held.pop(0) if len(held) > 1 else held[0]
        found.append(exchange.model_copy(update={"full": known or _UNKNOWN}))
    return found


def _refused(one: Recorded) -> tuple[Found, Reason] | None:
    """Why a run cannot be re-run at all."""
    if one.run.input_missing or not one.records:
        text = "The log holds no input of this run, so there is nothing to feed."
        return Found.UNUSABLE, Reason("no_input", text, "Hand in the earlier part of it.")
    if one.cut:
        more = f", and {len(one.cut) - 1} more" if one.cut[1:] else ""
        text = f"The log cut values of this run short: {one.cut[0]}{more}."
        remedy = "Log at level VERBOSE: only whole values can be fed and compared."
        return Found.IRREPRODUCIBLE, Reason("truncated", text, remedy)
    return None


_UNUSABLE: Final = frozenset({"refused_confinement", "sandbox_lost", "crashed", "garbled_result"})


def _from_child(ran: Ran) -> tuple[Found, Reason]:
    """Why the child gave no results."""
    if ran.result is not None and ran.result.refusal:
        code = {"plan": "plan_refused", "unsupported": "unsupported"}.get(ran.result.refusal_kind, "agent_refused")
        outcome = Found.IRREPRODUCIBLE if code == "unsupported" else Found.UNUSABLE
        return outcome, Reason(code, f"{ran.result.refusal}.", "See that the build's agent, paths and interpreter fit.")
    outcome = Found.UNUSABLE if ran.ending in _UNUSABLE else Found.IRREPRODUCIBLE
    return outcome, Reason(ran.ending, f"The run ended early: {ran.detail or ran.ending}.", "")


def summed(replayed: Replayed) -> dict[str, Any]:
    """The stretch in numbers: verdicts, which inputs differ, which tool calls and outputs changed.

    What could not be judged is listed apart: of it nobody knows whether it would differ.
    """
    tally = Counter(str(report.verdict.outcome) for report in replayed.reports)
    differ: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    unknown: list[dict[str, Any]] = []
    for one, report in zip(replayed.inputs, replayed.reports, strict=True):
        where = {"key": one.run.key, "seq": one.seq, "run": one.run.ref}
        if report.verdict.outcome in (Found.IRREPRODUCIBLE, Found.UNUSABLE):
            reason = report.verdict.reason
            unknown.append(where | {"reason": "" if reason is None else reason.code})
            continue
        changed = [row for row in report.rows if row.differs]
        if changed:
            at = report.verdict.first_divergence
            differ.append(where | {"first_divergence": at, "differences": len(changed)})
        for difference in report.verdict.differences:
            told = where | {
                "name": difference.label or difference.event_type,
                "field": difference.field,
                "recorded": difference.recorded,
                "replayed": difference.replayed,
            }
            if difference.surface == "tool calls":
                tools.append(told)
            elif difference.surface == "outputs":
                outputs.append(told)
    return {
        "inputs": len(replayed.reports),
        "verdicts": dict(sorted(tally.items())),
        "differ": differ,
        "tool_calls": tools,
        "outputs": outputs,
        "unknown": unknown,
        "ms_per_input": round(replayed.child_ms, 3),
    }
