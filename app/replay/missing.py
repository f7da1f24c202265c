"""Why a run could not be judged: the input that is missing, the limit that was hit, the bad invocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.replay import misses
from app.replay.attempts import Attempt
from app.replay.doubts import Doubt
from app.replay.plan import Plan
from app.replay.rerun_pb2 import RerunResult, ToolRun
from app.replay.runner import Finished
from app.replay.suspicion import BATCH, ENVELOPE, SERVING, Suspect, Weight
from app.replay.verdict import Outcome, Reason, Row


@dataclass(frozen=True)
class Stop:
    """An outcome other than a comparison, and its reason."""

    outcome: Outcome
    reason: Reason


_LIMITS: Final = {
    "time_limit": "did not end within its time limit on the wall clock",
    "cpu_limit": "used up its processor time",
    "memory_limit": "ran into its memory limit",
    "result_too_large": "produced more than a result may hold",
}


def from_ending(finished: Finished) -> Stop:
    """The reason of a run that left no result."""
    detail = finished.detail
    if finished.ending in _LIMITS:
        return Stop(
            Outcome.IRREPRODUCIBLE,
            Reason(
                finished.ending,
                f"The re-run {_LIMITS[finished.ending]}. {detail}".strip(),
                "Look for a loop or a wait in the agent; raise the limit if it needs more.",
            ),
        )
    if finished.ending == "refused_confinement":
        return Stop(
            Outcome.UNUSABLE,
            Reason(
                "not_confined",
                f"The agent was not run, because it could not be confined: {detail}",
                "Run on a kernel that offers the measure, or say `unconfined = true` under [sandbox].",
            ),
        )
    return Stop(
        Outcome.DIVERGED,
        Reason(
            finished.ending,
            f"The re-run ended its own process ({finished.ending.replace('_', ' ')}); the recorded"
            f" attempt did not. {detail}".strip(),
            "Look for os._exit, a native crash or a fork in the agent.",
        ),
    )


def from_result(plan: Plan, result: RerunResult, doubtful: Sequence[Suspect]) -> Stop | None:
    """The reason of a run that cannot be compared; None when it can. `doubtful` are reads it cannot vouch for."""
    if result.outcome == RerunResult.REFUSED:
        return Stop(
            Outcome.UNUSABLE,
            Reason("bad_invocation", result.refusal, "Correct the reference and run again."),
        )
    if result.outcome == RerunResult.UNMIGRATABLE:
        return Stop(
            Outcome.IRREPRODUCIBLE,
            Reason("migration_gap", result.refusal, "Register the missing migration step."),
        )
    if result.batch_unknown:
        return batch_unknown()
    confined = _confined_tool(result)
    if result.outcome == RerunResult.CACHE_MISS:
        reason = misses.reason_of(plan, result, doubtful)
        if confined is not None:
            reason = confined
        return Stop(Outcome.IRREPRODUCIBLE, reason)
    if confined is not None and result.outcome == RerunResult.FAILED:
        return Stop(Outcome.IRREPRODUCIBLE, confined)
    if result.longterm_read:
        return Stop(
            Outcome.IRREPRODUCIBLE,
            Reason(
                "longterm_read",
                "The agent read its long-term store, which no snapshot captures.",
                "Nothing can be done for this attempt: the store's rows at that time are not recorded.",
            ),
        )
    if result.outcome == RerunResult.TIMED_OUT:
        return Stop(
            Outcome.IRREPRODUCIBLE,
            Reason(
                "activation_timeout",
                "The re-run hit the activation's own time limit, which is read from a wall clock.",
                "Compare with a machine that is less loaded, or raise activation_timeout_s.",
            ),
        )
    return None


def recorded_timeout() -> Stop:
    """An attempt that the pipeline timed out: what a wall clock decided cannot be run again."""
    return Stop(
        Outcome.IRREPRODUCIBLE,
        Reason(
            "recorded_timeout",
            "The pipeline timed this attempt out; when a wall clock strikes is not reproducible.",
            "Replay the attempt that came after it, if it was retried.",
        ),
    )


def _confined_tool(result: RerunResult) -> Reason | None:
    for tool in result.tools:
        if tool.outcome == ToolRun.CONFINED:
            return Reason(
                "tool_confined",
                f"The read-only tool {tool.tool} could not run confined: {tool.detail}",
                "Run it where it may reach what it reads, or hand in its recorded answer.",
                {"tool": tool.tool, "arguments": tool.args_json[:2000]},
            )
    return None


def confined_difference(result: RerunResult) -> Reason | None:
    """A difference that the sandbox itself may have caused: refusals, or its memory limit."""
    if result.outcome == RerunResult.FAILED and result.error_type == "MemoryError":
        return Reason(
            "memory_limit",
            "The re-run ran out of the memory that the sandbox gives it.",
            "Raise memory_mib under [sandbox] and run again.",
        )
    confined = _confined_tool(result)
    if confined is not None:
        return confined
    if result.refusals:
        return _refused(result, "The re-run differs, and the sandbox refused something it did")
    return None


def confined_unproven(result: RerunResult, unseen: Sequence[str]) -> Reason | None:
    """No difference, but what the sandbox refused may reach something that was not compared."""
    if not result.refusals or not unseen:
        return None
    return _refused(result, "No difference shows, but the sandbox refused something and not all was compared")


def _refused(result: RerunResult, what: str) -> Reason:
    return Reason(
        "confined",
        f"{what}: it {result.refusals[0]}.",
        "An agent that reaches outside its context cannot be re-run exactly.",
        {"refusals": list(result.refusals)},
    )


def drift(plan: Plan, doubtful: Sequence[Suspect]) -> Reason:
    """A difference after reads that the state cannot vouch for, or with another input that may not be the recorded."""
    first = next((suspect for suspect in doubtful if suspect.is_read), doubtful[0])
    if not first.is_read and first.weight is not Weight.KIND:
        return Reason(
            "unsure_input",
            f"The re-run differs, but {first.name} may not be what it was: {first.why}.",
            _REMEDIES.get(first.operation, f"Hand in a snapshot with counter {plan.counter}."),
            {"inputs": [{"input": s.name, "why": s.why} for s in doubtful[:50]]},
        )
    return Reason(
        "memory_drift",
        f"The re-run differs, but it read memory that is not known as it was: {first.name}, where {first.why}.",
        f"Hand in a snapshot with counter {plan.counter}, exported just before this activation.",
        {"reads": [{"read": s.name, "why": s.why} for s in doubtful[:50]]},
    )


_REMEDIES: Final = {
    BATCH: "Hand in every envelope of the batch, in arrival order (--event, repeated).",
    ENVELOPE: "Hand in the traces of every attempt at this time.",
    SERVING: "Nothing can be done: how the answers were served is not known in full.",
}


def unsteady() -> Reason:
    """The code gives another result from the same inputs."""
    return Reason(
        "unsteady",
        "The same code on the same inputs came out differently when it was run once more: its result hangs on a clock,"
        " on chance, or on something that it keeps between runs.",
        "Nothing can be done for this attempt; have the agent take times and chance from its event.",
    )


def unclear_times() -> Reason:
    """Nothing differs but times in a framework's state, and nothing tells whether they were read off the clock."""
    return Reason(
        "unclear_times",
        "Nothing differs but times in the state that the agent's framework keeps for itself. They may have been read"
        " off the clock, which two runs one after the other may read alike, or be the agent's own.",
        "Nothing can be done for this attempt; times of a microsecond's grain can be told apart.",
    )


def concurrent() -> Reason:
    """Several answers were waited for at one time, and what they led to hangs on the order in which they came."""
    return Reason(
        "answer_order",
        "Several model answers were waited for at one time, and what came of them may hang on the order in which they"
        " came back, which nothing records.",
        "Read answers in the order of their questions, as asyncio.gather gives them.",
    )


def unproven(plan: Plan, doubt: Doubt, product: str) -> Reason:
    """No difference, but something unseen hangs on a value that may have been another one."""
    what = "an intent's arguments" if product.startswith("args:") else f"the {product}"
    return Reason(
        "unproven_read" if doubt.suspect is not None else "unproven_answer",
        f"No difference shows, but {what} cannot be compared and may depend on {doubt.name}, where {doubt.why}.",
        f"Hand in a snapshot with counter {plan.counter}, or the intents and outputs streams.",
        {"read": doubt.name, "product": product},
    )


def supplied(doubt: Doubt) -> Reason:
    """A difference after a supplied tool answer that nothing recorded proves."""
    return Reason(
        "supplied_answer",
        f"The re-run differs, but the answer of {doubt.name} was supplied and no recorded request carries it.",
        "Check the supplied answer; without proof it cannot be told from a change of the code.",
        {"answer": doubt.name},
    )


def unasked(plan: Plan, result: RerunResult, attempts: Sequence[Attempt]) -> Reason | None:
    """A response that the attempt obtained and this run never asked for: it took another path to the same trace."""
    clocks = [attempt.clock_ms for attempt in attempts if attempt is not plan.attempt]
    if plan.clock_ms in clocks:
        return None  # the response may be the other attempt's
    consumed = {answer.cache_key for answer in result.served}
    left = [key for key in plan.answers.own if key not in consumed]
    if not left:
        return None
    return Reason(
        "unasked_response",
        "No difference shows, but the recorded attempt obtained a model response that this run never asked for.",
        "Replay with the build that ran: this code does not ask the same questions.",
        {"cache_keys": left[:20]},
    )


def unattributed(unclaimed: int) -> Reason | None:
    """Recorded events that may be this attempt's or another's, and that the re-run did not emit."""
    if not unclaimed:
        return None
    return Reason(
        "unattributed_events",
        f"No difference shows, but {unclaimed} recorded events may belong to this attempt or to another of its span.",
        "Nothing can be done: the agent staged them without a time that tells the attempts apart.",
    )


def only_retries(rows: Sequence[Row]) -> bool:
    """Whether all that differs is how often the provider was asked, which failed tries do not record."""
    changed = [field for row in rows for field in row.fields if field.state == "changed"]
    return (
        bool(changed)
        and all(
            field.name == "attributes.beam_agents.attempts" and field.recorded not in (None, "0") for field in changed
        )
        and not any(row.recorded is None or row.replayed is None for row in rows)
    )


def retries() -> Reason:
    return Reason(
        "provider_retries",
        "The recorded calls took several attempts at the provider, and failed ones leave nothing that could be served.",
        "All else is equal; compare the rows.",
    )


def batch_unknown() -> Stop:
    """A failed attempt under adaptive batching: its ERROR does not say which envelopes the flush took."""
    return Stop(
        Outcome.IRREPRODUCIBLE,
        Reason(
            "batch_unknown",
            "The agent is configured for adaptive batches, and a failed flush does not record which envelopes it took.",
            "Nothing can be done: only a committed flush says how many it took.",
        ),
    )
