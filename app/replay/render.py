"""A report for a person at a terminal: verdict first, then the first divergence, then the rest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from app.replay.provenance import first_suspects
from app.replay.verdict import (
    FieldState,
    Outcome,
    Report,
    Row,
    RowState,
    SurfaceState,
    Verdict,
    key_text,
)

MEANINGS: Final = {
    Outcome.REPRODUCED: "the same run again",
    Outcome.DIVERGED: "this code does something else",
    Outcome.UNUSABLE: "the evidence is damaged or does not belong together",
    Outcome.IRREPRODUCIBLE: "something the run needs was not kept",
    Outcome.WHAT_IF: "this has not happened yet",
}

GLYPHS: Final = {
    RowState.EQUAL: "=",
    RowState.NORMALISED: "~",
    RowState.CHANGED: "≠",
    RowState.RECORDED_ONLY: "−",
    RowState.REPLAYED_ONLY: "+",
}

COLOURS: Final = {
    Outcome.REPRODUCED: "32",
    Outcome.DIVERGED: "31",
    Outcome.UNUSABLE: "35",
    Outcome.IRREPRODUCIBLE: "33",
    Outcome.WHAT_IF: "36",
}

FOLD_ABOVE: Final = 3
WIDTH: Final = 160


def text(report: Report, *, colour: bool = False) -> str:
    """The whole report as text that ends in a newline; `colour` adds terminal colours."""
    return "\n".join(_lines(report, _Paint(colour))) + "\n"


class _Paint:
    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, words: str, code: str) -> str:
        return f"\x1b[{code}m{words}\x1b[0m" if self._colour else words


def surfaces(verdict: Verdict, *, colour: bool = False) -> Iterator[str]:
    """What was compared, a line each."""
    yield from _surfaces(verdict, _Paint(colour))


def timeline(report: Report, *, colour: bool = False) -> Iterator[str]:
    """The aligned rows, equal ones folded."""
    yield from _timeline(report, _Paint(colour))


def _lines(report: Report, paint: _Paint) -> Iterator[str]:
    verdict = report.verdict
    name = paint(str(verdict.outcome), f"1;{COLOURS[verdict.outcome]}")
    yield f"{name}: {MEANINGS[verdict.outcome]}"
    yield f"  {verdict.headline}"
    if verdict.reason is not None and verdict.reason.remedy:
        yield f"  what to do: {verdict.reason.remedy}"
    for suspect in first_suspects(verdict):
        yield f"  first suspect: {suspect}"
    yield from _reason_details(verdict)
    yield ""
    yield from _attempt(verdict)
    yield from _surfaces(verdict, paint)
    yield from _timeline(report, paint)
    yield from _would(verdict)
    yield from _served(verdict)
    for note in verdict.notes:
        yield f"  note: {note}"


def _reason_details(verdict: Verdict) -> Iterator[str]:
    if verdict.reason is None:
        return
    for name, value in verdict.reason.details.items():
        if name in ("cache_key", "differs", "nearest", "request", "missing", "found"):
            yield f"  {name.replace('_', ' ')}: {_cut(str(value))}"


def _attempt(verdict: Verdict) -> Iterator[str]:
    attempt = verdict.attempt
    if attempt is None:
        return
    key = key_text(attempt.entity_key)
    shown = f"{key} ({attempt.entity_key.hex()})" if key else attempt.entity_key.hex() or "(empty)"
    yield f"  key      {shown}"
    status = f", recorded {attempt.status}" if attempt.status else ", not recorded"
    yield f"  attempt  seq {attempt.seq} {attempt.kind}{status}, clock {utc(attempt.clock_ms)}"
    plan = verdict.plan
    if plan:
        memory = plan["memory"]
        yield f"  state    {memory['source']}, counter {memory['counter']} ({memory['fit']})"
        if plan["exact_would_need"]:
            yield f"           exact with {plan['exact_would_need']}"


def _surfaces(verdict: Verdict, paint: _Paint) -> Iterator[str]:
    if not verdict.surfaces:
        return
    yield ""
    yield "compared"
    for surface in verdict.surfaces:
        mark = {
            SurfaceState.EQUAL: "=",
            SurfaceState.DIFFERENT: paint("≠", "31"),
            SurfaceState.NOT_COMPARED: "?",
        }[surface.state]
        yield f"  {mark} {surface.name:<24} {surface.state}{_because(surface.detail)}"


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""


def _timeline(report: Report, paint: _Paint) -> Iterator[str]:
    if not report.rows:
        return
    yield ""
    counts = report.verdict.counts
    parts = [f"{number} {name}" for name, number in counts.items() if number and name != "rows"]
    yield f"timeline ({', '.join(parts)})" if parts else "timeline"
    equal: list[Row] = []
    for row in report.rows:
        if row.state is RowState.EQUAL:
            equal.append(row)
            continue
        yield from _equal(equal)
        equal = []
        yield from _row(row, paint)
    yield from _equal(equal)


def _would(verdict: Verdict) -> Iterator[str]:
    """What a decision that was tried would lead to: nothing of it was recorded, so here are the values themselves."""
    if verdict.outcome is not Outcome.WHAT_IF:
        return
    made = verdict.replayed
    yield ""
    yield "would be emitted (nothing was sent)"
    if not made.get("intents") and not made.get("outputs"):
        yield "  no intent and no output"
    for intent in made.get("intents", ()):
        yield f"  intent {intent['tool']}  {_whole(intent['args_json'])}"
        yield f"         id {intent['intent_id']}"
    for output in made.get("outputs", ()):
        yield f"  output {_whole(output['text'])}"
    if "continuation" in made:
        yield f"  and it would wait again, with {made['continuation']['bytes']} bytes of its own to resume from"
    if "error" in made:
        yield f"  and it would fail: {_whole(made['error']['detail'])}"


def _whole(value: str) -> str:
    """A value on one line; products are heads already, so it is not cut again."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in value)


def _equal(rows: list[Row]) -> Iterator[str]:
    if len(rows) > FOLD_ABOVE:
        yield f"        … {len(rows)} equal events"
        return
    for row in rows:
        yield f"  {row.ordinal:>4} = {_event(row)}"


def _row(row: Row, paint: _Paint) -> Iterator[str]:
    glyph = GLYPHS[row.state]
    if row.differs:
        glyph = paint(glyph, "31")
    side = {
        RowState.RECORDED_ONLY: "  (recorded only)",
        RowState.REPLAYED_ONLY: "  (replayed only)",
    }.get(row.state, "")
    cause = "" if row.cause is None else f"  follows from event {row.cause}"
    yield f"  {row.ordinal:>4} {glyph} {_event(row)}{side}{cause}"
    for field in row.fields:
        if row.cause is not None:
            continue
        name = field.name.removeprefix("attributes.")
        word = "normalised" if field.state is FieldState.NORMALISED else "differs"
        yield (f"           {word}: {name}: recorded {_side(field.recorded)}, replayed {_side(field.replayed)}")


def _event(row: Row) -> str:
    event = row.event
    return event.title if event.step is None else f"{event.title}  step {event.step}"


def _side(value: str | None) -> str:
    return "nothing" if value is None else _cut(value)


def _cut(value: str) -> str:
    one_line = value.replace("\n", "\\n")
    return one_line if len(one_line) <= WIDTH else f"{one_line[: WIDTH - 1]}…"


def _served(verdict: Verdict) -> Iterator[str]:
    served = verdict.served
    if not served:
        return
    yield ""
    yield (
        f"served     model answers from the cache: {served['cache_hits']}, as the provider's:"
        f" {served['recorded_answers']} ({served['mode']}); tools run again:"
        f" {served['tools_reexecuted']}; provider calls: {served['provider_calls']}"
    )
    held = verdict.confinement
    if held:
        yield f"confined   {held.get('tier', 'unknown')}: {', '.join(held.get('measures', ())) or '-'}"
    if verdict.driver:
        yield f"driver     {verdict.driver['name']} {verdict.driver['version']}"
    for output in verdict.replayed.get("outputs", ()):
        yield f"output     {output['bytes']} bytes, sha256 {output['sha256']}"


def utc(ms: int) -> str:
    """Epoch milliseconds as UTC with milliseconds and a Z; the number itself where no date fits."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}Z"
