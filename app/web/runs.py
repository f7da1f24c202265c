"""The pages of a run: its verdict and timeline, one event opened, its ledger, one value whole; and running it again."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import inputs, pool, service
from app.incidents.audit import Action
from app.incidents.flink_evidence import KIND as RECORDED_RUN
from app.incidents.service import InputRefused, LedgerPage, ReadSession, RunRow
from app.operations import tracing
from app.web.auditing import record_run_view, record_view, run_viewed
from app.web.downloads import download
from app.web.formats import duration
from app.web.forms import read_form
from app.web.loading import (
    MAX_NUMBER,
    CurrentRun,
    Number,
    ReadRun,
    ReplayRun,
    ViewRun,
    builds_of,
    pages_of,
    principal_of,
    settings_of,
    store_of,
)
from app.web.looks import Look, ReadLook, seen, telling_of
from app.web.problems import Refused, json_response, not_found
from app.web.reproduce import command
from app.web.sights import event_page, run_page, verdict_file, viewers_sight
from app.web.views import links_of, status_of
from app.web.views_inputs import inputs_view, settled, template_for
from app.web.views_run import about, verdict_view
from app.web.views_story import story
from app.web.views_timeline import every_field, timeline

router = APIRouter(prefix="/incidents/{incident_id}/runs/{number}", include_in_schema=False)

FIELDS = 100  # fields of an opened event on one page
STEPS = 20  # entries of the ledger on one page

Place = Annotated[int, Query(ge=0, le=MAX_NUMBER)]


@router.get("")
async def run(request: Request, current: ViewRun, look: ReadLook) -> Response:
    """The run page, whatever state the run is in; `look` says which part of the timeline it shows."""
    async with run_viewed(request, current):
        if (sight := viewers_sight(request, current.incident)) is not None:
            return await run_page(request, sight, str(current.run.number))
        return await _page(request, current, look)


async def _page(
    request: Request, current: CurrentRun, look: Look, supply: str | None = None, refused: InputRefused | None = None
) -> Response:
    """Draw the run; `supply` are tool answers as they were typed, `refused` says what is wrong with them."""
    code = 200 if refused is None else 422
    if current.run.verdict is None:
        async with store_of(request).read() as session:
            waits_for = await pool.why_waiting(session, current.run, shown=[build.name for build in builds_of(request)])
        return pages_of(request).page("run.html", request, code, **_header(request, current), waits_for=waits_for)
    async with store_of(request).read() as session:
        first = await _first(session, current)
        verdict = current.run.verdict
        # A reason names files, and a doubtful read those who vouch for it; most verdicts have neither.
        kept = await service.evidence_of(session, current.incident) if verdict.get("reason") else []
        evidence = links_of(current.incident, kept)
        vouchers = await service.vouchers(session, current.run) if verdict.get("reads") else {}
        context = _header(request, current, first, evidence) | {
            "seen": await seen(session, current.run, look, first),
            "look": look,
            "unfolded": list(look.unfolded),
            "vouchers": vouchers,
            "settled": settled(current.run, vouchers),
            "loose": await _loose(session, current, first),
            "supply": supply if supply is not None else template_for(current.run),
            "refused": refused,
        }
    return pages_of(request).page("run.html", request, code, **context)


@router.get("/events/{ordinal}")
async def event(
    request: Request,
    current: ViewRun,
    ordinal: Number,
    fields: Place = 0,
    steps: Place = 0,
) -> Response:
    """One event, told and with every field of both sides: a page of its own, and what `o` opens in the timeline."""
    if (sight := viewers_sight(request, current.incident)) is not None:
        await record_run_view(request, current)
        return await event_page(request, sight, str(current.run.number), str(ordinal))
    async with store_of(request).read() as session:
        row = await service.get_row(session, current.run, ordinal)
        around = await service.neighbours(session, current.run, ordinal)
        first = await _first(session, current)
        told = await service.ledger_at(session, current.run, ordinal, start=steps, limit=STEPS)
    await record_view(request, Action.EVIDENCE_READ, current.incident, run=current.run.number, event=ordinal)
    line = timeline([row], bodies={row.ordinal: row}, normalised={}, first_divergence=None)[0]
    whole = every_field(row)
    context = _header(request, current) | {
        "row": row,
        "line": line,
        "fields": whole[fields : fields + FIELDS],
        "more_fields": fields + FIELDS if len(whole) > fields + FIELDS else None,
        "count": len(whole),
        "steps": story(told.entries, telling_of(current.run, first)),
        "more_steps": told.next,
        "around": around,
    }
    return pages_of(request).page("event.html", request, **context)


@router.get("/verdict.json")
async def verdict(request: Request, current: ViewRun) -> Response:
    """The verdict as JSON, as a file: what `hindcast replay --format json` prints, redacted for viewers."""
    await record_run_view(request, current)
    if (sight := viewers_sight(request, current.incident)) is not None:
        return await verdict_file(request, sight, str(current.run.number))
    if current.run.verdict is None:
        raise Refused(not_found("The run has no verdict yet."))
    data = bytes(json_response(dict(current.run.verdict)).body)
    return download(data, f"verdict-run-{current.run.number}.json", "application/json")


@router.get("/ledger")
async def ledger(request: Request, current: ReadRun, start: Annotated[int, Query(ge=0, le=MAX_NUMBER)] = 0) -> Response:
    """The run's ledger in its own order, from the first step to the last."""
    async with store_of(request).read() as session:
        page = await service.ledger_page(session, current.run, start=start, limit=STEPS)
        first = await _first(session, current)
    await record_view(request, Action.EVIDENCE_READ, current.incident, run=current.run.number, ledger=start)
    places = {entry.position: entry.ordinal for entry in page.entries}
    context = _header(request, current) | {
        "steps": story(page.entries, telling_of(current.run, first)),
        "places": places,
        "next": page.next,
        "start": start,
    }
    return pages_of(request).page("ledger.html", request, **context)


@router.get("/ledger.jsonl")
async def ledger_file(request: Request, current: ReadRun) -> Response:
    """The whole ledger as JSON lines, the same that `hindcast replay --ledger` writes."""
    await record_view(request, Action.EVIDENCE_READ, current.incident, run=current.run.number, ledger="all")
    async with store_of(request).read() as session:
        lines = [json.dumps(line) + "\n" async for line in service.ledger_lines(session, current.run)]
    data = "".join(lines).encode("ascii")
    return download(data, f"run-{current.run.number}-ledger.jsonl", "application/jsonl")


@router.get("/ledger/{position}")
async def ledger_entry(request: Request, current: ReadRun, position: Number) -> Response:
    """One step of the ledger whole, as a file."""
    async with store_of(request).read() as session:
        entry = await service.ledger_entry(session, current.run, position)
    await record_view(request, Action.EVIDENCE_READ, current.incident, run=current.run.number, step=position)
    text = json.dumps(service.entry_json(entry), indent=2)
    return download(text.encode("ascii"), f"run-{current.run.number}-step-{position}.json", "application/json")


@router.get("/tool-answers.jsonl")
async def tool_answers(current: ReadRun) -> Response:
    """The tool answers that were supplied to this run, as `--tool-answers` takes them."""
    if not current.run.tool_answers:
        raise Refused(not_found("No tool answers were supplied to this run."))
    return download(inputs.answers_text(current.run.tool_answers).encode(), "tool-answers.jsonl", "application/jsonl")


@router.get("/result.pb")
async def result(current: ReadRun) -> Response:
    """The tool result that this run tries, as `--result` takes it."""
    data = None if current.run.decision is None else inputs.result_bytes(current.run.decision)
    if data is None:
        raise Refused(not_found("This run tries no tool result."))
    return download(data, "result.pb", "application/octet-stream")


@router.get("/value")
async def value(
    request: Request,
    current: ReadRun,
    ordinal: Annotated[int, Query(ge=0, le=MAX_NUMBER)],
    side: str,
    name: Annotated[str, Query(alias="field")],
) -> Response:
    """One value whole, as a file: the page shows only the head of large ones."""
    async with store_of(request).read() as session:
        row = await service.get_row(session, current.run, ordinal)
    text = _value(row, side, name)
    if text is None:
        raise Refused(not_found(f"Event {ordinal} has no {side} value {name!r}."))
    await record_view(
        request, Action.EVIDENCE_READ, current.incident, run=current.run.number, event=ordinal, field=name, side=side
    )
    return download(text.encode("utf-8", "surrogatepass"), f"event-{ordinal}-{name}-{side}.txt", "text/plain")


@router.post("/retry")
async def retry(request: Request, current: ReplayRun) -> Response:
    """Queue a run again that ended without a verdict."""
    settings = settings_of(request)
    known = [build.name for build in builds_of(request)]
    async with store_of(request).write() as session:
        await service.retry_run(
            session,
            current.run.id,
            who=principal_of(request).name,
            known=known,
            most=settings.console.max_waiting,
        )
    return RedirectResponse(current.base, 303)


@router.post("/again")
async def again(request: Request, current: ReplayRun) -> Response:
    """Ask for the same once more, as a new run: with other tool answers, or since another run has vouched for reads."""
    run = current.run
    settings = settings_of(request)
    known = [build.name for build in builds_of(request)]
    typed = (await read_form(request)).value("tool_answers")
    try:
        supplied = service.inputs_of(run)
        if typed is not None:
            supplied = replace(supplied, tool_answers=inputs.answers_of(typed))
        async with store_of(request).write() as session:
            made = await service.request_replay(
                session,
                current.incident,
                run.build,
                who=principal_of(request).name,
                known=known,
                inputs=supplied,
                most=settings.console.max_waiting,
                trace_parent=tracing.parent(),
            )
    except InputRefused as refused:
        return await _page(request, current, Look(), typed, refused)
    return RedirectResponse(f"/incidents/{current.incident.id}/runs/{made.number}", 303)


@router.post("/cancel")
async def cancel(request: Request, current: ReplayRun) -> Response:
    """End a run that waits or works."""
    async with store_of(request).write() as session:
        await service.cancel_run(session, current.run.id, who=principal_of(request).name)
    return RedirectResponse(current.base, 303)


def _header(
    request: Request,
    current: CurrentRun,
    first: RunRow | None = None,
    evidence: dict[str, str] | None = None,
) -> dict[str, Any]:
    """What every state of the page shows."""
    run, verdict = current.run, current.run.verdict
    since = (run.started_at if run.state == "running" else None) or run.created_at
    waited_ms = max(0, int(time.time() * 1000) - since)
    return {
        "incident": current.incident,
        "run": run,
        "retryable": run.run_state.retryable,
        "base": current.base,
        "status": status_of(run),
        "verdict": None if verdict is None else verdict_view(verdict, first, evidence or {}),
        "supplied": inputs_view(run),
        "elapsed": duration(waited_ms) if waited_ms >= 1000 else "a moment",
        "about": about(run),
        "compared": current.incident.kind == RECORDED_RUN,
        "reproduce": command(builds_of(request), run, current.incident),
        "seen": None,
        "loose": {"steps": [], "next": None},
    }


async def _first(session: ReadSession, current: CurrentRun) -> RunRow | None:
    first = current.run.first_divergence
    return None if first is None else await service.get_row(session, current.run, first)


async def _loose(session: ReadSession, current: CurrentRun, first: RunRow | None) -> dict[str, Any]:
    """Steps that no event of the timeline tells: of a run without a timeline, all of them."""
    if not (current.run.ledger or {}).get("unplaced"):
        return {"steps": [], "next": None}
    page: LedgerPage = await service.ledger_at(session, current.run, None, limit=STEPS // 2)
    return {"steps": story(page.entries, telling_of(current.run, first, brief=True)), "next": page.next}


def _value(row: Any, side: str, name: str) -> str | None:
    """A field of one side, by the name under which the page shows it."""
    if side not in ("recorded", "replayed"):
        return None
    for item in row.fields:
        if item["name"] == name:
            return _known(item[side])
    event = getattr(row, side) or {}
    for group, prefix in (("attributes", "attributes."), ("payload", ""), ("identity", "")):
        found = event.get(group, {}).get(name.removeprefix(prefix))
        if found is not None:
            return _known(found)
    return None


def _known(value: object) -> str | None:
    return None if value is None else str(value)
