"""Reads model requests and responses of common shapes as a conversation: who said what.

OpenAI's chat and Anthropic's messages are known by their form. What is of neither form stays JSON: nothing is guessed,
and nothing is left out, for what a shape does not name is shown beside the words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function", "model"})


@dataclass(frozen=True, slots=True)
class Message:
    """One thing that was said: by whom, and its content as a ledger value (text, a cut text, or any JSON)."""

    role: str
    content: Any


def conversation(messages: Any, params: Any = None) -> list[Message]:
    """The messages of a request in order; one of an unknown shape keeps its JSON, under no role.

    A system prompt that the request carries beside its messages comes first.
    """
    told = [
        part if isinstance(part, Message) else Message("system", part) for part in _parts(_member(params, "system"))
    ]
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        return told if messages is None else [*told, Message("", messages)]
    for message in messages:
        told += _of(message)
    return told


def _of(message: Any) -> Iterator[Message]:
    if not isinstance(message, Mapping) or not _known(message):
        yield Message("", message)
        return
    role = str(message["role"])
    rest = {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")}
    name = rest.pop("name", None)
    answers = rest.pop("tool_call_id", None)
    shown = " ".join(str(part) for part in (role, name, answers) if part)
    for part in _parts(message.get("content")):
        yield part if isinstance(part, Message) else Message(shown, part)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else [calls] if calls else []:
        yield _call(role, call)
    beside = {name: value for name, value in rest.items() if value not in (None, [], {})}
    if beside:
        yield Message(shown, beside)


def _known(message: Mapping[str, Any]) -> bool:
    role = message.get("role")
    return isinstance(role, str) and role in _ROLES and ("content" in message or "tool_calls" in message)


def _parts(content: Any) -> Iterator[Any]:
    """The pieces of a content: texts, calls of tools and their results; anything else as it is."""
    if content is None:
        return
    if not isinstance(content, list):
        yield content
        return
    for part in content:
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": text}:
                yield text
            case {"type": "tool_use", "name": name, "input": given}:
                yield Message(f"calls {name}", given)
            case {"type": "tool_result", "content": result}:
                for piece in _parts(result):
                    yield piece if isinstance(piece, Message) else Message("tool result", piece)
            case _:
                yield part


def _call(role: str, call: Any) -> Message:
    match call:
        case {"function": {"name": str(name), "arguments": given}}:
            return Message(f"{role} calls {name}", given)
    return Message(f"{role} calls", call)


def said(response: Any) -> list[Message] | None:
    """What a response of a known shape says; None for any other. `response` is its text, or a value already parsed."""
    body = _parsed(response)
    match body:
        case {"choices": [{"message": {"role": _} as message}, *_]}:
            return list(_of(message)) if _known(message) else None
        case {"type": "message", "role": str(role), "content": list(content)} if role in _ROLES:
            return list(_of({"role": role, "content": content}))
    return None


def _parsed(response: Any) -> Any:
    if not isinstance(response, str):
        return response
    if not response.lstrip().startswith("{"):
        return None
    try:
        return json.loads(response)
    except (ValueError, RecursionError):
        return None


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
