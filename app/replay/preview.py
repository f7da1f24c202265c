"""The plan of a re-run before it starts: what it would be fed with, and what it could be held against.

Needs no agent code and runs nothing: a person reads it beside the Replay button.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from app.replay import compare
from app.replay.answers import ATTRIBUTE_ATTEMPTS
from app.replay.attempts import Attempt, Category
from app.replay.engine import bare_ref, find, in_order, refuse_tangled, refuse_unanswerable, unusable
from app.replay.evidence import Evidence, EvidenceFile, UnusableEvidence, load
from app.replay.forward import Forward
from app.replay.images import Fit, State
from app.replay.misses import obtained
from app.replay.plan import Plan, Planner
from app.replay.rerun_pb2 import AgentCode, RerunRequest
from app.replay.runner import Finished
from app.replay.select import RESUME, Target, Unanswerable
from app.replay.verdict import Outcome
from app.wire.records import Continuation, EventType

# Hooks are asked of a build later; whether they are needed is told here.
_ANY: Final = AgentCode(registry="any:any", decode="any:any")
_USAGE: Final = "gen_ai.usage.input_tokens"


def preview(files: Sequence[EvidenceFile], seq: int | None = None) -> dict[str, Any]:
    """Plan the re-run that `engine.replay` would do on these files, as JSON.

    `Plan.as_json` and more: `attempt`, `candidates` (attempts that share the clock), `forward` (the way to a state
    that no snapshot holds; None where none is needed), `answers.by_source` and `own_by_source` (those that the attempt
    itself obtained), `responses` (how many it obtained, and how many of them were captured), `surfaces` (what would be
    compared, and why not), `hooks` that a build must have. Raises Unanswerable for evidence that no build could be
    replayed on.
    """
    try:
        evidence = load(files)
    except UnusableEvidence as error:
        raise Unanswerable(Outcome.UNUSABLE, unusable(error.problems)) from error
    target = find(evidence, seq)
    planner = Planner(evidence, target, _ANY)
    if target.pending is not None:
        return _told(planner.plan_pending(target.pending), target, None)
    attempt = in_order(evidence, target)[0]
    refuse_unanswerable(attempt, _ANY)
    refuse_tangled(target, attempt)
    members = planner.members_of(attempt, target.kind)
    state, way = _state(evidence, target, planner, attempt)
    plan = planner.plan(attempt, target.kind, members, state, target.intent_id)
    return _told(plan, target, way)


def _state(
    evidence: Evidence, target: Target, planner: Planner, attempt: Attempt
) -> tuple[State, dict[str, Any] | None]:
    """The state that the engine would run from, and how it would be reached where none was captured."""
    counter = planner.counter(attempt, target.kind, target.intent_id)
    captured = planner.captured(attempt, target.kind, counter)
    if captured is not None:
        return captured, None
    nearest = planner.images(attempt.life).nearest(counter)
    route = Forward(evidence, target, planner, _Nobody()).route(attempt.life, counter)
    if route is None:
        return nearest, None
    base, steps = route
    way = {
        "from": base.source,
        "counter": base.counter,
        "steps": [step.describe() for step in steps],
        "else": {"fit": str(nearest.fit), "source": nearest.source, "counter": nearest.counter},
    }
    expected = Continuation(
        seq=attempt.seq,
        step_index=attempt.entry_step or 0,
        pending_intent_ids=[target.intent_id],
        suspended_at_ms=1,
    )
    wait = expected if target.kind == RESUME else None
    return State(Fit.FORWARD, counter, base.memory, base.cache, wait, f"re-run from {base.source}"), way


class _Nobody:
    """A runner that is never asked: a preview runs nothing."""

    def run(self, request: RerunRequest) -> Finished:
        raise AssertionError("a preview runs nothing")


def _told(plan: Plan, target: Target, way: dict[str, Any] | None) -> dict[str, Any]:
    attempt = plan.attempt
    told = plan.as_json()
    sources = Counter(plan.answers.sources.values())
    reasons = Counter(reason.rpartition(" (")[0] for reason in plan.answers.withheld.values())
    own = Counter(plan.answers.sources[key] for key in plan.answers.own)
    answers = {
        **told["answers"],
        "by_source": dict(sources.most_common()),
        "own_by_source": dict(own.most_common()),
        "not_served": dict(reasons.most_common()),
    }
    wanted = len(obtained(plan))
    types = set() if attempt is None else {int(record.event.event_type) for record in attempt.records}
    return {
        **told,
        "answers": answers,
        "attempt": None if attempt is None else bare_ref(attempt, target.kind).as_json(),
        "candidates": len(target.candidates),
        "forward": way,
        "responses": {"obtained": wanted, "captured": min(len(plan.answers.own), wanted)},
        "surfaces": [{"name": name, "compared": not why, "detail": why} for name, why in _surfaces(plan, attempt)],
        "hooks": [] if attempt is None else list(_hooks(attempt, types)),
        "notes": [*target.notes, *plan.notes],
    }


def _hooks(attempt: Attempt, types: set[int]) -> Iterator[str]:
    """What the recording pipeline had, so that a build without it cannot repeat it."""
    told = [record.event.attributes for record in attempt.records]
    if any(_USAGE in attributes and ATTRIBUTE_ATTEMPTS not in attributes for attributes in told):
        yield "decode"
    if EventType.TOOL_CALL in types:
        yield "registry"


def _surfaces(plan: Plan, attempt: Attempt | None) -> Iterator[tuple[str, str]]:
    """What the record allows to be compared; the second says why not, and is empty where it can be."""
    if attempt is None:
        return
    originals = plan.originals
    yield compare.STATUS, ""
    yield compare.TRACE, ""
    emitted = [r.event for r in attempt.records if r.event.event_type == EventType.INTENT_EMITTED]
    lacking = sum(not originals.payload(event) for event in emitted)
    why = f"the arguments of {lacking} of {len(emitted)} are in no snapshot and in no intents stream"
    yield compare.INTENTS, why if lacking else ""
    yield compare.OUTPUTS, "no outputs stream is here" if originals.outputs is None else ""
    if attempt.category is Category.FAILURE:
        yield compare.ERRORS, "" if originals.details else "no dead letter of this attempt is here"
    yield compare.MEMORY, _memory(plan, attempt)
    if attempt.status == "suspended":
        missing = "no snapshot was taken while this attempt was suspended"
        yield compare.CONTINUATION, missing if originals.continuation is None else ""


def _memory(plan: Plan, attempt: Attempt) -> str:
    if not attempt.committed:
        return "a failed attempt commits nothing"
    if plan.originals.memory is None:
        return f"no snapshot with counter {plan.counter + 1}"
    if not plan.state.fit.exact:
        return f"no snapshot with counter {plan.counter}; only keys that the re-run sets are held against the one after"
    return ""
