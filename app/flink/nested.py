"""Runs of one subtask in a log that names no runs: what is under way, what was asked, and who can have sent a record.

Flink Agents takes the next input of a key only when the one before is done, so an input ends the run before it of its
key. Candidates are weighed in an order from proof to conclusion, and two candidates at the end mean none.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from app.flink.keys import Path, find_key
from app.flink.model import How, Placed
from app.flink.records import CHAT_REQUEST, CHAT_RESPONSE, INPUT, OUTPUT, TOOL_REQUEST, TOOL_RESPONSE, Record, run_ref

AT_WORK: Final = 256  # runs among which a record's run is looked for
AT_REST_TRIED: Final = 16  # runs that rest since a moment ago, and may send one thing more
AT_REST: Final = 4_096  # runs that have nothing under way, kept to be found by their key
_TEXTS: Final = 24
_TEXT: Final = 400
_SHORTEST: Final = 4  # characters that a text must have to be looked for inside another


@dataclass(slots=True)
class _Open:
    """A run that may still send something."""

    ref: str
    key: str | None
    chats: dict[str, str] = field(default_factory=dict)  # request id to model
    tools: dict[str, list[str]] = field(default_factory=dict)  # request id to the ids of its calls
    texts: list[str] = field(default_factory=list)
    answer: str = ""  # the last model response
    sent: bool = False  # an output, and nothing since

    @property
    def rests(self) -> bool:
        return self.sent and not self.chats and not self.tools


class NestedRuns:
    """The runs of one subtask."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._paths = paths
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._by_key: dict[str, str] = {}

    def place(self, record: Record) -> Placed:
        """Say which run a record is of; an input begins one."""
        key = find_key(record.attributes, self._paths) if self._paths else None
        if record.type == INPUT:
            return Placed(record, self._begin(record, run_ref(record), key), How.INPUT)
        found = self._find(record, key)
        if found is None:
            return Placed(record, None, None)
        run, how = found
        self._learn(run, record)
        return Placed(record, run.ref, how)

    def _begin(self, record: Record, ref: str, key: str | None) -> str:
        if ref in self._open:
            return ref  # the same line again
        before = self._by_key.get(key) if key is not None else None
        if before is not None:
            self._open.pop(before, None)
        run = self._open[ref] = _Open(ref, key)
        if key is not None:
            self._by_key[key] = ref
        self._hear(run, record)
        if len(self._open) > AT_REST:
            self._forget_one()
        return ref

    def _forget_one(self) -> None:
        gone = next((ref for ref, run in self._open.items() if run.rests), next(iter(self._open)))
        key = self._open.pop(gone).key
        if key is not None and self._by_key.get(key) == gone:
            del self._by_key[key]

    def _find(self, record: Record, key: str | None) -> tuple[_Open, How] | None:
        if key is not None:
            known = self._open.get(self._by_key.get(key, ""))
            return None if known is None else (known, How.KEY)
        latest = list(islice(reversed(self._open.values()), AT_WORK))
        if record.type in (CHAT_RESPONSE, TOOL_RESPONSE) and record.request_id is not None:
            return _answered(record, record.request_id, latest)
        # A run that has sent its output and waits for nothing counts only where none at work has said the like.
        working = [run for run in latest if not run.rests]
        if record.type == TOOL_REQUEST:
            working = [run for run in working if _waits_for(run, record)] or working
        resting = [run for run in latest[: 2 * AT_REST_TRIED] if run.rests][:AT_REST_TRIED]
        for among in (working, resting):
            said = list(islice((run for run in among if _repeats(run, record)), 2))
            if said:
                return (said[0], How.CONTENT) if len(said) == 1 else None
        among = working or resting
        return (among[0], How.ALONE) if len(among) == 1 else None

    def _learn(self, run: _Open, record: Record) -> None:
        self._open.move_to_end(run.ref)
        run.sent = record.type == OUTPUT
        asked = record.request_id or ""
        if record.type == CHAT_REQUEST:
            run.chats[record.event_id] = _text_of(record.attributes.get("model"))
        elif record.type == CHAT_RESPONSE:
            run.chats.pop(asked, None)
            response = record.attributes.get("response")
            run.answer = _text_of(response.get("content"))[:_TEXT] if isinstance(response, Mapping) else ""
        elif record.type == TOOL_REQUEST:
            run.tools[record.event_id] = call_ids(record)
        elif record.type == TOOL_RESPONSE:
            run.tools.pop(asked, None)
        self._hear(run, record)

    def _hear(self, run: _Open, record: Record) -> None:
        """Remember what was said in a run: the input, and whatever tools and models answered."""
        for text in _leaves(_said(record)):
            if text and text not in run.texts:
                run.texts.append(text[:_TEXT])
        del run.texts[_TEXTS:]

    def state(self) -> list[dict[str, Any]]:
        """The runs under way as JSON; of those at rest only as many as are looked through."""
        kept = list(self._open.values())[-AT_WORK:]
        return [{name: getattr(run, name) for name in _Open.__slots__} for run in kept]

    def resume(self, state: list[Mapping[str, Any]]) -> None:
        """Go on from a `state`."""
        for told in state:
            run = self._open[told["ref"]] = _Open(**told)
            if run.key is not None:
                self._by_key[run.key] = run.ref


def call_ids(record: Record) -> list[str]:
    """The ids of a request's tool calls."""
    calls = record.attributes.get("tool_calls")
    return [_text_of(call.get("id")) for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []


def _answered(record: Record, request: str, candidates: list[_Open]) -> tuple[_Open, How] | None:
    asked = [run for run in candidates if request in run.chats or request in run.tools]
    if len(asked) == 1:
        return asked[0], How.REQUEST
    # Equal requests of two keys have one id; of tool calls the ids are random.
    responses = record.attributes.get("responses")
    if isinstance(responses, Mapping):
        calling = [run for run in asked if not set(run.tools.get(request, ())).isdisjoint(responses)]
        if len(calling) == 1:
            return calling[0], How.CALL
    return None


def _waits_for(run: _Open, record: Record) -> bool:
    """Whether a run waits for the model that asks for tools, and for no tool."""
    return not run.tools and _text_of(record.attributes.get("model")) in run.chats.values()


def _said(record: Record) -> Any:
    """The part of a payload in which people, models and tools speak."""
    payload = record.attributes
    match record.type:
        case "_chat_response_event":
            response = payload.get("response")
            return response.get("content") if isinstance(response, Mapping) else response
        case "_tool_response_event":
            return payload.get("responses")
        case "_input_event":
            return payload
    return None


def _arguments(record: Record) -> list[Any]:
    calls = record.attributes.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    return [function.get("arguments") for function in functions if isinstance(function, Mapping)]


def _repeats(run: _Open, record: Record) -> bool:
    """Whether a record says what this run has said: the input in a request, the answer in an output."""
    kind, payload = record.type, record.attributes
    if kind == CHAT_REQUEST:
        return _asks(run, payload)
    if kind == OUTPUT:
        return len(run.answer) > 1 and any(run.answer in text for text in _leaves(payload))
    if kind != TOOL_REQUEST:
        return any(text in run.texts for text in _leaves(payload) if len(text) >= _SHORTEST)
    words = [text for text in _leaves(_arguments(record)) if len(text) >= _SHORTEST]
    return any(word in text for word in words for text in run.texts)


def _asks(run: _Open, payload: Mapping[str, Any]) -> bool:
    messages = payload.get("messages")
    told = [message for message in messages if isinstance(message, Mapping)] if isinstance(messages, list) else []
    users = [_text_of(message.get("content")) for message in told if message.get("role") == "user"]
    asked = users[-1:] or list(_leaves(payload))
    return any(text == said or (len(text) >= _SHORTEST and text in said) for said in asked for text in run.texts)


def _leaves(value: Any, depth: int = 0) -> Iterator[str]:
    """The texts inside a value; of JSON inside a text, those inside it as well."""
    if depth > 20:
        return
    if isinstance(value, str):
        yield value
        if value[:1] == "{":
            try:
                yield from _leaves(json.loads(value), depth + 1)
            except (ValueError, RecursionError):
                return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, depth + 1)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""
