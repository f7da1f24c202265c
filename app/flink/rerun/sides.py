"""Both sides of a comparison in one form: events without ids, and the tool calls of which the log has no event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.flink.inside.messages import Call, Ending, InputResult, Sent, canonical, message_as_logged
from app.flink.neutral import type_name
from app.flink.records import CHAT_REQUEST, CHAT_RESPONSE, FAILED, INPUT, OUTPUT, TOOL_REQUEST, TOOL_RESPONSE
from app.flink.rerun.recorded import RETRIEVAL_REQUEST, RETRIEVAL_RESPONSE, Recorded
from app.replay.events import Event

TOOL_CALL: Final = "TOOL_CALL"
ERROR: Final = "ERROR"

EVENTS: Final = "events"
REQUESTS: Final = "model requests"
TOOLS: Final = "tool calls"
OUTPUTS: Final = "outputs"
MEMORY: Final = "memory after"

SURFACES: Final = frozenset({EVENTS, REQUESTS, TOOLS, OUTPUTS, MEMORY})

_SURFACES: Final = {
    type_name(CHAT_REQUEST): REQUESTS,
    type_name(TOOL_REQUEST): TOOLS,
    TOOL_CALL: TOOLS,
    type_name(OUTPUT): OUTPUTS,
}


@dataclass(frozen=True, slots=True)
class Item:
    """One event of a side; `event` is its index in the run's events, `call` that of the call it stands for."""

    what: Event
    event: int | None = None
    call: int | None = None


def surface_of(event: Event) -> str:
    """Which surface a row belongs to."""
    return _SURFACES.get(event.type, EVENTS)


def recorded_side(recorded: Recorded, reference: InputResult | None) -> list[Item]:
    """The record; `reference` is a run of the build that made it, for the calls that only such a run can tell."""
    names = dict(recorded.call_names)
    items = [
        Item(_event(one.type, one.attributes, names, one.time_ms, one.upstream_action or ""), index)
        for index, one in enumerate(recorded.records)
    ]
    items += [Item(one) for one in _failure(recorded)]
    return items if reference is None else _with_calls(items, reference.calls)


def _failure(recorded: Recorded) -> Iterator[Event]:
    """How the run failed, where the log tells: the first action that did."""
    for one in recorded.run.records:
        if one.life_cycle and one.type == FAILED and one.entity_type == "action":
            told = str(one.attributes.get("errorType", "")).rpartition(".")[2]
            payload = {"message": canonical(one.attributes.get("errorMessage"))}
            yield Event(ERROR, told, one.entity_name or "", time_ms=one.time_ms, payload=payload)
            return


def replayed_side(result: InputResult, *, calls: bool) -> list[Item]:
    """The re-run; `calls` says whether the other side has those that no event tells of."""
    names: dict[str, str] = {}
    items = [Item(_sent(one, names), index) for index, one in enumerate(result.events)]
    if result.ending is Ending.FAILED:
        payload = {"message": canonical(result.error_message)}
        items.append(Item(Event(ERROR, result.error_type, result.action or "", payload=payload)))
    return _with_calls(items, result.calls) if calls else items


def _with_calls(items: list[Item], calls: Sequence[Call]) -> list[Item]:
    """Put direct tool calls where they happened: after as many events as had been sent by then."""
    merged = list(items)
    placed = 0
    for index, call in enumerate(calls):
        if call.kind == "tool" and call.direct:
            merged.insert(min(call.sent + placed, len(merged)), Item(_called(call), None, index))
            placed += 1
    return merged


def _called(call: Call) -> Event:
    return Event(
        type=TOOL_CALL, label=call.name, about=call.action or "", payload={"arguments": canonical(call.request)}
    )


def _sent(sent: Sent, names: dict[str, str]) -> Event:
    return _event(sent.type, sent.attributes, names, 0, sent.action or "")


def _event(kind: str, attributes: Mapping[str, Any], names: dict[str, str], time_ms: int, about: str) -> Event:
    make = _PAYLOADS.get(kind, _own)
    label, payload = make(attributes, names)
    return Event(type=type_name(kind), label=label, about=about, time_ms=time_ms, payload=payload)


Payload = tuple[str, dict[str, str]]


def _own(attributes: Mapping[str, Any], names: dict[str, str]) -> Payload:
    return "", {name: canonical(value) for name, value in attributes.items()}


def _input(attributes: Mapping[str, Any], names: dict[str, str]) -> Payload:
    return "", {"input": canonical(attributes.get("input"))}


def _output(attributes: Mapping[str, Any], names: dict[str, str]) -> Payload:
    return "", {"output": canonical(attributes.get("output"))}


def _chat_request(attributes: Mapping[str, Any], names: dict[str, str]) -> Payload:
    messages = attributes.get("messages")
    payload = {
        f"messages[{number}]": canonical(nameless(message))
        for number, message in enumerate(messages if isinstance(messages, list) else ())
    }
    payload["prompt_args"] = canonical(attributes.get("prompt_args") or {})
    payload["output_schema"] = canonical(attributes.get("output_schema"))
    return str(attributes.get("model", "")), payload


def _chat_response(attributes: Mapping[str, Any], names: dict[str, str]) -> Payload:
    response = attributes.get("response")
    return "", {
        "response": canonical(nameless(response)),
        "retry_count": canonical(attributes.get("retry_count") or 0),
    }


def _tool_request(attributes: Mapping[str, Any], names: dict[str, str]) -> Payload:
    calls = attributes.get("tool_calls")
    payload = {"model": canonical(attributes.get("model"))}
    tools = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        told = function if isinstance(function, Mapping) else {}
        name = str(told.get("name", ""))
        names[str(call.get("id"))] = name
        tools.append(name)
        payload[_free(name, payload)] = canonical(told.get("arguments") or {})
    return ", ".join(tools), payload


def _tool_response(attributes: Mapping[str, Any], names: dict[str, str]) -> Payload:
    responses = attributes.get("responses")
    success = attributes.get("success")
    payload: dict[str, str] = {}
    for ident, value in responses.items() if isinstance(responses, Mapping) else ():
        name = _free(names.get(str(ident), "response"), payload)
        payload[name] = canonical(value)
        if isinstance(success, Mapping) and ident in success:
            payload[f"{name} succeeded"] = canonical(success[ident])
    return "", payload


def _retrieval_request(attributes: Mapping[str, Any], names: dict[str, str]) -> Payload:
    told = {name: canonical(attributes.get(name)) for name in ("query", "max_results")}
    return str(attributes.get("vector_store", "")), told


def _retrieval_response(attributes: Mapping[str, Any], names: dict[str, str]) -> Payload:
    return "", {name: canonical(attributes.get(name)) for name in ("query", "documents")}


_PAYLOADS: Final = {
    INPUT: _input,
    OUTPUT: _output,
    CHAT_REQUEST: _chat_request,
    CHAT_RESPONSE: _chat_response,
    TOOL_REQUEST: _tool_request,
    TOOL_RESPONSE: _tool_response,
    RETRIEVAL_REQUEST: _retrieval_request,
    RETRIEVAL_RESPONSE: _retrieval_response,
}


def nameless(message: Any) -> dict[str, Any]:
    """A message without the ids of its tool calls, which are random."""
    told = message_as_logged(message)
    calls = told["tool_calls"]
    if isinstance(calls, list):
        told["tool_calls"] = [_without(call, "id", "original_id") for call in calls]
    told["extra_args"] = _without(told["extra_args"], "external_id")
    return told


def _without(value: Any, *names: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: inner for name, inner in value.items() if name not in names}


def _free(name: str, taken: Mapping[str, str]) -> str:
    """The name, numbered where it is taken: one request may call a tool twice."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name}#{number}", number + 1
    return free
