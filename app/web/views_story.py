"""Tells a run's ledger at its events: what the model saw, what it said, what the agent did with it.

It knows the ledger's kinds of entries and no framework. What was decoded comes first, what was sent stands below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from app.web.messages import Message, conversation, said
from app.web.values import NOTHING, Shown, emphasise, show, show_json

SMALL: Final = 4_000  # characters of one value that a story shows without being opened
_MESSAGES: Final = 60  # messages of one request that are shown; the last ones, for they were said last
_MEMORY: Final = {
    "get": "reads memory",
    "ring": "reads memory",
    "keys": "reads all memory keys",
    "size_bytes": "reads the memory's size",
    "entry_size": "reads the size of memory",
    "set": "sets memory",
    "append": "appends to memory",
    "delete": "deletes memory",
}
_WRITES: Final = frozenset({"set", "append", "delete"})
_ANSWERED: Final = "answered from the record"
_TOOL_ENDS: Final = {
    "executed": "ran again, for real, inside the sandbox",
    "supplied": "not run: the answer was supplied",
    "refused": "a side effect, so it was not run",
    "failed": "raised",
    "confined": "kept by the sandbox from what it reads",
}


class Entry(Protocol):
    """A stored entry with its body."""

    @property
    def position(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def body(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Said:
    """One text of a step: who or what it is, and the value. `raw` ones are folded away under their label."""

    label: str
    value: Shown
    raw: bool = False

    @property
    def nodes(self) -> int:
        return 1 + bool(self.label) + self.raw + self.value.nodes


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a story: what happened, its texts, and facts of one word each.

    `cache_key` names the request, `captured` the response that a snapshot holds for it.
    """

    what: str
    texts: tuple[Said, ...] = ()
    facts: tuple[str, ...] = ()
    cache_key: str = ""
    captured: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of the ledger as a person reads it; `nodes` is about how many elements its drawing takes."""

    position: int
    kind: str
    lines: tuple[Line, ...]

    @property
    def nodes(self) -> int:
        return sum(
            4 + sum(text.nodes for text in line.texts) + 3 * bool(line.cache_key) + bool(line.captured)
            for line in self.lines
        )


@dataclass(frozen=True, slots=True)
class Telling:
    """How stories are told: where responses came from, which words to mark, and whether raw values are left out."""

    sources: Mapping[str, str]
    words: Collection[str] = ()
    brief: bool = False

    @property
    def limit(self) -> int:
        return SMALL if self.brief else 32 * 1024


def story(entries: Iterable[Entry], telling: Telling) -> list[Step]:
    """Tell entries in their order."""
    return [_step(entry, telling) for entry in entries]


def _step(entry: Entry, telling: Telling) -> Step:
    tell = {"model": _model, "tool": _tool, "memory": _memory, "intent": _intent}.get(entry.kind, _other)
    lines = tuple(_marked(line, telling) for line in tell(entry.body, telling))
    return Step(entry.position, entry.kind, lines)


def _marked(line: Line, telling: Telling) -> Line:
    texts = tuple(
        replace(text, value=emphasise(text.value, telling.words))
        for text in line.texts
        if not (telling.brief and text.raw)
    )
    return replace(line, texts=texts)


# What a model saw and said -------------------------------------------------------------------------------------------


def _model(body: Mapping[str, Any], telling: Telling) -> list[Line]:
    key, request = str(body.get("cache_key", "")), body.get("request")
    model = request.get("model") if isinstance(request, Mapping) and not telling.brief else None
    facts = (f"model {model}",) if model else ()
    return [
        Line("model saw", tuple(request_texts(request, telling.limit)), facts, cache_key=key),
        Line(
            "it said",
            tuple(_answer(body, telling.limit)),
            tuple(_served(body, key, telling)),
            captured=key if key in telling.sources else "",
        ),
    ]


def request_texts(request: Any, limit: int) -> list[Said]:
    """A request as a conversation; what is beside the messages (sampling, tools) is folded away, never lost."""
    if not isinstance(request, Mapping) or "messages" not in request:
        return [Said("request", show_json(request, limit))]
    messages = conversation(request["messages"], request.get("params"))
    texts = _messages(messages, limit)
    for name, label in (("params", "sampling"), ("tools", "tools offered")):
        if request.get(name):
            texts.append(Said(label, show_json(request[name], limit), raw=True))
    return texts


def _messages(messages: Sequence[Message], limit: int) -> list[Said]:
    shown = [Said(message.role, show_json(message.content, limit)) for message in messages[-_MESSAGES:]]
    left = len(messages) - len(shown)
    return [Said("", show(f"{left} earlier messages are in the ledger's own lines")), *shown] if left else shown


def _answer(body: Mapping[str, Any], limit: int) -> Iterable[Said]:
    response, decoded = body.get("response"), body.get("decoded")
    if isinstance(decoded, Mapping):
        if "error" in decoded:
            yield Said("the decode hook failed", show_json(decoded["error"], limit))
        else:
            yield Said("", show_json(decoded.get("text"), limit))
        if decoded.get("text") != response:
            yield Said("raw response", show_json(response, limit), raw=True)
        return
    messages = said(response)
    if messages is None:
        yield Said("", show_json(response, limit))
        return
    yield from _messages(messages, limit)
    yield Said("raw response", show_json(response, limit), raw=True)


def _served(body: Mapping[str, Any], key: str, telling: Telling) -> Iterable[str]:
    decoded = body.get("decoded")
    if isinstance(decoded, Mapping) and isinstance(tokens := decoded.get("tokens"), list) and len(tokens) == 3:
        yield f"{tokens[0]} + {tokens[1]} tokens"
    source = telling.sources.get(key)
    if source:
        yield f"from {source}"
    # Re-runs of Flink Agents say what became of the call, which need not have been answered from the record.
    done, _, detail = str(body.get("outcome") or _ANSWERED).partition(": ")
    if done == "executed":
        yield f"asked anew, and failed: {detail}" if detail else "asked anew: nobody recorded this answer"
    elif done != _ANSWERED:
        yield done
    else:
        yield "a cache hit" if body.get("from_cache") else "a recorded answer of the provider"


# What the agent did with it ------------------------------------------------------------------------------------------


def _tool(body: Mapping[str, Any], telling: Telling) -> list[Line]:
    outcome = str(body.get("outcome", ""))
    texts = [Said("", show_json(body.get("arguments"), telling.limit))]
    if "error" in body:
        texts.append(Said("error", show_json(body["error"], telling.limit)))
    else:
        texts.append(Said("returned", show_json(body.get("value"), telling.limit)))
    tone = "bad" if outcome in ("failed", "confined", "refused") else "supplied" if outcome == "supplied" else ""
    return [Line(f"tool {body.get('tool', '')}", tuple(texts), (_TOOL_ENDS.get(outcome, outcome),), tone=tone)]


def _memory(body: Mapping[str, Any], telling: Telling) -> list[Line]:
    operation, key = str(body.get("operation", "")), str(body.get("key", ""))
    if operation not in _WRITES:
        value = body.get("value")
        shown = show("nothing: the key is absent") if value is None else show_json(value, telling.limit)
        return [Line(_titled(operation, key), (Said("", shown),))]
    before, after = body.get("before"), body.get("after")
    if operation == "append" and isinstance(before, list | None) and isinstance(after, list):
        return [_append(key, before or [], after, telling)]
    texts = (Said("before", _held(before, telling)), Said("after", _held(after, telling)))
    return [Line(_titled(operation, key), texts)]


def _titled(operation: str, key: str) -> str:
    return f"{_MEMORY.get(operation, f'memory {operation}')} {key}".strip()


def _append(key: str, before: list[Any], after: list[Any], telling: Telling) -> Line:
    added = after[-1:] if after else []
    dropped = max(0, len(before) + 1 - len(after))
    facts = [f"{len(before)} before, {len(after)} after"] + ([f"{dropped} oldest dropped"] if dropped else [])
    texts = [Said("added", show_json(item, telling.limit)) for item in added]
    if before:
        texts.append(Said("before", show_json(before, telling.limit), raw=True))
    return Line(_titled("append", key), tuple(texts), tuple(facts))


def _held(value: Any, telling: Telling) -> Shown:
    return NOTHING if value is None else show_json(value, telling.limit)


def _intent(body: Mapping[str, Any], telling: Telling) -> list[Line]:
    return [Line(f"intent {body.get('tool', '')}", (Said("", show_json(body.get("args"), telling.limit)),))]


def _other(body: Mapping[str, Any], telling: Telling) -> list[Line]:
    return [Line("step", (Said("", show_json(dict(body), telling.limit)),))]
