"""A model request that nothing recorded answers, for a person: what was asked, what is nearest, what differs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.web.values import Shown, show_pair
from app.web.views_story import Said, request_texts

_LIMIT: Final = 8_000
_HANDLED: Final = frozenset({"cache_key", "step_index", "request", "nearest", "differs", "recorded"})
_NAMES: Final = {"sampling": "params", "entity key": "key"}


@dataclass(frozen=True, slots=True)
class Miss:
    """The missed request; `differs` names the part that was recorded otherwise, with both spellings of it.

    `nearest_link` is the evidence that holds the nearest captured response, empty where no file has that name.
    """

    step: int
    cache_key: str
    model: str
    texts: Sequence[Said]
    differs: str
    recorded: Shown | None
    asked: Shown | None
    nearest_key: str
    nearest_source: str
    nearest_link: str


def miss_of(details: Mapping[str, Any], evidence: Mapping[str, str]) -> Miss | None:
    """Read a reason's details; None where they tell of no missed request."""
    if "request" not in details or "cache_key" not in details:
        return None
    request, nearest = details["request"], details.get("nearest") or {}
    differs = str(details.get("differs") or "")
    recorded, asked = _both(details, request, differs)
    source = str(nearest.get("source") or "")
    return Miss(
        step=int(details.get("step_index", 0)),
        cache_key=str(details["cache_key"]),
        model=str(request.get("model", "")) if isinstance(request, Mapping) else "",
        texts=request_texts(request if "messages" in request else request.get("head", request), _LIMIT),
        differs=differs,
        recorded=recorded,
        asked=asked,
        nearest_key=str(nearest.get("cache_key") or ""),
        nearest_source=source,
        nearest_link=_link(source, evidence),
    )


def _both(details: Mapping[str, Any], request: Any, differs: str) -> tuple[Shown | None, Shown | None]:
    part = _NAMES.get(differs, differs)
    if not differs or "recorded" not in details or part not in request:
        return None, None
    return show_pair(_spelled(details["recorded"]), _spelled(request[part]))


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _link(source: str, evidence: Mapping[str, str]) -> str:
    """The file that a source names: withheld entries name it in brackets, after the reason."""
    return evidence.get(source) or evidence.get(source.rpartition("(")[2].rstrip(")"), "")


def other_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """What a reason tells beside a missed request."""
    return (
        {name: value for name, value in details.items() if name not in _HANDLED}
        if "request" in details
        else {**details}
    )
