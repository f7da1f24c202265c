"""Turn a plan and its finished re-run into a verdict.

The order of the questions is the promise: first whether the run was fed with everything it needs,
then whether it differs, then whether what it read can be trusted, and only then `reproduced`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.replay import compare, missing
from app.replay.alike import held_against
from app.replay.attempts import Attempt
from app.replay.decide import Case, suspicious_serving
from app.replay.digests import file_digests, products
from app.replay.doubts import LIMIT, Doubt, Settler, of_answers, of_reads
from app.replay.evidence import Evidence
from app.replay.ledger import attach
from app.replay.plan import Plan
from app.replay.rerun_pb2 import RerunResult, ToolRun
from app.replay.runner import FINISHED, Finished, Runner
from app.replay.select import Target
from app.replay.serving import Orders, other_retries
from app.replay.surfaces import judge_surfaces
from app.replay.suspicion import Suspect, suspects
from app.replay.timeline import compare_run, replayed_events
from app.replay.verdict import (
    AttemptRef,
    Outcome,
    Report,
    Row,
    RowState,
    Verdict,
)
from app.wire import identity


@dataclass
class Judge:
    """Judges one planned re-run; `runner` is asked again only to vary what cannot be trusted."""

    evidence: Evidence
    target: Target
    plan: Plan
    runner: Runner
    vindicated: frozenset[str] = frozenset()
    ledger_bytes: int = 0
    orders: Orders | None = None
    settled: bool = False  # the way in which its answers come was tried out

    def judge(self, finished: Finished) -> Report:
        """The verdict on a finished run, with its ledger where one was kept."""
        report = self._judged(finished)
        if report.ledger or finished.result is None or not self.ledger_bytes:
            return report
        return replace(report, ledger=attach(finished.result.ledger, report.rows))

    def _judged(self, finished: Finished) -> Report:
        base = self._base(finished)
        result = finished.result
        if result is None or finished.ending != FINISHED:
            return self._stopped(base, missing.from_ending(finished), result)
        found = suspects(result.reads, self.plan.state, self.plan.clocks, self.plan.counter)
        doubtful = [suspect for suspect in found if suspect.name not in self.vindicated]
        base = replace(base, reads=tuple(_read(suspect, self.vindicated) for suspect in found if suspect.is_read))
        stop = missing.from_result(self.plan, result, [one for one in doubtful if one.is_read])
        if stop is not None:
            return self._stopped(base, stop, result)
        if self.plan.attempt is None:
            return self._what_if(base, result)
        return self._compared(base, result, self.plan.attempt, doubtful)

    def _stopped(self, base: Verdict, stop: missing.Stop, result: RerunResult | None) -> Report:
        verdict = replace(base, outcome=stop.outcome, headline=stop.reason.text, reason=stop.reason)
        return Report(verdict, self._rows(result))

    def _base(self, finished: Finished) -> Verdict:
        result = finished.result
        confinement = finished.confinement
        return Verdict(
            outcome=Outcome.UNUSABLE,
            headline="",
            attempt=attempt_ref(self.plan, self.plan.attempt),
            served={} if result is None else served(self.plan, result),
            driver={} if result is None else {"name": result.driver, "version": result.driver_version},
            confinement={} if confinement is None else dict(confinement.as_json()),
            digests={"files": file_digests(self.evidence)},
            plan=self.plan.as_json(),
            replayed={} if result is None else products(result),
            notes=self._notes(finished),
        )

    def _notes(self, finished: Finished) -> tuple[str, ...]:
        notes = [*self.evidence.notes, *self.target.notes, *self.plan.notes]
        if self.evidence.duplicates:
            notes.append(f"{self.evidence.duplicates} duplicate trace deliveries were collapsed")
        result = finished.result
        if result is not None:
            notes += [f"the sandbox refused: it {text}" for text in result.refusals]
        return tuple(notes)

    def _rows(self, result: RerunResult | None) -> tuple[Row, ...]:
        """Rows of a run that cannot be judged: shown where there is something to lay side by side."""
        if result is None or self.plan.attempt is None or not result.events:
            return ()
        return tuple(compare_run(self.plan, result).rows)

    def _what_if(self, base: Verdict, result: RerunResult) -> Report:
        events = replayed_events(self.plan, result, None)
        rows = tuple(
            Row(ordinal, RowState.REPLAYED_ONLY, compare.TRACE, None, event) for ordinal, event in enumerate(events)
        )
        text = (
            f"This answer to seq {self.plan.seq} has not run in the pipeline; the rows show what it"
            " would emit. Nothing was sent anywhere."
        )
        return Report(
            replace(base, outcome=Outcome.WHAT_IF, headline=text, counts=compare.counts(rows)),
            rows,
        )

    def _compared(self, base: Verdict, result: RerunResult, attempt: Attempt, doubtful: Sequence[Suspect]) -> Report:
        comparison = held_against(self.plan, result, self.runner)
        if comparison.differs and (other := self._otherwise(result)) is not None:
            return other
        judged = judge_surfaces(self.plan, attempt, result, comparison.rows)
        rows = tuple(comparison.rows)
        first = compare.first_divergence(rows)
        verdict = replace(
            base,
            surfaces=judged.surfaces,
            differences=tuple(compare.differences(rows)),
            normalised=tuple(compare.normalised(rows)),
            counts=compare.counts(rows),
            first_divergence=None if first is None else first.ordinal,
            notes=(*base.notes, *comparison.notes),
        )
        loose = () if first is not None else judged.loose
        settler = Settler(self.runner, self.plan.request, result, judged.unseen, loose)
        verdict = replace(verdict, served=self._with_proofs(base.served, result, settler))
        served_otherwise = suspicious_serving(self.plan, result, as_recorded=not verdict.normalised)
        case = Case(
            plan=self.plan,
            attempt=attempt,
            attempts=self.target.all_attempts,
            result=result,
            judged=judged,
            rows=rows,
            unclaimed=comparison.unclaimed,
            certain=rows if comparison.certain is None else comparison.certain,
            suspects=(*doubtful, *self.plan.suspects, *served_otherwise),
            supplied=tuple(self._supplied(result)),
            settler=settler,
            orders=self._orders(result),
        )
        outcome, headline, reason = case.decide()
        reads = [suspect for suspect in doubtful if suspect.is_read]
        if outcome is Outcome.REPRODUCED and reads:
            settled = [(doubt.name, settler.settle(doubt)) for doubt in of_reads(reads)[:LIMIT]]
            proven = frozenset(name for name, one in settled if one.proven or one.pinned)
            verdict = replace(verdict, reads=tuple({**read, "proven": read["read"] in proven} for read in base.reads))
        return Report(replace(verdict, outcome=outcome, headline=headline, reason=reason), rows)

    def _orders(self, result: RerunResult) -> Orders | None:
        """Other orders in which the answers may have come back, where several were waited for at one time."""
        if not result.concurrent or not self.plan.answers.own:
            return None
        if self.orders is None:
            self.orders = Orders(self.runner, self.plan, self.ledger_bytes)
        return self.orders

    def _otherwise(self, result: RerunResult) -> Report | None:
        """The report on a run that comes out as recorded once its answers come in another way the record allows."""
        if self.settled:
            return None
        for plan in other_retries(self.plan):
            finished = self.runner.run(plan.request)
            if finished.result is not None and not held_against(plan, finished.result, self.runner).differs:
                return self._settled_by(plan, finished, "the provider's failures came before other calls of their step")
        if (orders := self._orders(result)) is None:
            return None
        for finished, other in orders.runs():
            if not held_against(orders.plan, other, self.runner).differs:
                note = "several answers were waited for at one time; another order of them fits"
                return self._settled_by(orders.plan_of(finished), finished, note)
        return None

    def _settled_by(self, plan: Plan, finished: Finished, note: str) -> Report:
        report = replace(self, plan=plan, settled=True).judge(finished)
        return replace(report, verdict=replace(report.verdict, notes=(*report.verdict.notes, note)))

    def _with_proofs(self, served: Mapping[str, Any], result: RerunResult, settler: Settler) -> Mapping[str, Any]:
        """Say of each supplied tool answer that was used whether a recorded request carries it, which proves it."""
        answers = self.plan.request.tool_answers
        proofs = [
            {"tool": answers[at].tool, "arguments": answers[at].args_json, "proven": settler.settle(doubt).proven}
            for doubt in self._supplied(result)[:LIMIT]
            if (at := doubt.answer) is not None
        ]
        return {**served, "supplied": proofs} if proofs else served

    def _supplied(self, result: RerunResult) -> list[Doubt]:
        used = {(tool.tool, tool.args_json) for tool in result.tools if tool.outcome == ToolRun.SUPPLIED}
        return of_answers(self.plan.request, used)


def _read(suspect: Suspect, vindicated: frozenset[str]) -> Mapping[str, Any]:
    """A doubtful read; only a proven one vouches for other builds: a value that nothing used may be any other."""
    return {"read": suspect.name, "why": suspect.why, "vindicated": suspect.name in vindicated, "proven": False}


def attempt_ref(plan: Plan, attempt: Attempt | None) -> AttemptRef:
    key = plan.request.entity_key
    return AttemptRef(
        entity_key=key,
        seq=plan.seq,
        kind=plan.kind,
        clock_ms=plan.clock_ms,
        entry_step=plan.request.entry_step,
        trace_id=identity.trace_id(key, plan.seq).hex(),
        status=None if attempt is None else attempt.status,
        batch_size=None if attempt is None else attempt.batch_size,
    )


def served(plan: Plan, result: RerunResult) -> Mapping[str, Any]:
    """Where each answer came from, with counts; provider calls are requests nothing could answer."""
    tools: dict[str, int] = {}
    for tool in result.tools:
        name = ToolRun.Outcome.Name(tool.outcome).lower()
        tools[name] = tools.get(name, 0) + 1
    return {
        "mode": plan.answers.mode,
        "cache_hits": sum(answer.from_cache for answer in result.served),
        "recorded_answers": sum(not answer.from_cache for answer in result.served),
        "provider_calls": result.provider_calls,
        "tools_reexecuted": tools.get("executed", 0) + tools.get("failed", 0),
        "tools": tools,
        "answers": [
            {
                "step_index": answer.step_index,
                "model": answer.model,
                "cache_key": answer.cache_key,
                "source": plan.answers.sources.get(answer.cache_key, "this run"),
            }
            for answer in result.served[:200]
        ],
    }
