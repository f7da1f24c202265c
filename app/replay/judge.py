"""Turn a plan and its finished re-run into a verdict.

The order of the questions is the promise: first whether the run was fed with everything it needs,
then whether it differs, then whether what it read can be trusted, and only then `reproduced`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.replay import compare, missing
from app.replay.attempts import Attempt
from app.replay.digests import file_digests, products
from app.replay.doubts import LIMIT, Doubt, Settler, of_answers, of_reads
from app.replay.evidence import Evidence
from app.replay.plan import Plan
from app.replay.rerun_pb2 import RerunResult, ToolRun
from app.replay.runner import FINISHED, Finished, Runner
from app.replay.select import Target
from app.replay.surfaces import Judged, judge_surfaces
from app.replay.suspicion import Suspect, suspects
from app.replay.timeline import compare_run, replayed_events
from app.replay.verdict import (
    AttemptRef,
    Outcome,
    Reason,
    Report,
    Row,
    RowState,
    Verdict,
)
from app.wire import identity


class Judge:
    """Judges one planned re-run; `runner` is asked again only to vary what cannot be trusted."""

    def __init__(
        self,
        evidence: Evidence,
        target: Target,
        plan: Plan,
        runner: Runner,
        vindicated: frozenset[str] = frozenset(),
    ) -> None:
        self.evidence = evidence
        self.target = target
        self.plan = plan
        self.runner = runner
        self.vindicated = vindicated

    def judge(self, finished: Finished) -> Report:
        """The verdict on a finished run."""
        base = self._base(finished)
        result = finished.result
        if result is None or finished.ending != FINISHED:
            return self._stopped(base, missing.from_ending(finished), result)
        found = suspects(result.reads, self.plan.state, self.plan.clocks, self.plan.counter)
        doubtful = [suspect for suspect in found if suspect.name not in self.vindicated]
        base = replace(base, reads=tuple(_read(suspect, self.vindicated) for suspect in found))
        stop = missing.from_result(self.plan, result, doubtful)
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
        comparison = compare_run(self.plan, result)
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
        outcome, headline, reason = self._decide(result, doubtful, judged, rows, settler, comparison.unclaimed)
        if outcome is Outcome.REPRODUCED and doubtful:
            settled = [(doubt.name, settler.settle(doubt)) for doubt in of_reads(doubtful)[:LIMIT]]
            proven = frozenset(name for name, one in settled if one.proven or one.pinned)
            reads = tuple({**read, "proven": read["read"] in proven} for read in base.reads)
            verdict = replace(verdict, reads=reads)
        return Report(replace(verdict, outcome=outcome, headline=headline, reason=reason), rows)

    def _with_proofs(self, served: Mapping[str, Any], result: RerunResult, settler: Settler) -> Mapping[str, Any]:
        """Say of each supplied tool answer that was used whether a recorded request carries it, which proves it."""
        answers = self.plan.request.tool_answers
        proofs = [
            {"tool": answers[at].tool, "arguments": answers[at].args_json, "proven": settler.settle(doubt).proven}
            for doubt in self._supplied(result)[:LIMIT]
            if (at := doubt.answer) is not None
        ]
        return {**served, "supplied": proofs} if proofs else served

    def _decide(
        self,
        result: RerunResult,
        doubtful: Sequence[Suspect],
        judged: Judged,
        rows: Sequence[Row],
        settler: Settler,
        unclaimed: int,
    ) -> tuple[Outcome, str, Reason | None]:
        doubts = [*of_reads(doubtful), *self._supplied(result)]
        first = compare.first_divergence(rows)
        if first is not None:
            reason = self._excuse(result, doubtful, doubts, settler, rows)
            if reason is not None:
                return Outcome.IRREPRODUCIBLE, reason.text, reason
            return Outcome.DIVERGED, headline_of(first), None
        confined = missing.confined_unproven(result, (*judged.unseen, *judged.loose))
        if confined is not None:
            return Outcome.IRREPRODUCIBLE, confined.text, confined
        unjudged = missing.unasked(self.plan, result, self.target.all_attempts) or missing.unattributed(unclaimed)
        if unjudged is not None:
            return Outcome.IRREPRODUCIBLE, unjudged.text, unjudged
        open_doubt = settler.unsettled(doubts)
        if open_doubt is not None:
            reason = missing.unproven(self.plan, *open_doubt)
            return Outcome.IRREPRODUCIBLE, reason.text, reason
        return Outcome.REPRODUCED, "The same run again: everything that could be compared is equal.", None

    def _excuse(
        self,
        result: RerunResult,
        doubtful: Sequence[Suspect],
        doubts: Sequence[Doubt],
        settler: Settler,
        rows: Sequence[Row],
    ) -> Reason | None:
        """Why a difference need not be the code's doing; None when it is."""
        confined = missing.confined_difference(result)
        if confined is not None:
            return confined
        if doubtful:
            return missing.drift(self.plan, doubtful)
        if missing.only_retries(rows):
            return missing.retries()
        supplied = next((d for d in doubts if d.answer is not None and not settler.settle(d).proven), None)
        return None if supplied is None else missing.supplied(supplied)

    def _supplied(self, result: RerunResult) -> list[Doubt]:
        used = {(tool.tool, tool.args_json) for tool in result.tools if tool.outcome == ToolRun.SUPPLIED}
        return of_answers(self.plan.request, used)


def _read(suspect: Suspect, vindicated: frozenset[str]) -> Mapping[str, Any]:
    """A doubtful read; only a proven one vouches for other builds: a value that nothing used may be any other."""
    return {"read": suspect.name, "why": suspect.why, "vindicated": suspect.name in vindicated, "proven": False}


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
