"""The executions inside a run and what caused each: from life-cycle events, or concluded from requests and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.flink.model import Ended, Execution
from app.flink.records import (
    CHAT_REQUEST,
    CHAT_RESPONSE,
    FAILED,
    FINISHED,
    LIFE_CYCLE,
    REUSED,
    STARTED,
    TOOL_REQUEST,
    TOOL_RESPONSE,
    Record,
)

_ENDS = {FINISHED: Ended.SUCCESS, FAILED: Ended.FAILED, REUSED: Ended.REUSED}


def executions_of(records: Sequence[Record]) -> list[Execution]:
    """All executions in the order in which they began; `records` are a run's, in order, each event once."""
    if any(record.execution_id is not None for record in records):
        return _traced(records)
    return list(_concluded(records))


# From life-cycle events ----------------------------------------------------------------------------------------------


def _traced(records: Sequence[Record]) -> list[Execution]:
    held: dict[str, list[Record]] = {}
    for record in records:
        if record.execution_id is not None:
            held.setdefault(record.execution_id, []).append(record)
    emitters = {record.event_id: record.execution_id for record in records if record.type not in LIFE_CYCLE}
    triggers = {known: _trigger(known, of, held) for known, of in held.items()}
    return [_execution(known, of, _parent(of, emitters.get(triggers[known] or ""))) for known, of in held.items()]


def _parent(of: Sequence[Record], cause: str | None) -> str | None:
    """A model or tool call names the action around it; an action follows from whatever sent the event it took."""
    named = next((record.parent_execution_id for record in of if record.parent_execution_id is not None), None)
    return named if named is not None else (None if cause == of[0].execution_id else cause)


def _trigger(known: str, of: Sequence[Record], held: Mapping[str, Sequence[Record]]) -> str | None:
    """The event that an execution took: what it sent names it, else the request of a tool call inside it does."""
    for record in of:
        if record.upstream_event_id is not None:
            return record.upstream_event_id
    for inside in held.values():
        if inside[0].parent_execution_id == known:
            request = inside[0].entity_metadata.get("toolRequestEventId")
            if isinstance(request, str):
                return request
    return None


def _execution(known: str, of: Sequence[Record], parent: str | None) -> Execution:
    started = next((record for record in of if record.type == STARTED), None)
    ended = next((record for record in reversed(of) if record.type in _ENDS), None)
    first = started or of[0]
    open_ = Ended.NOT_RECORDED if started is None else Ended.UNFINISHED
    status = open_ if ended is None else _ENDS[ended.type]
    told: Mapping[str, Any] = {} if ended is None else ended.attributes
    return Execution(
        id=known,
        type=first.entity_type or "execution",
        name=first.entity_name or "",
        status=status,
        parent=parent,
        problem_category=None if ended is None else ended.problem_category,
        error=_text(told.get("errorMessage")),
        error_type=_text(told.get("errorType")),
        started_ns=None if started is None else started.time_ns,
        ended_ns=None if ended is None else ended.time_ns,
        emitted=sum(record.type not in LIFE_CYCLE for record in of),
        metadata=first.entity_metadata,
    )


# Concluded from requests and answers ---------------------------------------------------------------------------------


def _concluded(records: Sequence[Record]) -> Iterator[Execution]:
    answers = {record.request_id: record for record in records if record.type in (CHAT_RESPONSE, TOOL_RESPONSE)}
    asking: str | None = None  # the model call under way: a tool request follows from it
    for record in records:
        if record.type == CHAT_REQUEST:
            asking = record.event_id
            answer = answers.get(record.event_id)
            name = _text(record.attributes.get("model"))
            yield _call(record, record.event_id, "llm", name, None, answer, None)
        elif record.type == TOOL_REQUEST:
            for number, call in enumerate(_calls(record)):
                function = call.get("function")
                name = _text(function.get("name")) if isinstance(function, Mapping) else ""
                answer = answers.get(record.event_id)
                known = _text(call.get("id"))
                yield _call(record, f"{record.event_id}/{known or number}", "tool", name, asking, answer, known)
        elif record.type == CHAT_RESPONSE and record.request_id == asking:
            asking = None


def _call(
    record: Record, known: str, kind: str, name: str, parent: str | None, answer: Record | None, call: str | None
) -> Execution:
    failed = answer is not None and call is not None and _failed(answer, call)
    status = Ended.UNFINISHED if answer is None else Ended.FAILED if failed else Ended.ANSWERED
    return Execution(
        id=known,
        type=kind,
        name=name,
        status=status,
        parent=parent,
        problem_category="tool_call_failed" if failed else None,
        started_ns=record.time_ns,
        ended_ns=None if answer is None else answer.time_ns,
        concluded=True,
    )


def _failed(answer: Record, call: str) -> bool:
    success = answer.attributes.get("success")
    return isinstance(success, Mapping) and success.get(call) is False


def _calls(record: Record) -> list[Mapping[str, Any]]:
    calls = record.attributes.get("tool_calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)
