"""Whether a child's answer hangs together: it comes from code that nobody vouches for, and is read as if it did not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.flink.inside.messages import Call, Ending, InputResult, Outcome, Request, Result

_DEEPEST: Final = 200


def problem(request: Request, result: Result) -> str | None:
    """What is wrong with an answer to a request; None where nothing is."""
    if result.refusal:
        return None if not result.inputs else "it refuses to run, and has results"
    asked = [(one.key, one.seq) for one in request.inputs]
    if asked != [(one.key, one.seq) for one in result.inputs]:
        return "its inputs are not those that it was given"
    return next((what for one in result.inputs for what in _problems(one)), None)


def _problems(one: InputResult) -> Iterator[str]:
    count = len(one.events)
    for index, sent in enumerate(one.events):
        if sent.parent is not None and not 0 <= sent.parent < index:
            yield "an event comes from one that is none before it"
    for call in one.calls:
        if (call.event is not None and not 0 <= call.event < count) or not 0 <= call.sent <= count:
            yield "a call belongs to no event"
    if one.ending is Ending.MISSED and not any(call.outcome is Outcome.MISSED for call in one.calls):
        yield "it ended for want of an answer, and asked for none"
    if one.memory and not _is_tree(one.memory):
        yield "its memory is none"
    if not all(map(_is_request, one.calls)):
        yield "a model call has no request"


def _is_tree(wire: Any, depth: int = 0) -> bool:
    if not (isinstance(wire, list) and len(wire) == 2 and depth < _DEEPEST):
        return False
    kind, held = wire
    return kind == "v" or (
        kind == "o" and isinstance(held, dict) and all(_is_tree(inner, depth + 1) for inner in held.values())
    )


def _is_request(call: Call) -> bool:
    told = call.request
    return call.kind != "model" or (isinstance(told, dict) and isinstance(told.get("messages"), list))
