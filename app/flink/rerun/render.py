"""A stretch for a person at a terminal, and as one JSON object for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from app.flink.rerun.recorded import Recorded
from app.flink.rerun.requests import said
from app.flink.rerun.stretch import Replayed, summed
from app.replay import render as usual
from app.replay.verdict import FieldPair, FieldState, Outcome, Report

_MEANINGS: Final = usual.MEANINGS | {Outcome.WHAT_IF: "models were asked anew, and nothing was done for real"}
_SHOWN: Final = 20  # changed calls and outputs that are listed
_DETAILED: Final = 3  # inputs of a stretch that are told in full


def as_json(replayed: Replayed) -> dict[str, Any]:
    """The whole stretch: its sum, and the verdict on each input."""
    return {
        "schema": 1,
        "verdict": str(replayed.outcome),
        "exit_code": replayed.outcome.exit_code,
        "build": replayed.build,
        "recorded_by": replayed.reference or None,
        "sum": summed(replayed),
        "inputs": [
            {"run": one.run.ref, "key": one.run.key, "seq": one.seq, **report.verdict.as_json()}
            for one, report in zip(replayed.inputs, replayed.reports, strict=True)
        ],
    }


def text(replayed: Replayed, *, colour: bool = False) -> str:
    """One input in full, or a stretch summed up with its first differing inputs in full; ends in a newline."""
    if len(replayed.reports) == 1:
        return "\n".join(_one(replayed.inputs[0], replayed.reports[0], colour)) + "\n"
    return "\n".join(_stretch(replayed, colour)) + "\n"


def _stretch(replayed: Replayed, colour: bool) -> Iterator[str]:
    told = summed(replayed)
    yield _paint(str(replayed.outcome), replayed.outcome, colour)
    against = f" against the record of {replayed.reference}" if replayed.reference else ""
    yield f"  {told['inputs']} inputs with build {replayed.build}{against}, {told['ms_per_input']:.1f} ms an input"
    yield f"  verdicts: {', '.join(f'{count} {name}' for name, count in told['verdicts'].items())}"
    yield from _changed("inputs that differ", [f"{_place(one)}: {one['differences']} events" for one in told["differ"]])
    yield from _changed("tool calls that changed", [_change(one) for one in told["tool_calls"]])
    yield from _changed("outputs that changed", [_change(one) for one in told["outputs"]])
    yield from _changed("not known", [f"{_place(one)}: {one['reason']}" for one in told["unknown"]])
    wanted = [
        (one, report)
        for one, report in zip(replayed.inputs, replayed.reports, strict=True)
        if report.verdict.outcome is not Outcome.REPRODUCED
    ]
    for one, report in wanted[:_DETAILED]:
        yield ""
        yield from _one(one, report, colour)
    if len(wanted) > _DETAILED:
        yield ""
        yield f"and {len(wanted) - _DETAILED} more; one of them in full: --key KEY --seq N"


def _changed(title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield ""
    yield f"{title} ({len(lines)})"
    yield from (f"  {line}" for line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield f"  and {len(lines) - _SHOWN} more, in the JSON"


def _change(one: Mapping[str, Any]) -> str:
    if not one["field"]:
        side = "only in the re-run" if one["recorded"] is None else "only in the record"
        return f"{_place(one)}: {one['name']} {side}"
    return f"{_place(one)}: {one['name']} {one['field']}: recorded {one['recorded']}, replayed {one['replayed']}"


def _place(one: Mapping[str, Any]) -> str:
    return f"{one['key'] if one['key'] is not None else one['run']} #{one['seq']}"


def _paint(word: str, outcome: Outcome, colour: bool) -> str:
    return f"\x1b[1;{usual.COLOURS[outcome]}m{word}\x1b[0m" if colour else word


def _one(one: Recorded, report: Report, colour: bool) -> Iterator[str]:
    verdict = report.verdict
    yield f"{_paint(str(verdict.outcome), verdict.outcome, colour)}: {_MEANINGS[verdict.outcome]}"
    yield f"  {verdict.headline}"
    if verdict.reason is not None:
        if verdict.reason.remedy:
            yield f"  what to do: {verdict.reason.remedy}"
        for change in verdict.reason.details.get("changes", ()):
            part = FieldPair(change["part"], change["recorded"], change["replayed"], FieldState.CHANGED)
            yield f"  request {said(part)}"
    yield ""
    yield f"  input    key {one.run.key if one.run.key is not None else '—'}, number {one.seq}, run {one.run.ref}"
    yield f"           {usual.utc(one.run.first_ns // 1_000_000)}, recorded {one.run.status}"
    for name in ("build", "recorded by", "memory", "model requests"):
        yield f"  {name:<15} {verdict.plan.get(name, '')}"
    yield from usual.surfaces(verdict, colour=colour)
    yield from usual.timeline(report, colour=colour)
    yield from _served(verdict.served)
    if verdict.confinement:
        yield f"confined   {verdict.confinement.get('tier')}: {', '.join(verdict.confinement.get('measures', ()))}"
    for note in verdict.notes:
        yield f"  note: {note}"


def _served(served: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    for word, calls in served.items():
        if word == "mode":
            continue
        told = ", ".join(f"{name} × {count}" for name, count in calls.items()) if calls else "nothing"
        yield f"{word:<24} {told}"
