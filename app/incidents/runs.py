"""The rules of runs: who may ask for one, which build is offered, how a worker takes one and how it ends.

Like `service`, which passes these on: functions take the caller's session and never commit.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.incidents import pool, rows
from app.incidents import repository as db
from app.incidents.audit import Action, record_event
from app.incidents.errors import QueueFull, UnknownBuild, WrongState, found
from app.incidents.flink_evidence import KIND as RECORDED_RUN
from app.incidents.inputs import NOTHING, InputRefused, RunInputs, answers_text, decided
from app.incidents.kept import evidence_files
from app.incidents.ledger import summary_of
from app.incidents.models import Incident, Run, RunKind, RunState
from app.incidents.redaction import outline
from app.incidents.store import ReadSession, WriteSession
from app.replay.verdict import Report


class LivedBuild(Protocol):
    """What is asked of a configured build to suggest one; times are epoch milliseconds, None where not told."""

    @property
    def name(self) -> str: ...
    @property
    def live_from_ms(self) -> int | None: ...
    @property
    def live_to_ms(self) -> int | None: ...


def suggest_build(builds: Sequence[LivedBuild], incident: Incident) -> str | None:
    """Name the build to offer first: the hinted one, else the one that was live at the attempt's clock.

    Of several that were live, the one that had become so last. None when no build says that it was.
    """
    if incident.build_hint is not None and incident.build_hint in {build.name for build in builds}:
        return incident.build_hint
    clock = incident.clock_ms
    if clock is None:
        return None
    live = [
        build
        for build in builds
        if build.live_from_ms is not None
        and build.live_from_ms <= clock
        and (build.live_to_ms is None or clock < build.live_to_ms)
    ]
    return max(live, key=lambda build: build.live_from_ms or 0).name if live else None


async def request_replay(
    session: WriteSession,
    incident: Incident,
    build: str,
    *,
    who: str,
    known: Collection[str],
    inputs: RunInputs = NOTHING,
    most: int | None = None,
    trace_parent: str | None = None,
) -> Run:
    """Create a run and queue it, in the caller's transaction; `known` names the builds of the configuration.

    The run holds the evidence that the incident has now, and `inputs` beside it. Raises `UnknownBuild`, `QueueFull`
    where `most` runs wait already, and `InputRefused` for a decision that nothing waits for, or a what-if that is none.
    """
    _check_build(build, known)
    _check_what_if(incident, inputs)
    await _check_room(session, most)
    if inputs.decision is not None:
        await _check_decision(session, incident, inputs.decision)
    found(await db.incident(session, incident.id, lock=True), "incident", incident.id)
    run = await db.add_run(
        session,
        incident.id,
        build=build,
        kind=RunKind.WHAT_IF if inputs.what_if or inputs.decision is not None else RunKind.REPLAY,
        decision=None if inputs.decision is None else dict(inputs.decision),
        tool_answers=[dict(answer) for answer in inputs.tool_answers] or None,
        created_by=who,
        trace_parent=trace_parent,
    )
    await db.enqueue(session, run.id, build)
    record_event(session, Action.RUN_REQUESTED, who=who, subject=run.id, detail=_audited(run, inputs))
    return run


def _check_what_if(incident: Incident, inputs: RunInputs) -> None:
    if not inputs.what_if:
        return
    what, expected = "models are asked anew only for a recorded run of an event log", "an incident on such a run"
    if incident.kind != RECORDED_RUN:
        raise InputRefused("what_if", what, expected, "Here a what-if tries a decision on an intent that waits.")
    if inputs.decision is not None:
        what = "an event log holds no intent that a decision could be about"
        raise InputRefused("decision", what, "a what-if without a decision", "Leave it out.")


async def _check_decision(session: ReadSession, incident: Incident, decision: Mapping[str, Any]) -> None:
    """Refuse what nothing waits for, before anything is locked: evidence may be large."""
    kept = await db.evidence_of(session, incident.id)
    files = await evidence_files(session, incident, [file.id for file in kept])
    await asyncio.to_thread(decided, files, decision)


def _audited(run: Run, inputs: RunInputs) -> dict[str, Any]:
    """What the trail keeps of a request: the decision itself, and which answers were supplied, by digest."""
    detail: dict[str, Any] = {"build": run.build}
    if inputs.decision is not None:
        told = dict(inputs.decision)
        if "result" in told:
            told["result"] = f"sha256:{hashlib.sha256(told['result'].encode()).hexdigest()}"
        detail |= {"decision": told}
    if run.kind != RunKind.REPLAY:
        detail |= {"kind": run.kind}
    if inputs.tool_answers:
        digest = hashlib.sha256(answers_text(inputs.tool_answers).encode()).hexdigest()
        detail["tool_answers"] = {
            "count": len(inputs.tool_answers),
            "tools": sorted({answer["tool"] for answer in inputs.tool_answers}),
            "sha256": digest,
        }
    return detail


def inputs_of(run: Run) -> RunInputs:
    """What a run was asked with; needs its `tool_answers`, which `get_run` and `claim_run` load."""
    asked_anew = run.kind == RunKind.WHAT_IF and run.decision is None
    return RunInputs(tuple(run.tool_answers or ()), run.decision, asked_anew)


async def retry_run(
    session: WriteSession, run_id: str, *, who: str, known: Collection[str], most: int | None = None
) -> Run:
    """Queue a run again that ended without a verdict. Raises `NotFound`, `WrongState`, `UnknownBuild`, `QueueFull`."""
    run = found(await db.run(session, Run.id == run_id, lock=True), "run", run_id)
    if not run.run_state.retryable:
        raise WrongState("retry", run.state, "failed, lost, cancelled or timed out")
    _check_build(run.build, known)
    await _check_room(session, most)
    run.state = RunState.QUEUED
    run.version += 1
    run.started_at = run.finished_at = run.error = run.error_outline = run.worker = None
    await session.flush()
    await db.enqueue(session, run.id, run.build)
    record_event(session, Action.RUN_RETRIED, who=who, subject=run.id, detail={"attempt": run.attempt})
    return run


async def cancel_run(session: WriteSession, run_id: str, *, who: str) -> Run:
    """Cancel a queued or running run; what its worker still finds is not recorded. Raises `NotFound`, `WrongState`."""
    run = found(await db.run(session, Run.id == run_id, lock=True), "run", run_id)
    if run.run_state.finished:
        raise WrongState("cancel", run.state, "queued or running")
    run.state = RunState.CANCELLED
    run.version += 1
    run.lease_until = None
    run.finished_at = await db.now(session)
    record_event(session, Action.RUN_CANCELLED, who=who, subject=run.id)
    await session.flush()
    return run


async def get_run(session: ReadSession, run_id: str) -> Run:
    """Load one run, its `verdict` and `tool_answers` included. Raises `NotFound`."""
    return found(await db.run(session, Run.id == run_id), "run", run_id)


async def get_run_by_number(session: ReadSession, incident: Incident, number: int) -> Run:
    """Load the n-th run of an incident (from 1), its `verdict` included. Raises `NotFound`."""
    return found(await db.run(session, Run.incident_id == incident.id, Run.number == number), "run", number)


async def standing_of(session: ReadSession, run_id: str) -> tuple[int, RunState]:
    """Read a run's version and state alone, for whoever follows it. Raises `NotFound`."""
    version, state = found(await db.standing(session, run_id), "run", run_id)
    return version, RunState(state)


async def runs_of(session: ReadSession, incident: Incident) -> list[Run]:
    """List an incident's runs, newest first, without their verdicts."""
    return await db.runs_of(session, incident.id)


# The worker's side ---------------------------------------------------------------------------------------------------


async def claim_run(session: WriteSession, run_id: str, *, worker: str, lease_s: float) -> Run | None:
    """Take a queued run: its attempt rises and a lease begins. None when there is nothing to take (any more)."""
    return await db.claim(session, run_id, worker, lease_s)


@dataclass(frozen=True, slots=True)
class Voucher:
    """The run that reproduced after a doubtful read, and so showed that it read the right value."""

    number: int
    build: str


async def vouchers(session: ReadSession, run: Run) -> dict[str, Voucher]:
    """Which doubtful reads other runs that reproduced on this same evidence have shown to be right, and which runs.

    A run that reproduced has read the right values; another build that differs after reading them differs for good.
    """
    told: dict[str, Voucher] = {}
    for number, build, reads in await db.reproduced_reads(session, run.incident_id, run.evidence_ids):
        for read in reads:
            if read.get("proven"):
                told.setdefault(read["read"], Voucher(number, build))
    return told


async def vindicated_reads(session: ReadSession, run: Run) -> frozenset[str]:
    """Name the doubtful reads that runs which reproduced on this same evidence have shown to be right."""
    return frozenset(await vouchers(session, run))


async def awaits_others(session: ReadSession, run: Run) -> bool:
    """Whether an earlier run over the same evidence may still vouch for what this one read."""
    return await db.unfinished_before(session, run)


async def heartbeat(session: WriteSession, run_id: str, attempt: int, *, lease_s: float) -> bool:
    """Extend the lease of attempt `attempt`; False when the run is not its worker's any more (cancelled, lost)."""
    return await db.extend_lease(session, run_id, attempt, lease_s)


async def finish_run(
    session: WriteSession, run_id: str, attempt: int, report: Report, *, build_digest: str | None = None
) -> bool:
    """Record verdict, rows and ledger of attempt `attempt`; False, and nothing written, when it is no longer ours."""
    verdict = report.verdict
    values = {
        "state": RunState.DONE,
        "outcome": str(verdict.outcome),
        "exit_code": verdict.exit_code,
        "headline": verdict.headline,
        "first_divergence": verdict.first_divergence,
        "counts": dict(verdict.counts),
        "ledger": summary_of(report.ledger).as_json() if report.ledger else None,
        "verdict": verdict.as_json(),
        "build_digest": build_digest,
    }
    if not await db.end(session, run_id, attempt, values):
        return False
    await rows.add_rows(session, run_id, report.rows)
    await rows.add_ledger(session, run_id, report.ledger)
    return True


async def fail_run(session: WriteSession, run_id: str, attempt: int, error: str) -> bool:
    """Record that the tool itself crashed in attempt `attempt`, with the report that a person can send us."""
    values = {"state": RunState.FAILED, "error": error, "error_outline": outline(error)}
    return await db.end(session, run_id, attempt, values)


async def time_out_run(session: WriteSession, run_id: str, attempt: int, error: str) -> bool:
    """Record that attempt `attempt` took longer than a run may."""
    return await db.end(session, run_id, attempt, {"state": RunState.TIMED_OUT, "error": error})


async def lose_run(session: WriteSession, run_id: str, attempt: int, error: str) -> bool:
    """Record that attempt `attempt` was ended from outside, which says nothing about the activation."""
    return await db.end(session, run_id, attempt, {"state": RunState.LOST, "error": error})


async def give_back_run(session: WriteSession, run_id: str, attempt: int) -> bool:
    """Put attempt `attempt` back into the queue, for another worker; False when it is no longer ours."""
    build = await db.give_back(session, run_id, attempt)
    if build is not None:
        await db.enqueue(session, run_id, build)
    return build is not None


async def sweep_lost(session: WriteSession) -> list[str]:
    """Turn running runs whose lease is over into `lost`, and say which; skips rows that others hold locked."""
    return await db.sweep(session, "its worker gave no sign of life; retry it")


async def requeue_forgotten(session: WriteSession, *, older_s: float = 10.0, stalled_s: float = 30.0) -> list[str]:
    """Queue those runs again whose job was lost between the queue and the claim, and say which."""
    orphans = await db.forgotten(session, older_s, stalled_s)
    for run_id, build in orphans:
        await db.enqueue(session, run_id, build)
    return [run_id for run_id, _ in orphans]


async def _check_room(session: ReadSession, most: int | None) -> None:
    if most is not None and await pool.waiting_runs(session, most) >= most:
        raise QueueFull(most)


def _check_build(build: str, known: Collection[str]) -> None:
    if build not in known:
        raise UnknownBuild(build, sorted(known))
