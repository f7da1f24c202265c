"""What a person supplied to a run, as its page shows it: tool answers with what became of each, and the decision."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.incidents import inputs
from app.incidents.service import Run, Voucher
from app.web.values import Shown, show

_BRIEF: Final = 2_000
_SHOWN: Final = 20

# Glyph, word and sentence of what became of an answer.
_PROVEN: Final = ("✓", "proven", "a recorded model request carries it, and its digest covers every word")
_SUPPLIED: Final = ("~", "supplied", "served in place of the tool; nothing recorded proves it")
_UNUSED: Final = ("–", "not used", "no call of this tool with these arguments came")
_WAITING: Final = ("…", "supplied", "the run has not ended")


@dataclass(frozen=True, slots=True)
class AnswerView:
    """One supplied tool answer and what became of it."""

    tool: str
    arguments: Shown
    value: Shown
    glyph: str
    word: str
    sentence: str


@dataclass(frozen=True, slots=True)
class DecisionView:
    """The decision that a what-if tries, in words."""

    verb: str
    intent: str
    status: str = ""
    text: Shown | None = None


@dataclass(frozen=True, slots=True)
class InputsView:
    answers: Sequence[AnswerView]
    more: int
    decision: DecisionView | None


def inputs_view(run: Run) -> InputsView:
    """Both kinds of inputs; empty where nothing was supplied."""
    given = run.tool_answers or []
    verdict = run.verdict
    answers = [_answer(answer, verdict) for answer in given[:_SHOWN]]
    return InputsView(answers, max(0, len(given) - _SHOWN), None if run.decision is None else decision_of(run.decision))


def _answer(answer: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> AnswerView:
    tool, arguments = inputs.call_of(answer)
    fate = _WAITING if verdict is None else _fate(tool, arguments, verdict)
    value = json.dumps(answer["value"], ensure_ascii=False)
    return AnswerView(tool, show(arguments, _BRIEF), show(value, _BRIEF), *fate)


def _fate(tool: str, arguments: str, verdict: Mapping[str, Any]) -> tuple[str, str, str]:
    served = verdict.get("served", {})
    for proof in served.get("supplied", ()):
        if (proof["tool"], proof["arguments"]) == (tool, arguments):
            return _PROVEN if proof["proven"] else _SUPPLIED
    stopped = "supplied" not in served and served.get("tools", {}).get("supplied", 0)
    return _SUPPLIED if stopped else _UNUSED


def decision_of(decision: Mapping[str, Any]) -> DecisionView:
    told = inputs.result_told(decision)
    if told is not None:
        return DecisionView("the result of", decision["intent"], told["status"], show(told["text"], _BRIEF))
    return DecisionView("approving" if decision["approved"] else "rejecting", decision["intent"])


def template_for(run: Run) -> str:
    """What to fill in where a run stopped at a tool that could not run: its earlier answers, and one more."""
    reason = (run.verdict or {}).get("reason") or {}
    details = reason.get("details", {})
    if reason.get("code") != "tool_confined":
        return ""
    try:
        arguments = json.loads(details.get("arguments", ""))
    except ValueError:
        arguments = {}
    missing = {"tool": details.get("tool", ""), "arguments": arguments, "value": None}
    return inputs.answers_text([*(run.tool_answers or ()), missing])


def settled(run: Run, vouchers: Mapping[str, Voucher]) -> bool:
    """Whether a verdict rested on reads that other runs have vouched for since: then it is worth asking again."""
    verdict = run.verdict or {}
    doubtful = [read["read"] for read in verdict.get("reads", ()) if not read["vindicated"]]
    others = {read for read, voucher in vouchers.items() if voucher.number != run.number}
    return run.outcome == "irreproducible" and bool(doubtful) and others.issuperset(doubtful)
