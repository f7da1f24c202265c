"""The what-if form of a recorded run of Flink Agents: which builds may try it, and what each would run for real.

What a build does with a resource is said in its configuration, by name or by type; all others are only recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.flink.treatment import Treatment
from app.web.config import Build
from app.web.views import Choice

MODELS: Final = "chat_model_connection"
_TOOL: Final = "tool"
_FUNCTION: Final = "function"
_ANSWER: Final = 80  # characters of a stand-in that a line shows
_KINDS: Final[Mapping[str, str]] = {
    _TOOL: "tool",
    MODELS: "model connection",
    "embedding_model_connection": "embedding connection",
    "vector_store": "vector store",
    _FUNCTION: "durable function",
}


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource, or all others of a type, and what becomes of a call to it."""

    what: str
    name: str
    how: str


@dataclass(frozen=True, slots=True)
class WhatIfBuild:
    """A build on offer: what it runs for real, what it only records, and where it ends. `asks` a model or none."""

    name: str
    selected: bool
    note: str
    runs: Sequence[Resource]
    records: Sequence[Resource]
    ends: Sequence[Resource]
    asks: bool


def what_if_builds(
    builds: Sequence[Build], choices: Sequence[Choice], tools: Sequence[str], wanted: str = ""
) -> list[WhatIfBuild]:
    """The builds among `choices` with their resources; `tools` are those that the record names.

    Selected is the one `wanted`, else the first that may ask a model, else the first.
    """
    by_name = {build.name: build for build in builds}
    known = [by_name[choice.name] for choice in choices if choice.name in by_name]
    asking = [build.name for build in known if _asks(build)]
    names = [build.name for build in known]
    first = wanted if wanted in names else next(iter([*asking, *names]), "")
    notes = {choice.name: choice.note for choice in choices}
    return [_build(build, build.name == first, notes[build.name], tools) for build in known]


def _asks(build: Build) -> bool:
    return any(key.partition(":")[0] == MODELS and one.policy == "allow" for key, one in build.resources.items())


def _build(build: Build, selected: bool, note: str, tools: Sequence[str]) -> WhatIfBuild:
    runs: list[Resource] = []
    records: list[Resource] = []
    ends: list[Resource] = []
    for key, treatment in _lines(build.resources, tools):
        kind, _, name = key.partition(":")
        policy = "record" if treatment is None else treatment.policy
        place = runs if policy == "allow" else ends if policy == "block" else records
        place.append(Resource(_KINDS.get(kind, kind), name or f"every other {_KINDS.get(kind, kind)}",
                              _how(kind, policy, treatment)))  # fmt: skip
    return WhatIfBuild(build.name, selected, note, runs, records, ends, _asks(build))


def _lines(resources: Mapping[str, Treatment], tools: Sequence[str]) -> Iterator[tuple[str, Treatment | None]]:
    """The configured lines, and each recorded tool that has none of its own."""
    named = {key: one for key, one in resources.items() if ":" in key}
    for tool in tools:
        named.setdefault(f"{_TOOL}:{tool}", resources.get(_TOOL))  # type: ignore[arg-type]
    yield from sorted(named.items())
    yield from sorted((key, one) for key, one in resources.items() if ":" not in key)


def _how(kind: str, policy: str, treatment: Treatment | None) -> str:
    if policy == "allow":
        return "asked where the record has no answer" if kind == MODELS else "executed, inside the sandbox"
    if policy == "block":
        return "the run ends where it is called"
    if policy == "recorded" or kind not in (_TOOL, _FUNCTION):
        return "answered from the record, or the run ends"
    if treatment is not None and treatment.has_answer:
        text = json.dumps(treatment.answer, ensure_ascii=False)
        return f"answered from the record, else with {text if len(text) <= _ANSWER else text[:_ANSWER] + '…'}"
    if kind == _FUNCTION:
        return "answered by a result that is handed in, or the run ends"
    return "answered from the record, else with a note that it was not executed"
