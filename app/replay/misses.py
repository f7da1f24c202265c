"""Why a model request has no recorded response: one reason of several, each excluding the others.

Captured entries are digests of requests, so a request that is near cannot be read back; but a digest can be
searched for. One part of the missed request is replaced at a time (seq, key, model, sampling, tools, messages),
and where that gives a captured key, that part is what differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from app.replay.plan import Plan
from app.replay.rerun_pb2 import CacheMiss, RerunResult, ToolRun
from app.replay.suspicion import Suspect
from app.replay.verdict import Reason
from app.wire import identity
from app.wire.records import EventType, TraceEvent

PARTS: Final = ("seq", "key", "model", "params", "tools", "messages")
NAMES: Final = {"params": "sampling", "key": "entity key"}
SHOWN: Final = 20_000
SEARCHED_SEQS: Final = 1_000

_TOGETHER: Final = "Check that the snapshot and the envelope belong to one activation."
_AGAIN: Final = "Hand in a snapshot that was exported soon after the attempt."


def reason_of(plan: Plan, result: RerunResult, doubtful: Sequence[Suspect]) -> Reason:
    """The reason of a missed request, the nearest captured entry, and the part of the request that differs.

    `doubtful` are the memory reads before it that the state cannot vouch for.
    """
    miss = result.miss
    request = json.loads(miss.request_json)
    part, near, recorded = _near(plan, request)
    if near is None and plan.attempt is not None:
        consumed = {answer.cache_key for answer in result.served}
        near = next((key for key in plan.answers.own if key not in consumed), None)
    code, why, remedy = _classify(plan, result, part, near, doubtful)
    details: dict[str, Any] = {
        "cache_key": miss.cache_key,
        "step_index": miss.step_index,
        "request": request if len(miss.request_json) <= SHOWN else {"head": miss.request_json[:SHOWN]},
    }
    if near is not None:
        details["nearest"] = {"cache_key": near, "source": _source(plan, near)}
    if part is not None:
        details["differs"] = NAMES.get(part, part)
        details["recorded"] = recorded
    return Reason(code, f"A model request at step {miss.step_index} has no recorded response: {why}.", remedy, details)


def _classify(
    plan: Plan, result: RerunResult, part: str | None, near: str | None, doubtful: Sequence[Suspect]
) -> tuple[str, str, str]:
    answers, miss = plan.answers, result.miss
    withheld = answers.withheld.get(miss.cache_key)
    if miss.reason == CacheMiss.DIGEST_ONLY:
        why = "only the digest of the response was kept; the response was too large for the cache"
        return "digest_only", why, "Nothing can be done for this attempt: the response was never stored."
    if miss.reason == CacheMiss.EXPIRED:
        return "expired", "the captured response had expired at the attempt's clock", _AGAIN
    if withheld is not None:
        return "withheld", f"a captured response cannot be the one it got: {withheld}", _AGAIN
    elsewhere = f"the same request was recorded for another {NAMES.get(part or '', part)}"
    if part == "key":
        return "wrong_key", elsewhere, _TOGETHER
    if plan.attempt is not None and not plan.attempt.committed:
        why = "a failed attempt discards the responses that it obtained"
        return "uncommitted", why, "Replay the attempt that succeeded, if it was retried."
    if part not in (None, "seq") and near is not None:
        return (
            "request_changed",
            f"this code asks with another {NAMES.get(part, part)} than was recorded",
            ("Replay with the build that ran, or take this as what the changed code does."),
        )
    wanted = len(obtained(plan))
    if not answers.own and not any(snapshot.counter > plan.counter for snapshot in plan.images.bound):
        why = "every snapshot of this life was taken before the attempt committed its responses"
        if not plan.images.bound:
            why = "there is no snapshot of this life of the key"
        return "no_responses", why, "Export the key after the attempt, before 64 newer calls or 6 hours."
    if len(answers.own) < wanted:
        why = (
            f"{len(answers.own)} of the {wanted} responses that it obtained were captured; the others had been"
            " evicted, or purged after 6 hours"
        )
        return "evicted", why, "Hand in an earlier snapshot as well: one taken before newer calls evicted them."
    if part == "seq":
        return "wrong_seq", elsewhere, _TOGETHER
    if doubtful:
        first = doubtful[0]
        why = f"it was built from memory that is not known as it was: {first.name}, where {first.why}"
        return "memory_drift", why, f"Hand in a snapshot with counter {plan.counter}, exported just before."
    why = "all responses that it obtained were captured, so this code asks something else than was recorded"
    tools = sorted({tool.tool for tool in result.tools if tool.outcome == ToolRun.EXECUTED})
    if tools:
        why += f", or a tool that was run again answers differently now ({', '.join(tools[:5])})"
    return "request_changed", why, "Replay with the build that ran, or take this as what the changed code does."


def _near(plan: Plan, request: dict[str, Any]) -> tuple[str | None, str | None, Any]:
    """The one part of the request whose replacement gives a captured key, that key, and what replaced it."""
    captured = {*plan.answers.sources, *plan.answers.withheld}
    for part in PARTS:
        for value in _replacements(plan, part, request):
            key = identity.cache_key(identity.canonical_json({**request, part: value}))
            # Another activation may have asked the very same; only what none of them got is misplaced.
            if key in captured and not (part == "seq" and (value, plan.answers.created.get(key)) in plan.ran):
                return part, key, value
    return None, None, None


def _replacements(plan: Plan, part: str, request: dict[str, Any]) -> Iterator[Any]:
    own = request[part]
    match part:
        case "seq":
            yield from (seq for seq in range(min(plan.counter + 2, SEARCHED_SEQS)) if seq != own)
        case "key":
            yield from (key for key in plan.known_keys if key != own)
        case "model":
            yield from (model for model in _models(plan) if model != own)
        case "params":
            yield from _near_params(own)
        case "tools":
            empty: tuple[Any, ...] = (None, [])
            yield from (value for value in empty if value != own)
        case "messages" if isinstance(own, list):
            yield from (own[:-1], own[1:])


def _near_params(params: Any) -> Iterator[Any]:
    """Sampling parameters as they are often written otherwise: absent, empty, int for float, one left out."""
    empty: tuple[Any, ...] = (None, {})
    yield from (value for value in empty if value != params)
    if not isinstance(params, dict):
        return
    for name, value in params.items():
        yield {key: other for key, other in params.items() if key != name}
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            yield {**params, name: float(value)}
        elif isinstance(value, float) and value.is_integer():
            yield {**params, name: int(value)}


def _calls(plan: Plan) -> list[TraceEvent]:
    if plan.attempt is None:
        return []
    return [record.event for record in plan.attempt.records if record.event.event_type == EventType.LLM_CALL]


def obtained(plan: Plan) -> list[TraceEvent]:
    """The recorded calls of an attempt that the provider answered."""
    return [event for event in _calls(plan) if event.attributes.get("beam_agents.cache_hit") == "false"]


def _models(plan: Plan) -> list[str]:
    return sorted({event.attributes.get("gen_ai.request.model", "") for event in _calls(plan)})


def _source(plan: Plan, key: str) -> str:
    return plan.answers.sources.get(key) or plan.answers.withheld.get(key, "")
