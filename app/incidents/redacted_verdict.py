"""A verdict as somebody else may see it: the same members, each passed or hidden by its place in this table.

A member that is not in the table is hidden, name and all, so that what is added to a verdict later stays inside until
somebody decides otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from app.flink.rerun import case as flink
from app.incidents.redacted_rows import (
    KINDS,
    ROLES,
    STATES,
    STATUSES,
    SURFACES,
    Leaf,
    field_name,
    field_value,
    number,
    opened,
    type_of,
    word,
)
from app.incidents.redaction import Redactor, Reveal
from app.replay.images import Fit
from app.replay.verdict import Outcome, RowState

_VERSION: Final = re.compile(r"\d{1,4}(\.\d{1,4}){0,3}")
_CLASSES: Final = frozenset({"changed", "missing", "extra", "consequence"})
_CODES: Final = frozenset(
    {
        "activation_timeout", "bad_invocation", "batch_incomplete", "confined", "digest_only", "evicted", "expired",
        "no_responses", "uncommitted", "withheld",
        "conflicting_snapshots", "continuation_missing", "export_request", "hook_missing",
        "incomplete_attempt", "key_not_traced", "longterm_read", "memory_drift", "memory_limit", "migration_gap",
        "never_ran", "newer_event_type", "no_attempt", "no_envelope", "not_confined", "other_envelope", "other_key",
        "recorded_timeout", "request_changed", "seq_not_traced", "supplied_answer", "tampered_cache", "tool_confined",
        "torn_stream", "unusable_file", "would_be_refused", *flink.CODES,
    }
)  # fmt: skip


def _version(redactor: Redactor, value: Any) -> Any:
    return value if isinstance(value, str) and _VERSION.fullmatch(value) else redactor.json(value)


def _members(**leaves: Leaf) -> Leaf:
    """An object of known members; an unknown one is hidden, its name too."""

    def leaf(redactor: Redactor, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return redactor.json(value)
        made: dict[str, Any] = {}
        for name, item in value.items():
            known = leaves.get(name)
            if known is not None:
                made[name] = known(redactor, item)
            else:
                made[redactor.text(str(name)) or ""] = redactor.json(item)
        return made

    return leaf


def _each(item: Leaf) -> Leaf:
    def leaf(redactor: Redactor, value: Any) -> Any:
        return [item(redactor, each) for each in value] if isinstance(value, list | tuple) else redactor.json(value)

    return leaf


def _difference(redactor: Redactor, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return redactor.json(value)
    name, surface = str(value.get("field", "")), str(value.get("surface", ""))
    made: dict[str, Any] = _DIFFERENCE(redactor, {k: v for k, v in value.items() if k not in _SIDES})
    made["field"] = field_name(redactor, name, surface)
    for side in ("recorded", "replayed"):
        made[side] = field_value(redactor, name or "type", surface if name else "", value.get(side))
    return made


def _normalised(redactor: Redactor, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return redactor.json(value)
    name = f"attributes.{value.get('field', '')}"
    return {
        "ordinal": number(redactor, value.get("ordinal")),
        "field": field_name(redactor, name, "").removeprefix("attributes."),
        "recorded": field_value(redactor, name, "", value.get("recorded")),
        "replayed": field_value(redactor, name, "", value.get("replayed")),
    }


_SIDES: Final = ("field", "recorded", "replayed")
_DIFFERENCE: Final = _members(
    ordinal=number, surface=word(SURFACES), event_type=type_of, label=word(KINDS, Reveal.NAMES),
    span_id=opened(Reveal.KEY), step_index=number, cause=number, **{"class": word(_CLASSES)},
)  # fmt: skip
_COUNTS: Final = _members(**dict.fromkeys((*map(str, RowState), "consequence", "rows"), number))
_MODES: Final = frozenset({"cache-first", "provider-side", *flink.MODES})
_TOOLS: Final = ("executed", "supplied", "refused", "failed", "confined")

VERDICT: Final = _members(
    schema=number,
    verdict=word(frozenset(map(str, Outcome))),
    exit_code=number,
    headline=opened(Reveal.TEXTS),
    reason=lambda redactor, value: None if value is None else _REASON(redactor, value),
    attempt=lambda redactor, value: None if value is None else _ATTEMPT(redactor, value),
    surfaces=_each(_members(name=word(SURFACES), compared=number, state=word(STATES), detail=opened(Reveal.TEXTS))),
    counts=_COUNTS,
    first_divergence=number,
    differences=_each(_difference),
    normalised=_each(_normalised),
    served=_members(
        mode=word(_MODES),
        cache_hits=number,
        recorded_answers=number,
        provider_calls=number,
        tools_reexecuted=number,
        tools=_members(**dict.fromkeys(_TOOLS, number)),
        answers=_each(
            _members(
                step_index=number,
                model=opened(Reveal.NAMES),
                cache_key=opened(Reveal.PAYLOADS),
                source=opened(Reveal.TEXTS),
            )
        ),
    ),
    driver=_members(name=word(frozenset({"hindcast", "beam_agents", flink.ENGINE})), version=_version),
    code=_members(
        build=opened(Reveal.NAMES),
        files=opened(Reveal.PAYLOADS),
        python=_version,
        environment=opened(Reveal.PAYLOADS),
        packages=opened(Reveal.TEXTS),
        suspects=_each(
            _members(
                what=word(frozenset({"files", "live", "python", "package"})),
                **dict.fromkeys(("name", "here", "production", "text"), opened(Reveal.TEXTS)),
            )
        ),
    ),
    confinement=_members(tier=word(frozenset({"none", "baseline", "namespaces"}))),
    digests=_members(
        files=_each(_members(role=word(ROLES), name=opened(Reveal.TEXTS), bytes=number, sha256=opened(Reveal.PAYLOADS)))
    ),
    plan=_members(
        counter=number,
        memory=_members(
            fit=word(frozenset(map(str, Fit))),
            exact=number,
            counter=number,
            source=opened(Reveal.TEXTS),
        ),
        answers=_members(mode=word(_MODES), available=number, withheld=number, sources=opened(Reveal.TEXTS)),
        envelopes=number,
        row=opened(Reveal.TEXTS),
        exact_would_need=opened(Reveal.TEXTS),
    ),
    replayed=_members(
        outputs=_each(_members(bytes=number, sha256=opened(Reveal.PAYLOADS), text=opened(Reveal.PAYLOADS))),
        intents=_each(
            _members(
                intent_id=opened(Reveal.KEY),
                tool=opened(Reveal.NAMES),
                args_json=lambda redactor, value: redactor.text(str(value), Reveal.PAYLOADS, name="args_json"),
                sha256=opened(Reveal.PAYLOADS),
            )
        ),
        memory=_members(bytes=number, sha256=opened(Reveal.MEMORY)),
    ),
    notes=_each(opened(Reveal.TEXTS)),
)
_REASON: Final[Leaf] = _members(
    code=word(_CODES),
    text=opened(Reveal.TEXTS),
    remedy=opened(Reveal.TEXTS),
    # Details quote whole requests; they open only with everything.
    details=_members(step_index=number),
)
_ATTEMPT: Final[Leaf] = _members(
    entity_key=opened(Reveal.KEY),
    seq=number,
    kind=word(KINDS),
    clock_ms=number,
    entry_step=number,
    trace_id=opened(Reveal.KEY),
    status=word(STATUSES),
    batch_size=number,
)


def verdict(redactor: Redactor, told: Mapping[str, Any]) -> dict[str, Any]:
    """A verdict's JSON object with the same members, each passed or hidden."""
    made: dict[str, Any] = VERDICT(redactor, told)
    return made
