"""The pages of event logs of Flink Agents: runs found and read, logs imported, an incident opened from a run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import RedirectResponse, Response

from app.flink import keys
from app.incidents import flink_runs
from app.incidents.audit import Action, record_event
from app.incidents.errors import IncidentError
from app.incidents.flink_import import Imported, import_bytes
from app.incidents.flink_models import FlinkRun
from app.incidents.flink_opening import open_flink_incident
from app.incidents.flink_runs import RunFilter, RunPage, WholeRun
from app.incidents.service import Incident
from app.web import flink_seen, sights
from app.web.auditing import record_view
from app.web.downloads import download
from app.web.forms import Form, read_form
from app.web.incidents import WHAT_IF
from app.web.loading import (
    IMPORT,
    LOGS,
    SEE_LOGS,
    ReadIncident,
    ViewIncident,
    pages_of,
    principal_of,
    settings_of,
    store_of,
)
from app.web.problems import Refused, not_found
from app.web.recorded import Recorded, context_of, event_page, recorded_of, value_file
from app.web.sights import viewers_sight
from app.web.values import show
from app.web.views_recorded import run_status

router = APIRouter(include_in_schema=False)

MAX_ID: Final = 2**63 - 1
Ident = Annotated[int, Path(ge=0, le=MAX_ID)]
Ordinal = Annotated[int, Path(ge=0, le=2**31 - 1)]


# Runs ----------------------------------------------------------------------------------------------------------------


@router.get("/flink", dependencies=[SEE_LOGS])
async def runs(request: Request, after: str | None = None) -> Response:
    """Runs, newest first; the query of the address is the filter. Redacted for viewers."""
    if flink_seen.only_seen(request):
        return await flink_seen.runs_page(request, _wanted(request.query_params), after or None)
    return await _runs_page(request, after=after)


async def _runs_page(request: Request, *, after: str | None = None, code: int = 200, **more: Any) -> Response:
    query = request.query_params
    problem = None
    async with store_of(request).read() as session:
        try:
            page = await flink_runs.list_runs(session, _wanted(query), after=after or None)
        except IncidentError as error:
            page, problem = RunPage((), None, 0), str(error)
        offered = await flink_runs.run_choices(session)
        logs = await flink_runs.list_logs(session)
    filtered = any(value for name, value in query.multi_items() if name != "after")
    context: dict[str, Any] = {"troubles": (), "done": (), "key_paths": "\n".join(settings_of(request).flink.key_paths)}
    return pages_of(request).page(
        "flink.html",
        request,
        code,
        page=page,
        problem=problem,
        offered=offered,
        logs=logs,
        statuses=flink_runs.STATUSES,
        query=query,
        filtered=filtered,
        paged=bool(after),
        status_of=run_status,
        limits=request.app.state.limits,
        **(context | more),
    )


def _wanted(query: Mapping[str, str]) -> RunFilter:
    log = query.get("log", "")
    return RunFilter(
        key=query.get("key") or None,
        tool=query.get("tool") or None,
        status=query.get("status") or None,
        category=query.get("category") or None,
        text=query.get("q", "").strip()[:200],
        log=int(log) if log.isascii() and log.isdigit() and len(log) < 18 else None,
    )


@router.get("/flink/runs/{run_id}", dependencies=[SEE_LOGS])
async def run(request: Request, run_id: Ident) -> Response:
    """One run: its events in order, beside the tree of what caused what; redacted for viewers."""
    whole = await _load(request, run_id)
    if flink_seen.only_seen(request):
        return await flink_seen.run_page(request, whole)
    recorded = Recorded(whole.run, _base(whole.row))
    return pages_of(request).page(
        "flink_run.html", request, whole=whole, row=whole.row, **context_of(request, recorded)
    )


@router.get("/flink/runs/{run_id}/events/{ordinal}", dependencies=[SEE_LOGS])
async def event(request: Request, run_id: Ident, ordinal: Ordinal) -> Response:
    """One event with every field; redacted for viewers."""
    whole = await _load(request, run_id)
    if flink_seen.only_seen(request):
        return flink_seen.seen_event_page(request, whole, ordinal)
    await _note(request, whole.row, event=ordinal)
    title = whole.row.key or whole.row.ref
    return event_page(request, Recorded(whole.run, _base(whole.row)), ordinal, "recorded_event.html", title=title,
                      here="Event logs")  # fmt: skip


@router.get("/flink/runs/{run_id}/events/{ordinal}/value", dependencies=[LOGS])
async def value(request: Request, run_id: Ident, ordinal: Ordinal, field: str) -> Response:
    """One value whole, as a file."""
    whole = await _load(request, run_id)
    await _note(request, whole.row, event=ordinal, field=field)
    return value_file(Recorded(whole.run, _base(whole.row)), ordinal, field)


@router.get("/flink/runs/{run_id}/lines", dependencies=[LOGS])
async def lines(request: Request, run_id: Ident) -> Response:
    """The run's lines, exactly as they were logged."""
    async with store_of(request).read() as session:
        whole = await flink_runs.get_flink_run(session, run_id)
    await _note(request, whole.row, lines=len(whole.lines))
    data = b"".join(line + b"\n" for line in whole.lines)
    return download(data, f"run-{whole.row.id}-{whole.log_name.removesuffix('.gz')}", "application/jsonl")


@router.post("/flink/runs/{run_id}/incidents", dependencies=[IMPORT])
async def open_incident(request: Request, run_id: Ident) -> Response:
    """Open an incident: the run's lines become its evidence. The form may say that a what-if comes `then`."""
    then = (await read_form(request)).value("then")
    async with store_of(request).write() as session:
        incident = await open_flink_incident(session, run_id, who=principal_of(request).name)
    return RedirectResponse(f"/incidents/{incident.id}{f'#{WHAT_IF}' if then == WHAT_IF else ''}", 303)


async def _load(request: Request, run_id: int) -> WholeRun:
    async with store_of(request).read() as session:
        return await flink_runs.get_flink_run(session, run_id, lately=request.app.state.assembled)


def _base(row: FlinkRun) -> str:
    return f"/flink/runs/{row.id}"


async def _note(request: Request, row: FlinkRun, **detail: object) -> None:
    """Put into the audit trail that evidence was looked at or taken away."""
    async with store_of(request).write() as session:
        record_event(
            session, Action.EVIDENCE_READ, who=principal_of(request).name, subject=f"flink run {row.id}", detail=detail
        )


# Logs ----------------------------------------------------------------------------------------------------------------


@router.get("/flink/logs/{log_id}", dependencies=[LOGS])
async def log(request: Request, log_id: Ident) -> Response:
    """One log: how far it was read, and its lines that are in no run."""
    async with store_of(request).read() as session:
        found = await flink_runs.get_log(session, log_id)
        loose = await flink_runs.loose_lines(session, log_id)
    shown = [(one, show(one.line.decode("utf-8", "replace"), 2_000)) for one in loose]
    return pages_of(request).page("flink_log.html", request, log=found, loose=shown)


@router.post("/flink/import", dependencies=[IMPORT])
async def import_logs(request: Request) -> Response:
    """Import uploaded logs; what is wrong with one is told beside the form, and the others are stored."""
    form = await read_form(request)
    try:
        done, troubles = await _import(request, form)
    finally:
        form.close()
    if not troubles and len(done) == 1 and done[0].log_id:
        return RedirectResponse(f"/flink?log={done[0].log_id}", 303)
    typed = form.value("key_paths") or ""
    return await _runs_page(request, code=422 if troubles else 200, done=done, troubles=troubles, key_paths=typed)


async def _import(request: Request, form: Form) -> tuple[list[Imported], list[str]]:
    paths = [line.strip() for line in (form.value("key_paths") or "").splitlines() if line.strip()]
    try:
        keys.parse_paths(paths)
    except ValueError as error:
        return [], [f"{error}."]
    uploads = [one for one in form.uploads if one.part == "log" and (one.size or one.name)]
    if not uploads:
        return [], ["No file was chosen: choose event logs, such as events-*.log or *.event-log.log, plain or gzip."]
    troubles = [
        f"{one.name}: too large for a browser; import it with `hindcast flink import`."
        for one in uploads if one.too_large
    ]  # fmt: skip
    whole = [(one.name, await asyncio.to_thread(one.read)) for one in uploads if not one.too_large]
    who = principal_of(request).name
    done, faults = await asyncio.to_thread(import_bytes, store_of(request).url, who, paths, whole)
    return done, troubles + faults


# Of an incident ------------------------------------------------------------------------------------------------------


@router.get("/incidents/{incident_id}/recorded")
async def incident_recorded(request: Request, incident: ViewIncident) -> Response:
    """The run that an incident is about, as it was recorded; redacted for viewers."""
    if (sight := viewers_sight(request, incident)) is not None:
        return await sights.recorded_page(request, sight)
    recorded = await _recorded(request, incident)
    return pages_of(request).page("incident_recorded.html", request, incident=incident, **context_of(request, recorded))


@router.get("/incidents/{incident_id}/recorded/events/{ordinal}")
async def incident_event(request: Request, incident: ViewIncident, ordinal: Ordinal) -> Response:
    """One recorded event with every field; redacted for viewers."""
    if (sight := viewers_sight(request, incident)) is not None:
        return await sights.recorded_event_page(request, sight, str(ordinal))
    recorded = await _recorded(request, incident)
    await record_view(request, Action.EVIDENCE_READ, incident, event=ordinal)
    return event_page(request, recorded, ordinal, "recorded_event.html", title=incident.title, here="Incidents")


@router.get("/incidents/{incident_id}/recorded/events/{ordinal}/value")
async def incident_value(request: Request, incident: ReadIncident, ordinal: Ordinal, field: str) -> Response:
    """One recorded value whole, as a file."""
    recorded = await _recorded(request, incident)
    await record_view(request, Action.EVIDENCE_READ, incident, event=ordinal, field=field)
    return value_file(recorded, ordinal, field)


async def _recorded(request: Request, incident: Incident) -> Recorded:
    async with store_of(request).read() as session:
        run = await recorded_of(session, incident, request.app.state.assembled)
    if run is None:
        raise Refused(not_found("This incident is not about one run of an event log."))
    return Recorded(run, f"/incidents/{incident.id}/recorded")
