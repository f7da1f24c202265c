"""Lays runs of one incident side by side: verdicts, first divergences, and intents with their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.incidents.service import Run, RunRow
from app.web.values import Shown, show, show_pair
from app.web.views import Status, status_of
from app.web.views_run import FirstDivergence, counts, first_divergence

_INTENTS: Final = 40


# Columns -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """One run of the comparison."""

    number: int
    build: str
    kind: str
    status: Status
    headline: str
    digest: str
    first: FirstDivergence | None
    counts: Sequence[str]
    outputs: Sequence[str]
    evidence_differs: bool


def columns(runs: Sequence[Run], firsts: Mapping[int, RunRow]) -> list[Column]:
    """The runs in the order asked for; `firsts` are the rows of their first divergences, by number."""
    return [
        Column(
            run.number,
            run.build,
            run.kind,
            status_of(run),
            run.headline or "",
            run.build_digest or "",
            None if run.verdict is None else first_divergence(run.verdict, firsts.get(run.number)),
            counts((run.verdict or {}).get("counts", {})),
            [one.get("text", "") for one in (run.verdict or {}).get("replayed", {}).get("outputs", ())[:5]],
            list(run.evidence_ids) != list(runs[0].evidence_ids),
        )
        for run in runs
    ]


# Intents -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """What one run did where an intent stands: `same` when it is the recorded one, None of both when it did nothing."""

    title: str
    arguments: Shown | None
    same: bool
    ordinal: int | None


@dataclass(frozen=True, slots=True)
class IntentLine:
    """One intent across the runs: as recorded (None: no record of it), then as each run emitted it."""

    recorded: Cell | None
    cells: Sequence[Cell | None]


def intent_lines(rows_of: Sequence[Sequence[RunRow]]) -> list[IntentLine]:
    """Align the intents of several runs by the recorded event that each stands for; those of no record come after."""
    recorded: dict[str, Mapping[str, Any]] = {}
    replayed: list[dict[str, tuple[int, Mapping[str, Any] | None]]] = []
    for rows in rows_of:
        here: dict[str, tuple[int, Mapping[str, Any] | None]] = {}
        extra = 0
        for row in rows:
            if row.recorded is not None:
                key = f"recorded {row.recorded['identity'].get('span_id') or row.ordinal}"
                recorded.setdefault(key, row.recorded)
            else:
                extra += 1
                key = f"extra {extra}"
            here[key] = (row.ordinal, row.replayed)
        replayed.append(here)
    keys = [*recorded, *dict.fromkeys(key for here in replayed for key in here if key not in recorded)]
    return [_intent_line(recorded.get(key), [here.get(key) for here in replayed]) for key in keys[:_INTENTS]]


def _intent_line(
    recorded: Mapping[str, Any] | None, found: Sequence[tuple[int, Mapping[str, Any] | None] | None]
) -> IntentLine:
    args = None if recorded is None else recorded["payload"].get("args_json")
    cells: list[Cell | None] = []
    for one in found:
        ordinal, event = one or (0, None)
        if event is None:
            cells.append(None)
            continue
        own = event["payload"].get("args_json")
        same = recorded is not None and own == args and _title(event) == _title(recorded)
        shown = None if own is None else show_pair(args, own)[1] if args is not None else show(own)
        cells.append(Cell(_title(event), shown, same, ordinal))
    alone = None if recorded is None else Cell(_title(recorded), show(args) if args is not None else None, False, None)
    return IntentLine(alone, cells)


def _title(event: Mapping[str, Any]) -> str:
    return " ".join(str(part) for part in (event["label"], event["about"]) if part)
