"""The page that lays runs of one incident side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.incidents import service
from app.incidents.audit import Action
from app.incidents.service import Incident, Run
from app.web.auditing import record_view
from app.web.loading import MAX_NUMBER, ReadIncident, pages_of, store_of
from app.web.problems import Problem, Refused
from app.web.views_compare import columns, intent_lines
from app.web.views_incident import version_of
from app.web.views_steps import align, chapter, shared_steps

router = APIRouter(include_in_schema=False)

MOST: Final = 6  # runs side by side
STEPS: Final = 5_000  # steps of a run that are aligned
CHANGED: Final = 12  # differing steps on one page

Numbers = Annotated[list[str] | None, Query(max_length=20)]


@router.get("/incidents/{incident_id}/compare")
async def compare(
    request: Request,
    incident: ReadIncident,
    runs: Numbers = None,
    between: Annotated[str, Query(max_length=40)] = "",
    start: Annotated[int, Query(ge=0, le=MAX_NUMBER)] = 0,
) -> Response:
    """Runs of one incident: verdicts and intents of all, and step by step what two of them did (`between=1,2`)."""
    numbers = _numbers(runs or [])
    async with store_of(request).read() as session:
        chosen = [await service.get_run_by_number(session, incident, number) for number in numbers]
        everyone = await service.runs_of(session, incident)
        firsts = {
            run.number: await service.get_row(session, run, run.first_divergence)
            for run in chosen
            if run.first_divergence is not None
        }
        intents = [await service.rows_with_payload(session, run, "args_json") for run in chosen]
    left, right = _pair(chosen, between)
    context = await _steps(request, left, right, start)
    if context["told"]:
        await record_view(request, Action.EVIDENCE_READ, incident, compared=[left.number, right.number], start=start)
    return pages_of(request).page(
        "compare.html",
        request,
        incident=incident,
        columns=columns(chosen, firsts),
        intents=intent_lines(intents),
        left=left,
        right=right,
        others=_others(chosen, left, right),
        live=any(not run.run_state.finished for run in chosen),
        seen=version_of(everyone),
        start=start,
        **context,
    )


def _numbers(given: Sequence[str]) -> list[int]:
    """Run numbers as a URL has them: `runs=1,2`; those of ticked boxes, `runs=2&runs=1`, in the order of the runs."""
    texts = [text.strip() for part in given for text in part.split(",") if text.strip()]
    if not all(text.isascii() and text.isdigit() and 0 < int(text[:10]) <= MAX_NUMBER for text in texts):
        raise Refused(_refusal("Not all of these are numbers of runs."))
    numbers = list(dict.fromkeys(map(int, texts)))
    if len(given) > 1:
        numbers.sort()  # a list that begins with the newest would put the build that ran on the right
    if not 2 <= len(numbers) <= MOST:
        raise Refused(_refusal(f"{len(numbers)} runs are named."))
    return numbers


def _refusal(what: str) -> Problem:
    return Problem(
        422, "Cannot compare", what, f"two to {MOST} runs of this incident, as in ?runs=1,2", "Tick runs in its list."
    )


def _pair(runs: Sequence[Run], between: str) -> tuple[Run, Run]:
    """The two runs whose steps are compared: those named, else the first two."""
    by_number = {str(run.number): run for run in runs}
    named = [by_number[text] for text in dict.fromkeys(between.split(",")) if text in by_number]
    left, right, *_ = [*named, *(run for run in runs if run not in named)] if len(named) != 2 else named
    return left, right


def _others(runs: Sequence[Run], left: Run, right: Run) -> list[tuple[int, int]]:
    """Other pairs that could be compared step by step."""
    pairs = [(one.number, other.number) for n, one in enumerate(runs) for other in runs[n + 1 :]]
    return [pair for pair in pairs if pair != (left.number, right.number)]


async def _steps(request: Request, left: Run, right: Run, start: int) -> dict[str, Any]:
    if not (left.ledger and right.ledger):
        return {"steps": [], "next": None, "total": 0, "changed": 0, "told": False}
    async with store_of(request).read() as session:
        one = await service.ledger_outline_of(session, left, STEPS)
        other = await service.ledger_outline_of(session, right, STEPS)
        pairs = await asyncio.to_thread(align, one, other)
        page = chapter(pairs, start, CHANGED)
        bodies = [
            {entry.position: entry.body for entry in await service.ledger_bodies(session, run, page.positions(side))}
            for run, side in ((left, "left"), (right, "right"))
        ]
    steps = await asyncio.to_thread(shared_steps, page, *bodies)
    changed = sum(not pair.equal for pair in pairs)
    return {"steps": steps, "next": page.next, "total": len(pairs), "changed": changed, "told": True}


def compare_path(incident: Incident, numbers: Sequence[int]) -> str:
    return f"/incidents/{incident.id}/compare?runs={','.join(map(str, numbers))}"
