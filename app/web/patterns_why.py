"""Made-up values for the part of the patterns page that tells why: the ledger, the plan, a missed request, steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from app.incidents.service import InputRefused
from app.web.views_miss import miss_of
from app.web.views_plan import Fact, PlanView
from app.web.views_steps import Chapter, Shared, align, shared_steps
from app.web.views_story import Telling, story
from app.web.views_timeline import Told

_KEY: Final = "5c11" * 16
_ASKED: Final = "Order 1188: the customer wrote that 2 of 3 cups arrived broken. The policy pays 49 for each."
_SAID: Final = "Two cups are broken.\nRefund 4900."


@dataclass(frozen=True, slots=True)
class Sample:
    """An entry of a ledger that was never written."""

    position: int
    kind: str
    name: str
    body: dict[str, Any]
    ordinal: int | None = 6
    size: int = 400

    @property
    def digest(self) -> str:
        """What tells entries apart."""
        return repr(self.body)


def _model(position: int, said: str) -> Sample:
    request = {
        "model": "risk-large-1",
        "messages": [{"role": "system", "content": "You refund fairly."}, {"role": "user", "content": _ASKED}],
        "params": {"temperature": 0},
    }
    decoded = {"text": said, "tokens": [212, 9, 0]}
    body = {"cache_key": _KEY, "request": request, "response": {"text": said}, "decoded": decoded, "from_cache": False}
    return Sample(position, "model", "risk-large-1", body)


def _tool(position: int, outcome: str, **end: Any) -> Sample:
    body = {"tool": "order_lookup", "arguments": {"order": "1188"}, "outcome": outcome}
    return Sample(position, "tool", "order_lookup", body | end)


def _memory(position: int, operation: str, **values: Any) -> Sample:
    return Sample(position, "memory", "refunded", {"operation": operation, "key": "refunded", **values})


_ENTRIES: Final = (
    _model(0, _SAID),
    Sample(1, "model", "", {"cache_key": "7a" * 32, "request": {"text": "x"}, "response": "ok", "from_cache": True}),
    _tool(2, "executed", value={"cups": 3, "paid": 14700}),
    _tool(3, "supplied", value={"cups": 3}),
    _tool(4, "failed", error="KeyError: 'order'"),
    _tool(5, "confined", error="it tried to reach orders.internal:443"),
    _tool(6, "refused", value=None),
    _memory(7, "get", value=None),
    _memory(8, "set", before=0, after=4900),
    _memory(9, "append", before=["2026-11-02"], after=["2026-11-02", "2026-11-29"]),
    _memory(10, "delete", before=4900, after=None),
    Sample(11, "intent", "issue_refund", {"tool": "issue_refund", "args": {"order": "1188", "amount": 4900}}),
    _model(12, "a" * 40_000),
)

_MISS: Final = {
    "cache_key": _KEY,
    "step_index": 2,
    "request": {
        "model": "risk-large-2",
        "messages": [{"role": "user", "content": _ASKED}],
        "params": {"temperature": 0.2},
    },
    "nearest": {"cache_key": "9b" * 32, "source": "snapshot-7.avro"},
    "differs": "model",
    "recorded": "risk-large-1",
}


def _steps() -> list[Shared]:
    left = [_ENTRIES[n] for n in (0, 2, 8, 11)]
    right = [_model(0, _SAID.replace("4900", "98")), _ENTRIES[2], _ENTRIES[8]]
    page = Chapter(align(left, right), None)
    return shared_steps(page, *({one.position: one.body for one in side} for side in (left, right)))


_PLAN: Final = PlanView(
    row="Exact, if what came before comes out as it was recorded.",
    exact=False,
    needs="the snapshot with counter 7",
    facts=(
        Fact("↦", "memory", "run forward from counter 5 through 2 activations", (("snapshot-5.avro", "#plan", ""),)),
        Fact("=", "model responses", "both that the attempt obtained are captured", (("snapshot-7.avro", "", "2"),)),
        Fact("∅", "model responses", "the one that the attempt obtained is not captured", more="1 captured later"),
    ),
    compared=("trace events", "outputs"),
    skipped=(("memory after", "no snapshot with counter 8"),),
    hooks=("redaction",),
    notes=("2 attempts share this clock: each is tried, and the one that fits is told",),
)


def told() -> dict[int, Told]:
    """Steps that an event of the sample timeline tells unasked."""
    return {6: Told(tuple(story(_ENTRIES[:1], _telling(brief=True))), 2)}


def _telling(*, brief: bool = False) -> Telling:
    return Telling({_KEY: "snapshot-7.avro"}, {"4900"}, brief)


def samples() -> dict[str, Any]:
    """What the patterns page needs of this part."""
    problem, expected, remedy = "line 2 is no JSON", "one answer a line", "Quote the value of `order`."
    return {
        "ledger_steps": story(_ENTRIES, _telling()),
        "miss": miss_of(_MISS, {"snapshot-7.avro": "#miss"}),
        "plan": _PLAN,
        "refused": InputRefused("tool_answers", problem, expected, remedy),
        "abreast_steps": _steps(),
        "left": {"number": 1, "build": "refunds-2026-11"},
        "right": {"number": 2, "build": "refunds-fix"},
    }
