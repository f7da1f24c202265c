"""Asks for runs: which builds, with which recorded answers, trying which decision; for pages and scripts alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import inputs, service
from app.incidents.changes import Changes
from app.incidents.service import Incident, InputRefused, Run, RunInputs, RunState
from app.operations import tracing
from app.web.compare import compare_path
from app.web.forms import Form, read_form
from app.web.incidents import WHAT_IF, Typed, incident_page, preview_of
from app.web.loading import ReplayIncident, builds_of, principal_of, settings_of, store_of
from app.web.views import suggested

router = APIRouter(include_in_schema=False)

MAX_BUILDS = 6
MOMENT_S: Final = 0.2


@router.post("/incidents/{incident_id}/replays")
async def replay(request: Request, incident: ReplayIncident) -> Response:
    """The Replay button: queue a run of each chosen build, and go where they can be followed."""
    form = await read_form(request)
    asked = Typed.of(form)
    try:
        chosen = _builds(form)
        answers, decision = inputs.answers_of(asked.tool_answers), await _decision(request, incident, form)
        supplied = RunInputs(answers, decision, _what_if(asked))
        runs = await queue_runs(request, incident, chosen, supplied)
    except InputRefused as refused:
        return await incident_page(request, incident, code=422, typed=asked, refused=refused)
    if len(runs) == 1:
        await _moment(request, runs[0])
        return RedirectResponse(f"/incidents/{incident.id}/runs/{runs[0].number}", 303)
    return RedirectResponse(compare_path(incident, [run.number for run in runs]), 303)


async def _moment(request: Request, run: Run) -> None:
    """Wait a moment for a run that ends at once: its page then shows the verdict when it is first drawn."""
    changes: Changes = request.app.state.changes
    async with changes.subscribe(run.id, but=(RunState.QUEUED, RunState.RUNNING)) as subscription:
        async with store_of(request).read() as session:
            _, state = await service.standing_of(session, run.id)
        if not state.finished:
            await subscription.wait(MOMENT_S)  # whatever it came to, the page reads it


def _builds(form: Form) -> list[str]:
    chosen = list(dict.fromkeys(form.values.get("build", ())))
    if not chosen:
        raise InputRefused("build", "no build is chosen", "one build, or several to compare", "Tick one.")
    if len(chosen) > MAX_BUILDS:
        raise InputRefused("build", f"{len(chosen)} builds are chosen", f"at most {MAX_BUILDS} at once", "Tick fewer.")
    return chosen


def _what_if(asked: Typed) -> bool:
    """Whether models are to be asked anew: by the form for that, on which the person says so."""
    if asked.form == WHAT_IF and not asked.what_if:
        what, remedy = "nobody said that it is a what-if", "Tick the box: what it shows has not happened."
        raise InputRefused("what_if", what, "the box ticked", remedy)
    return asked.what_if


async def _decision(request: Request, incident: Incident, form: Form) -> inputs.Decided | None:
    verb, intent = form.value("decision"), form.value("intent") or ""
    if not verb:
        return None
    if verb != "result":
        return inputs.decision_of({verb: intent})
    preview = await preview_of(request, incident, patience_s=None)
    wait = next((wait for wait in preview.waiting if wait.intent == intent), None) if preview else None
    if wait is None or incident.entity_key is None:
        raise InputRefused(
            "decision", f"nothing waits for intent {intent!r}", "an intent that the page lists", "Load the page again."
        )
    return inputs.result_decision(wait, incident.entity_key, form.value("status") or "", form.value("result") or "")


async def queue_runs(
    request: Request, incident: Incident, builds: Sequence[str], supplied: RunInputs = inputs.NOTHING
) -> list[Run]:
    """Queue a run of each build in one transaction, the suggested one first: it may vouch for what the others read.

    Raises `UnknownBuild`, `QueueFull` and `InputRefused`.
    """
    settings = settings_of(request)
    mine = builds_of(request)
    known = [each.name for each in mine]
    most = settings.console.max_waiting
    trace = tracing.parent()
    first, _ = suggested(mine, incident, settings.pipelines)
    who = principal_of(request).name
    async with store_of(request).write() as session:
        return [
            await service.request_replay(
                session, incident, build, who=who, known=known, inputs=supplied, most=most, trace_parent=trace
            )
            for build in sorted(builds, key=lambda build: build != first)
        ]
