"""What a re-run did, for pages and scripts: what was executed, answered and only recorded, its products, its ledger."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from app.flink.inside.messages import Call, Ending, Outcome
from app.flink.inside.messages import canonical as canonical_json
from app.flink.rerun.case import Case
from app.flink.rerun.recorded import from_wire
from app.flink.rerun.requests import whole
from app.flink.rerun.rows import Aligned
from app.replay.verdict import LedgerEntry

_HEAD: Final = 2_000
_SHOWN: Final = 20_000
_DONE: Final = {
    Outcome.EXECUTED: "executed",
    Outcome.ANSWERED: "answered from the record",
    Outcome.STAND_IN: "only recorded",
    Outcome.MISSED: "not answered",
    Outcome.REFUSED: "refused",
}


def products(case: Case) -> dict[str, Any]:
    """What the re-run produced, compared or not."""
    result = case.result
    outputs = [one.attributes.get("output") for one in result.events if one.type == "_output_event"]
    tools = [call for call in result.calls if call.kind == "tool" and call.outcome is not Outcome.EXECUTED]
    told: dict[str, Any] = {
        "outputs": [_bytes(one) for one in outputs],
        "intents": [
            {"tool": call.name, "intent_id": "", "args_json": canonical_json(call.request)[:_HEAD]} for call in tools
        ],
        "memory": from_wire(result.memory),
    }
    if result.ending is Ending.FAILED:
        told["error"] = {"type": result.error_type, "detail": result.detail[:_HEAD]}
    if case.ran.printed:
        told["printed"] = case.ran.printed[:_HEAD]
    return told


def ledger(case: Case, found: Aligned) -> Iterator[LedgerEntry]:
    """Every call of the re-run, at the event that it explains."""
    for index, call in enumerate(case.result.calls):
        ordinal = found.of_call.get(index)
        if ordinal is None and call.event is not None:
            ordinal = found.of_event.get(call.event)
        yield LedgerEntry(ordinal, "model" if call.kind == "model" else "tool", _told(call))


def _told(call: Call) -> dict[str, Any]:
    """One call as the ledger has it; see `app.replay.ledger` for the kinds."""
    done = _DONE[call.outcome] + (f": {call.detail}" if call.detail else "")
    if call.kind == "model":
        request = whole(call)
        return {
            "cache_key": call.full,
            "from_cache": False,
            "request": for_page(dict(request)),
            "response": call.value,
            "outcome": done,
        }
    name = call.name if call.kind == "tool" else f"{call.kind} {call.name}"
    body = {"tool": name, "arguments": call.request, "outcome": done}
    return body | ({"error": call.detail} if call.value is None and call.detail else {"value": call.value})


def for_page(request: dict[str, Any]) -> dict[str, Any]:
    """A request with the names that pages know; a huge one as its head."""
    parameters = request.pop("parameters", {})
    told = {"model": parameters.get("model", request.get("connection", "")), **request, "params": parameters}
    text = canonical_json(told)
    return told if len(text) <= _SHOWN else {"head": text[:_SHOWN]}


def served(case: Case) -> dict[str, Any]:
    """What was executed, answered from the record, only recorded, refused: each with its count."""
    counted: dict[str, Counter[str]] = {}
    for call in case.result.calls:
        counted.setdefault(_DONE[call.outcome], Counter())[f"{call.kind} {call.name}"] += 1
    told: dict[str, Any] = {word: dict(counted.get(word, {})) for word in _DONE.values()}
    return {"mode": "what-if" if case.live else "replay", **told}


def _bytes(value: Any) -> dict[str, Any]:
    data = canonical_json(value).encode("utf-8", "surrogatepass")
    return {
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "text": data[:_HEAD].decode(errors="replace"),
    }
