"""The pages of one recorded run, wherever it comes from: an imported log, an incident's evidence, or a link to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.responses import Response

from app.flink.model import Run
from app.flink.neutral import neutral
from app.flink.records import RUN_BEGIN
from app.incidents import service
from app.incidents.errors import NotFound
from app.incidents.flink_evidence import KIND, flink_run_of
from app.incidents.flink_runs import AssembledRuns
from app.incidents.redacted_rows import event as redacted_event
from app.incidents.redaction import Redactor
from app.incidents.service import Incident, ReadSession, Role
from app.web.downloads import download
from app.web.loading import MAX_NUMBER, pages_of, store_of
from app.web.problems import Refused, not_found
from app.web.values import Shown, show
from app.web.views import Status
from app.web.views_recorded import Filter, RecordedView, recorded_view, run_status


@dataclass(frozen=True)
class Recorded:
    """A run, the address below which its pages lie, and the redactor that it passes (None: nothing is hidden)."""

    run: Run
    base: str
    redactor: Redactor | None = None


@dataclass(frozen=True, slots=True)
class RecordedField:
    """One field of an opened event."""

    group: str
    name: str
    value: Shown


async def recorded_of(session: ReadSession, incident: Incident, lately: AssembledRuns) -> Run | None:
    """The recorded run that an incident is about; None for an incident of another kind."""
    if incident.kind != KIND:
        return None
    kept = [file for file in await service.evidence_of(session, incident) if file.role == Role.EVENT_LOG]
    key = (incident.id, *(file.id for file in kept))
    run = lately.get(key)
    if run is None:
        files = await service.evidence_files(session, incident, [file.id for file in kept])
        run = await asyncio.to_thread(flink_run_of, files, [file.source for file in kept])
        if run is not None:
            lately.keep(key, run)
    return run


@dataclass(frozen=True, slots=True)
class Brief:
    """A recorded run in a few lines, for the page of its incident."""

    status: Status
    events: int
    tools: Sequence[str]
    problems: Sequence[str]
    memory: str
    verbose: bool
    cut: int
    unfinished: int


async def recorded_brief(request: Request, incident: Incident) -> Brief | None:
    """What an incident's recorded run is; None for an incident of another kind, or where it holds no one run."""
    async with store_of(request).read() as session:
        run = await recorded_of(session, incident, request.app.state.assembled)
    if run is None:
        return None
    begins = any(record.type == RUN_BEGIN for record in run.records)
    memory = "recorded at the beginning of the run" if begins else "not in the log"
    return Brief(
        run_status(str(run.status)), len(run.records), run.names("tool"), run.problem_categories, memory, run.verbose,
        run.truncated, run.unfinished,
    )  # fmt: skip


def view_of(request: Request, recorded: Recorded) -> RecordedView:
    """The part of a run that the address asks for. A filter by text would answer questions about what is hidden."""
    query = request.query_params
    open_ = recorded.redactor is None
    wanted = Filter(
        [name for name in query.getlist("type")[:50] if name], query.get("q", "").strip()[:200] if open_ else ""
    )
    return recorded_view(
        recorded.run,
        start=_number(query.get("start")) or 0,
        at=_number(query.get("at")),
        wanted=wanted,
        redactor=recorded.redactor,
    )


def context_of(request: Request, recorded: Recorded) -> dict[str, Any]:
    """What the template of a recorded run draws."""
    return {
        "recorded": view_of(request, recorded),
        "recorded_base": recorded.base,
        "recorded_status": run_status(str(recorded.run.status)),
        "searchable": recorded.redactor is None,
    }


def event_fields(recorded: Recorded, ordinal: int) -> tuple[Mapping[str, Any], list[RecordedField]]:
    """One event and all of its fields. Raises `NotFound`."""
    if not 0 <= ordinal < len(recorded.run.entries):
        raise NotFound("event", ordinal)
    told: Mapping[str, Any] = neutral(recorded.run.entries[ordinal], recorded.run).as_json()
    if recorded.redactor is not None:
        told = redacted_event(recorded.redactor, told, "trace") or {}
    fields = [
        RecordedField(group, name, show(value))
        for group in ("payload", "attributes", "identity")
        for name, value in told[group].items()
    ]
    return told, fields


def event_page(request: Request, recorded: Recorded, ordinal: int, template: str, **context: Any) -> Response:
    """One event with every field."""
    told, fields = event_fields(recorded, ordinal)
    return pages_of(request).page(
        template,
        request,
        event=told,
        ordinal=ordinal,
        total=len(recorded.run.entries),
        fields=fields,
        recorded_base=recorded.base,
        **context,
    )


def value_file(recorded: Recorded, ordinal: int, name: str) -> Response:
    """One value of an event whole, as a file. Raises `Refused` where there is none of that name."""
    if not 0 <= ordinal < len(recorded.run.entries):
        raise NotFound("event", ordinal)
    told = neutral(recorded.run.entries[ordinal], recorded.run)
    for group in (told.payload, told.attributes, told.identity):
        if name in group:
            data = group[name].encode("utf-8", "surrogatepass")
            return download(data, f"event-{ordinal}-{name}.txt", "text/plain")
    raise Refused(not_found(f"Event {ordinal} has no value {name!r}."))


def _number(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 10:
        return None
    return min(int(text), MAX_NUMBER)
