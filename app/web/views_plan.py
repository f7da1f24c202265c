"""The plan of a replay in words: what it would be fed with, what would be compared, and what would make it exact."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.incidents.service import Preview, Waiting
from app.web.formats import plural, utc
from app.web.values import Shown, show

_SOURCES: Final = 12
_FORWARD: Final = "Exact, if what came before comes out as it was recorded."
_CLOCK: Final = re.compile(r"at clock (\d{1,16})")


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the plan: a glyph, what it is about, a sentence, and evidence that it names."""

    glyph: str
    name: str
    text: str
    sources: Sequence[tuple[str, str, str]] = ()  # name, link (may be empty), how much
    more: str = ""


@dataclass(frozen=True, slots=True)
class PlanView:
    """The plan, or why there is none. `exact` tells whether the state is known as the attempt found it."""

    row: str
    exact: bool
    needs: str
    facts: Sequence[Fact]
    compared: Sequence[str]
    skipped: Sequence[tuple[str, str]]
    hooks: Sequence[str]
    notes: Sequence[str]


def plan_view(preview: Preview, evidence: Mapping[str, str]) -> PlanView | None:
    """Put a preview into words; None where no build could be replayed."""
    plan = preview.plan
    if plan is None:
        return None
    facts = [_memory(plan, evidence), *_continuation(plan, evidence), *_responses(plan, evidence), *_envelopes(plan)]
    surfaces = plan["surfaces"]
    notes = list(plan["notes"])
    if plan["candidates"] > 1:
        notes.insert(0, f"{plan['candidates']} attempts share this clock: each is tried, and the one that fits is told")
    return PlanView(
        row=_sentence(plan["row"]) if plan["forward"] is None else _FORWARD,
        exact=bool(plan["memory"]["exact"]),
        needs=plan["exact_would_need"] or "",
        facts=facts,
        compared=[surface["name"] for surface in surfaces if surface["compared"]],
        skipped=[(surface["name"], surface["detail"]) for surface in surfaces if not surface["compared"]],
        hooks=plan["hooks"],
        notes=notes,
    )


def _memory(plan: Mapping[str, Any], evidence: Mapping[str, str]) -> Fact:
    memory, way = plan["memory"], plan["forward"]
    if way is not None:
        count = len(way["steps"])
        base = "an empty key" if way["from"] == "a fresh key" else f"counter {way['counter']}"
        text = f"run forward from {base} through {plural(count, 'activation')}, used only if each comes out as recorded"
        steps = [_CLOCK.sub(lambda found: f"at {utc(int(found[1]))}", step) for step in way["steps"][:6]]
        return Fact("↦", "memory", text, _sources({way["from"]: ""}, evidence), more="; ".join(steps))
    source = {memory["source"]: f"counter {memory['counter']}"}
    match memory["fit"]:
        case "empty":
            return Fact("=", "memory", "empty: this is the first activation of the key's life")
        case "exact":
            return Fact("=", "memory", "exact: the state that the attempt found", _sources(source, evidence))
        case "met":
            text = "exact: a snapshot of the very counter, and what was run forward from an earlier one, are the same"
            return Fact("=", "memory", text, _sources(source, evidence))
        case "open":
            text = "of the very counter, but nothing traced ties it to this life of the key, and no read is trusted"
        case "after":
            text = "as it was after: a value that was written since may be another one, and such reads are not trusted"
        case "before":
            text = "as it was before: what was written up to the attempt is not in it, and no read is trusted"
        case _:
            return Fact("∅", "memory", "none: there is no snapshot of this life of the key")
    return Fact("~", "memory", text, _sources(source, evidence))


def _continuation(plan: Mapping[str, Any], evidence: Mapping[str, str]) -> list[Fact]:
    source = plan["continuation"]
    return [Fact("=", "continuation", "what the suspended activation left", _sources({source: ""}, evidence))] * bool(
        source
    )


def _responses(plan: Mapping[str, Any], evidence: Mapping[str, str]) -> list[Fact]:
    answers, responses = plan["answers"], plan["responses"]
    wanted, captured = responses["obtained"], responses["captured"]
    sources = _sources({name: str(count) for name, count in answers["own_by_source"].items()}, evidence)
    earlier = answers["available"] - sum(answers["own_by_source"].values())
    left = [f"{count} captured but not served: {why}" for why, count in answers["not_served"].items()]
    if earlier > 0:
        left.insert(0, f"{plural(earlier, 'earlier response')} beside, should the code ask for them again")
    more = "; ".join(left)
    if not wanted:
        text = "the attempt asked no provider" if plan["attempt"] else f"{plural(earlier, 'response')} captured so far"
        return [Fact("=", "model responses", text, more="" if earlier else more)]
    if captured >= wanted:
        told = {1: "the one that the attempt obtained is captured", 2: "both that the attempt obtained are captured"}
        text = told.get(wanted, f"all {wanted} that the attempt obtained are captured")
        return [Fact("=", "model responses", text, sources, more)]
    text = f"{captured} of {wanted} that the attempt obtained are captured: the re-run stops at the first that is not"
    if wanted == 1:
        text = "the one that the attempt obtained is not captured: the re-run stops where it asks for it"
    return [Fact("∅", "model responses", text, sources, more)]


def _envelopes(plan: Mapping[str, Any]) -> list[Fact]:
    count = plan["envelopes"]
    return [Fact("=", "batch", f"{count} envelopes, in the order of their arrival")] if count > 1 else []


def _sources(names: Mapping[str, str], evidence: Mapping[str, str]) -> list[tuple[str, str, str]]:
    known = [(name, evidence.get(name, ""), much) for name, much in names.items() if name != "a fresh key"]
    return known[:_SOURCES]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True)
class WaitView:
    """One intent that waits for an answer, for the what-if form."""

    intent: str
    kind: str
    tool: str
    arguments: Shown | None
    asked_ms: int | None
    expires_ms: int | None
    deadline_ms: int
    snapshot: str


def waits(waiting: Sequence[Waiting]) -> list[WaitView]:
    return [
        WaitView(
            wait.intent,
            wait.kind,
            wait.tool,
            show(wait.args_json) if wait.args_json else None,
            wait.created_at_ms,
            wait.expires_at_ms,
            wait.deadline_ms,
            wait.snapshot,
        )
        for wait in waiting
    ]
