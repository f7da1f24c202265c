"""What passes of an event and of a row: the framework's own words and numbers, each only where it belongs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from app.flink import neutral as flink
from app.flink.rerun.sides import SURFACES as FLINK_SURFACES
from app.incidents.redaction import Redactor, Reveal
from app.replay import compare
from app.replay.evidence import Role
from app.replay.timeline import EXTRA_TYPES
from app.replay.verdict import FieldState, RowState, SurfaceState
from app.wire.records import TraceEvent

Leaf = Callable[[Redactor, Any], Any]

_TYPES: Final = frozenset({*TraceEvent.EventType.keys(), *EXTRA_TYPES.values(), *flink.TYPES})
_NUMBERED_TYPE: Final = re.compile(r"event type \d{1,10}")
_DIGITS: Final = re.compile(r"-?\d{1,19}")
SURFACES: Final = frozenset(
    {
        compare.TRACE, compare.INTENTS, compare.OUTPUTS, compare.ERRORS, compare.MEMORY, compare.CONTINUATION,
        compare.STATUS, *FLINK_SURFACES,
    }
)  # fmt: skip
STATUSES: Final = frozenset({"completed", "suspended", "failed", "timed out", "unknown", "unfinished"})
STATES: Final = frozenset({*map(str, RowState), *map(str, FieldState), *map(str, SurfaceState)})
ROLES: Final = frozenset(map(str, Role))
# Words of the framework, not of the agent: what started an activation, and what kind of intent it emitted.
KINDS: Final = frozenset(
    {
        "start",
        "resume",
        "timer",
        "escalation",
        "batch",
        "approval",
        "result",
        "TOOL",
        "APPROVAL",
        "export",
        "flink run",
        "input",
    }
)


def number(redactor: Redactor, value: Any) -> Any:
    return value if isinstance(value, int | None) else redactor.hidden(value)


def word(words: frozenset[str], *groups: Reveal) -> Leaf:
    """One of our own words passes; anything else is as hidden as `groups` say."""

    def leaf(redactor: Redactor, value: Any) -> Any:
        if value is None or (isinstance(value, str) and value in words):
            return value
        return redactor.json(value, *groups)

    return leaf


def opened(*groups: Reveal) -> Leaf:
    return lambda redactor, value: redactor.json(value, *groups)


def type_of(redactor: Redactor, value: Any) -> Any:
    if isinstance(value, str) and (value in _TYPES or _NUMBERED_TYPE.fullmatch(value)):
        return value
    return redactor.json(value)


# Events and rows -----------------------------------------------------------------------------------------------------

_NUMBERS: Final = frozenset(
    {
        "step_index", "step", "seq", "start_ms", "end_ms", "time_ms", "timestamp_ns",
        "attributes.beam_agents.attempts", "attributes.beam_agents.batch.size", "attributes.beam_agents.deadline_ms",
        "attributes.beam_agents.expires_at_ms", "attributes.beam_agents.failure.llm_calls",
        "attributes.beam_agents.failure.staged_intents", "attributes.beam_agents.failure.step",
        "attributes.beam_agents.seq", "attributes.beam_agents.step_index", "attributes.gen_ai.usage.input_tokens",
        "attributes.gen_ai.usage.output_tokens",
    }
)  # fmt: skip
_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "attributes.beam_agents.activation.kind": KINDS,
    "attributes.beam_agents.activation.status": STATUSES,
    "attributes.beam_agents.intent_kind": KINDS,
    "attributes.beam_agents.cache_hit": frozenset({"true", "false"}),
    "attributes.beam_agents.billed": frozenset({"true", "false"}),
    "attributes.gen_ai.operation.name": frozenset({"chat"}),
    "attributes.status": flink.STATUSES,
    "attributes.problemCategory": flink.CATEGORIES,
    "attributes.entityType": flink.ENTITIES,
    "label": KINDS | STATUSES | flink.STATUSES | {f"failed {category}" for category in flink.CATEGORIES},
}
_GROUPS: Final[Mapping[str, Reveal]] = {
    "span_id": Reveal.KEY,
    "parent_span_id": Reveal.KEY,
    "trace_id": Reveal.KEY,
    "entity_key": Reveal.KEY,
    "attributes.beam_agents.entity_key": Reveal.KEY,
    "attributes.beam_agents.intent_id": Reveal.KEY,
    "attributes.beam_agents.pending_intent_ids": Reveal.KEY,
    "attributes.beam_agents.tool_name": Reveal.NAMES,
    "attributes.beam_agents.adapter": Reveal.NAMES,
    "attributes.beam_agents.reason": Reveal.TEXTS,
    "attributes.gen_ai.request.model": Reveal.NAMES,
    "attributes.error.type": Reveal.NAMES,
    "attributes.entityName": Reveal.NAMES,
    "attributes.upstreamActionName": Reveal.NAMES,
    "attributes.entityMetadata.model": Reveal.NAMES,
    **dict.fromkeys(flink.IDENTITY, Reveal.KEY),
    "label": Reveal.NAMES,
    "detail": Reveal.TEXTS,
    "errorMessage": Reveal.TEXTS,
    "errorType": Reveal.NAMES,
}
_KNOWN_FIELDS: Final = frozenset(
    {*_NUMBERS, *_WORDS, *_GROUPS, *flink.FIELDS, "", "type", "event_type", "args_json", "output", "unknown fields"}
)
_STATE_SURFACES: Final = frozenset({compare.MEMORY, compare.CONTINUATION})


def field_name(redactor: Redactor, name: str, surface: str) -> str:
    """A field's name: the framework's pass, an argument's or a memory's own name is as hidden as it is."""
    if surface in _STATE_SURFACES:  # there every name is the agent's own, whatever it is called
        return redactor.text(name, Reveal.MEMORY) or ""
    if name in _KNOWN_FIELDS:
        return name
    group = Reveal.NAMES
    for prefix in ("attributes.", "args."):
        if name.startswith(prefix):
            return prefix + (redactor.text(name.removeprefix(prefix), group) or "")
    return redactor.text(name, group) or ""


def field_value(redactor: Redactor, name: str, surface: str, value: Any) -> str | None:
    """A field's value on one side, passed or hidden by what the field is."""
    if value is None:
        return None
    text = str(value)
    if surface in _STATE_SURFACES:
        return redactor.text(text, Reveal.MEMORY, name=name)
    if name in ("type", "event_type"):
        return str(type_of(redactor, text))
    if name in _NUMBERS and _DIGITS.fullmatch(text):
        return text
    if text in _WORDS.get(name, ()):
        return text
    if name == "entity_key":
        return _hex_key(redactor, text)
    return redactor.text(text, _GROUPS.get(name, Reveal.PAYLOADS), name=name)


def _hex_key(redactor: Redactor, text: str) -> str:
    """The key as an event spells it; its digest is that of the bytes, the same as everywhere else."""
    try:
        key = redactor.entity_key(bytes.fromhex(text))
    except ValueError:
        return redactor.hidden(text)
    return key.hex() if isinstance(key, bytes) else str(key)


def event(redactor: Redactor, told: Mapping[str, Any] | None, surface: str) -> dict[str, Any] | None:
    """One side of a row, in the form in which it is stored."""
    if told is None:
        return None
    return {
        "type": type_of(redactor, told.get("type")),
        "label": field_value(redactor, "label", "", told.get("label") or None) or "",
        "about": field_value(redactor, "label", "", told.get("about") or None) or "",
        "step": number(redactor, told.get("step")),
        "span_id": redactor.text(told.get("span_id"), Reveal.KEY) if told.get("span_id") else "",
        "time_ms": number(redactor, told.get("time_ms")),
        "attributes": _fields(redactor, told.get("attributes"), surface, "attributes."),
        "identity": _fields(redactor, told.get("identity"), surface),
        "payload": _fields(redactor, told.get("payload"), surface),
        "unknown": [redactor.text(str(item), Reveal.PAYLOADS) for item in told.get("unknown", ())],
    }


def _fields(redactor: Redactor, told: Mapping[str, Any] | None, surface: str, prefix: str = "") -> dict[str, Any]:
    return {
        field_name(redactor, prefix + name, surface).removeprefix(prefix): field_value(
            redactor, prefix + name, surface, value
        )
        for name, value in (told or {}).items()
    }


class StoredRow(Protocol):
    """A run's row; its bodies are touched only when asked for."""

    ordinal: int
    state: str
    surface: str
    event_type: str
    label: str
    about: str
    step: int | None
    cause: int | None
    recorded: Any
    replayed: Any
    fields: Any


@dataclass(frozen=True, slots=True)
class SharedRow:
    """A row as a share shows it; like `RunRow`, with the bodies of both sides where they were asked for."""

    ordinal: int
    state: str
    surface: str
    event_type: str
    label: str
    about: str
    step: int | None
    cause: int | None
    recorded: dict[str, Any] | None = None
    replayed: dict[str, Any] | None = None
    fields: tuple[dict[str, Any], ...] = ()


def row(redactor: Redactor, told: StoredRow, *, bodies: bool = False) -> SharedRow:
    """One row of a timeline; with `bodies`, every field of both sides."""
    surface = told.surface
    return SharedRow(
        ordinal=told.ordinal,
        state=str(word(STATES)(redactor, told.state)),
        surface=str(word(SURFACES)(redactor, surface)),
        event_type=str(type_of(redactor, told.event_type)),
        label=field_value(redactor, "label", "", told.label or None) or "",
        about=field_value(redactor, "label", "", told.about or None) or "",
        step=told.step,
        cause=told.cause,
        recorded=event(redactor, told.recorded, surface) if bodies else None,
        replayed=event(redactor, told.replayed, surface) if bodies else None,
        fields=tuple(_pair(redactor, item, surface) for item in told.fields) if bodies else (),
    )


def _pair(redactor: Redactor, told: Mapping[str, Any], surface: str) -> dict[str, Any]:
    name = told["name"]
    return {
        "name": field_name(redactor, name, surface),
        "recorded": field_value(redactor, name, surface, told["recorded"]),
        "replayed": field_value(redactor, name, surface, told["replayed"]),
        "state": word(STATES)(redactor, told["state"]),
    }
