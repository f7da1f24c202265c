"""From evidence files to a report: load, select, plan, re-run, judge.

Never raises for bad evidence or a bad invocation: those are `unusable` verdicts with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.replay import answers, batches, missing, serving
from app.replay.attempts import REASON_TIMEOUT, Attempt, Category
from app.replay.compare import CONTINUATION, ERRORS, INTENTS, OUTPUTS
from app.replay.digests import file_digests
from app.replay.evidence import (
    Evidence,
    EvidenceFile,
    FileProblem,
    UnusableEvidence,
    load,
)
from app.replay.forward import Forward
from app.replay.images import State
from app.replay.judge import Judge
from app.replay.lives import same_start, settled
from app.replay.mapping import type_name
from app.replay.plan import Plan, Planner
from app.replay.rerun_pb2 import AgentCode, ToolAnswer
from app.replay.runner import Runner
from app.replay.select import RESUME, START, Target, Unanswerable, select
from app.replay.verdict import AttemptRef, Outcome, Reason, Report, Verdict
from app.wire import identity
from app.wire.records import AgentEnvelope, EventType, TraceEvent, serialize

_KNOWN_TYPES: Final = frozenset(map(int, TraceEvent.EventType.values()))
_USAGE: Final = "gen_ai.usage.input_tokens"
_PREFERENCE: Final = (
    Outcome.REPRODUCED,
    Outcome.IRREPRODUCIBLE,
    Outcome.WHAT_IF,
    Outcome.UNUSABLE,
    Outcome.DIVERGED,
)


@dataclass(frozen=True)
class Options:
    """What an operator may say beside the evidence.

    `seq` narrows to one seq. `ledger_bytes` bounds the ledger (0: none is kept). `tool_answers` are served in place
    of running a read-only tool. `vindicated` names doubtful reads, as in `Verdict.reads`, that another build's
    reproduced run on this same evidence has shown to be right.
    """

    seq: int | None = None
    allow_network: bool = False
    ledger_bytes: int = 0
    tool_answers: tuple[ToolAnswer, ...] = ()
    vindicated: frozenset[str] = frozenset()


def replay(
    files: Sequence[EvidenceFile],
    runner: Runner,
    code: AgentCode,
    *,
    seq: int | None = None,
    options: Options | None = None,
) -> Report:
    """Replay the activation that the evidence is about; `runner` runs the agent's code."""
    chosen = options or Options()
    if seq is not None:
        chosen = replace(chosen, seq=seq)
    try:
        evidence = load(files)
    except UnusableEvidence as error:
        return _unusable_files(files, error.problems)
    try:
        target = find(evidence, chosen.seq)
    except Unanswerable as stop:
        return Report(_stopped(evidence, stop))
    planner = Planner(evidence, target, code, chosen.allow_network, chosen.tool_answers)
    return _Replay(evidence, target, planner, runner, chosen).run()


def find(evidence: Evidence, seq: int | None) -> Target:
    """The attempts that loaded evidence is about; raises Unanswerable for evidence that may not be run at all."""
    answers.verify(evidence.snapshots)
    _refuse_torn(evidence)
    target = select(evidence, seq)
    _refuse_other_envelope(evidence, target)
    return target


@dataclass(frozen=True)
class _Replay:
    evidence: Evidence
    target: Target
    planner: Planner
    runner: Runner
    options: Options

    def run(self) -> Report:
        if self.target.pending is not None:
            return self._judged(self.planner.plan_pending(self.target.pending))
        reports = self._tried()
        best = _best(reports)
        reproduced = best.verdict.outcome is Outcome.REPRODUCED
        if self.target.refused is not None and not reproduced:
            return Report(_stopped(self.evidence, self.target.refused, best.verdict.attempt))
        if len(reports) == 1:
            return best
        others = [report for report in reports if report is not best]
        if reproduced and _leaves_open(best) and any(map(_not_excluded, others)):
            return replace(best, verdict=_ambiguous(best.verdict, len(reports)))
        note = f"{len(reports)} attempts share this clock; each was tried, and this is the one that fits best"
        return replace(best, verdict=replace(best.verdict, notes=(*best.verdict.notes, note)))

    def _tried(self) -> list[Report]:
        """A report on each attempt that the envelope may have triggered: the likely one alone, where it comes out."""
        likely = in_order(self.evidence, self.target)
        reports = [self._attempt(attempt) for attempt in likely]
        if reports[0].verdict.outcome is not Outcome.REPRODUCED:
            reports += [self._attempt(attempt) for attempt in self.target.candidates if attempt not in likely]
        return [report for report in reports if not _other_batch(report)] or reports

    def _attempt(self, attempt: Attempt) -> Report:
        try:
            plans = self._plans(attempt)
        except Unanswerable as stop:
            ref = bare_ref(attempt, self.target.kind)
            return Report(_stopped(self.evidence, stop, ref))
        return _best([self._judged(plan) for plan in plans])

    def _plans(self, attempt: Attempt) -> list[Plan]:
        """How the attempt may be run again: in one way, but for a failed resume that may have come before an escalation
        or after it.
        """
        kind, intent = self.target.kind, self.target.intent_id
        refuse_unanswerable(attempt, self.planner.code)
        refuse_tangled(self.target, attempt)
        members = self.planner.members_of(attempt, kind)
        state = self._state(attempt, kind, intent)
        waits = self.planner.waits(attempt, kind, state, intent)
        return [self.planner.plan(attempt, kind, members, state, intent, wait) for wait in waits]

    def _state(self, attempt: Attempt, kind: str, intent: str) -> State:
        """The best state to run from: captured, re-run from an earlier one, or the nearest."""
        counter = self.planner.counter(attempt, kind, intent)
        captured = self.planner.captured(attempt, kind, counter)
        if captured is not None:
            return captured
        forward = Forward(self.evidence, self.target, self.planner, self.runner)
        reached = forward.reach(attempt.life, counter)
        images = self.planner.images(attempt.life)
        if reached is None:
            return images.nearest(counter)
        earlier = [a.clock_ms for a in settled(self.target.all_attempts, attempt.life) if a.seq < attempt.seq]
        met = images.met(reached, in_order=all(clock <= attempt.clock_ms for clock in earlier))
        return met if met is not None and self.planner.trusted(met, attempt).fit.exact else reached

    def _judged(self, plan: Plan) -> Report:
        kept = self.options.ledger_bytes
        plan, finished = serving.run(self.runner, plan, kept)
        judge = Judge(self.evidence, self.target, plan, self.runner, self.options.vindicated, kept)
        return judge.judge(finished)


_PRODUCTS: Final = frozenset({INTENTS, OUTPUTS, ERRORS, CONTINUATION})


def _leaves_open(report: Report) -> bool:
    """Whether something that a run can make was not held against a record."""
    return any(surface.name in _PRODUCTS and not surface.compared for surface in report.verdict.surfaces)


def _other_batch(report: Report) -> bool:
    reason = report.verdict.reason
    return reason is not None and reason.code == batches.NOT_A_MEMBER


def _not_excluded(report: Report) -> bool:
    """Whether the envelope may have been that attempt's; a failed one may be a try of the same envelope."""
    ref = report.verdict.attempt
    ran = ref is not None and ref.status in ("completed", "suspended")
    return ran and report.verdict.outcome in (Outcome.REPRODUCED, Outcome.IRREPRODUCIBLE)


def _ambiguous(verdict: Verdict, count: int) -> Verdict:
    """No difference shows in one of several attempts of one clock, but not all that it made could be compared."""
    reason = Reason(
        "ambiguous_attempt",
        f"{count} attempts share this clock, more than one of them may be the envelope's, and what was not compared may"
        " be another's.",
        "Narrow with --seq, or hand in the intents and outputs streams.",
    )
    return replace(verdict, outcome=Outcome.IRREPRODUCIBLE, headline=reason.text, reason=reason)


def _best(reports: Sequence[Report]) -> Report:
    """The report that says the most for the evidence."""
    return min(reports, key=lambda r: (_PREFERENCE.index(r.verdict.outcome), len(r.verdict.differences)))


def in_order(evidence: Evidence, target: Target) -> Sequence[Attempt]:
    """The attempts that the envelope may have triggered; just one where the events stream tells them apart.

    Of envelopes of one time, the first that arrived was the first to be taken.
    """
    alike = list({serialize(one): one for one in evidence.events if target.may_be(one)}.values())
    ran = sorted(target.candidates, key=lambda a: (a.life, a.seq))
    if len(ran) < 2 or len(alike) != len(ran) or target.kind != START or target.envelope not in alike:
        return target.candidates
    if not all(attempt.committed and (attempt.batch_size or 1) == 1 for attempt in ran):
        return target.candidates
    return [ran[alike.index(target.envelope)]]


def refuse_unanswerable(attempt: Attempt, code: AgentCode) -> None:
    """What can be told without a run: hooks left out, newer events, a wall-clock timeout."""
    if attempt.category is Category.FAILURE and attempt.reason == REASON_TIMEOUT:
        stop = missing.recorded_timeout()
        raise Unanswerable(stop.outcome, stop.reason)
    types = {int(record.event.event_type) for record in attempt.records}
    newer = sorted(number for number in types if number not in _KNOWN_TYPES)
    if newer:
        raise Unanswerable(
            Outcome.UNUSABLE,
            Reason(
                "newer_event_type",
                f"the attempt holds {', '.join(map(type_name, newer))}, which this version does not know",
                "Upgrade Hindcast to a release that knows it.",
            ),
        )
    # A facade that the agent drives itself has a decode hook of its own.
    usage = any(
        _USAGE in record.event.attributes and answers.ATTRIBUTE_ATTEMPTS not in record.event.attributes
        for record in attempt.records
    )
    if usage and not code.decode:
        raise _left_out("decode", "the recorded model calls carry token usage")
    if EventType.TOOL_CALL in types and not code.registry:
        raise _left_out("registry", "the recorded attempt called tools")


def refuse_tangled(target: Target, attempt: Attempt) -> None:
    """A key that was wiped and used again, with clocks that do not tell its lives apart."""
    fresh = target.kind == START and attempt.seq == 0 and attempt.committed
    # A failed answer leaves no stamp that would tie it to a wait that began later, by its clock.
    early = target.kind == RESUME and attempt.category is Category.FAILURE and _before_its_start(target, attempt)
    if (attempt.unsettled and not fresh) or early or same_start(target.all_attempts):
        raise Unanswerable(
            Outcome.IRREPRODUCIBLE,
            Reason(
                "ambiguous_life",
                "the traces show several lives of this key whose event times overlap, so the state that this attempt"
                " ran from cannot be told from one of another life",
                "Hand in only the traces of the life that the attempt belongs to.",
            ),
        )


def _before_its_start(target: Target, attempt: Attempt) -> bool:
    same_seq = [a for a in settled(target.all_attempts, attempt.life) if a.seq == attempt.seq]
    return any(attempt.clock_ms < a.clock_ms for a in same_seq if a.kind == START)


def _left_out(hook: str, because: str) -> Unanswerable:
    return Unanswerable(
        Outcome.UNUSABLE,
        Reason(
            "hook_missing",
            f"{because}, so the pipeline had a {hook} hook, and none is given",
            f"Name it with --{hook} module:attribute, or in the build's configuration.",
            {"hook": hook},
        ),
    )


def _refuse_torn(evidence: Evidence) -> None:
    if evidence.torn:
        raise Unanswerable(
            Outcome.UNUSABLE,
            Reason(
                "torn_stream",
                "; ".join(f"{torn.name}: {torn.problem}" for torn in evidence.torn),
                evidence.torn[0].remedy,
                {"files": [torn.name for torn in evidence.torn]},
            ),
        )


def _refuse_other_envelope(evidence: Evidence, target: Target) -> None:
    """The events stream may show that another envelope ran at this clock.

    A stream that begins later lacks this one: then fewer envelopes than attempts have this time.
    """
    rivals = [other for other in evidence.events if target.may_be(other)]
    distinct = {serialize(other) for other in rivals}
    if target.pending is not None or not rivals or target.envelope in rivals:
        return
    if len(distinct) >= len(target.candidates):
        raise Unanswerable(
            Outcome.UNUSABLE,
            Reason(
                "other_envelope",
                "the events stream holds another envelope of this kind, key and time than the one"
                f" handed in: {_summary(rivals[0])}",
                "Hand in the envelope from the events stream.",
            ),
        )


def _summary(envelope: AgentEnvelope) -> str:
    return f"{envelope.WhichOneof('payload') or 'no payload'}, {envelope.ByteSize()} bytes"


def _unusable_files(files: Sequence[EvidenceFile], problems: Sequence[FileProblem]) -> Report:
    reason = unusable(problems)
    digests = {"files": file_digests(Evidence(tuple(files)))}
    return Report(Verdict(Outcome.UNUSABLE, reason.text, reason=reason, digests=digests))


def unusable(problems: Sequence[FileProblem]) -> Reason:
    """The reason of files that cannot be read."""
    return Reason(
        "unusable_file",
        "; ".join(f"{p.name}: {p.problem}" for p in problems),
        problems[0].remedy,
        {
            "files": [
                {
                    "name": p.name,
                    "role": p.role,
                    "problem": p.problem,
                    "expected": p.expected,
                    "remedy": p.remedy,
                }
                for p in problems
            ]
        },
    )


def _stopped(evidence: Evidence, stop: Unanswerable, ref: AttemptRef | None = None) -> Verdict:
    return Verdict(
        stop.outcome,
        _sentence(stop.reason.text),
        reason=stop.reason,
        attempt=ref,
        digests={"files": file_digests(evidence)},
        notes=tuple(evidence.notes),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")


def bare_ref(attempt: Attempt, kind: str) -> AttemptRef:
    """An attempt as a verdict names it, before any plan was made for it."""
    return AttemptRef(
        entity_key=attempt.entity_key,
        seq=attempt.seq,
        kind=kind,
        clock_ms=attempt.clock_ms,
        entry_step=attempt.entry_step or 0,
        trace_id=identity.trace_id(attempt.entity_key, attempt.seq).hex(),
        status=attempt.status,
        batch_size=attempt.batch_size,
    )
