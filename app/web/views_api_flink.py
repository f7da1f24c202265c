"""The JSON of event logs that scripts read: runs in short, and one whole with its executions and events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, Field

from app.flink.model import Entry, Execution, Run
from app.flink.neutral import CATEGORIES, ENTITIES, neutral
from app.incidents.flink_models import FlinkRun
from app.incidents.flink_runs import RunPage, WholeRun
from app.incidents.redacted_rows import event as redacted_event
from app.incidents.redacted_rows import word
from app.incidents.redaction import Redactor, Reveal
from app.web.flink_seen import SeenRun
from app.web.formats import iso_of_ns


class RunOut(BaseModel):
    """One input of one key, as its log tells it; `ref` is the log's own name of the run, or one made of its input."""

    id: int
    ref: str
    key: str | None = Field(description="null where the log holds none, and no path finds one in its payloads")
    job: str
    task: str
    subtask: int
    agent: str | None
    status: str = Field(description="completed, failed or unfinished")
    began_at: str
    ended_at: str
    records: int
    executions: int
    unfinished: int = Field(description="executions without an end")
    duplicates: int = Field(description="events that were logged again")
    truncated: int = Field(description="events that the log cut short")
    concluded: int = Field(description="events that were placed in this run by a conclusion")
    verbose: bool = Field(description="false where not all of it was logged at VERBOSE level")
    input_missing: bool
    categories: list[str] = Field(description="problem categories")
    tools: list[str]
    models: list[str]
    actions: list[str]
    url: str = Field(description="the run's page")


class RunPageOut(BaseModel):
    """Runs, newest first. `next` is the following page's `after`, null on the last; `total` counts all of them."""

    runs: list[RunOut]
    next: str | None
    total: int


class ExecutionOut(BaseModel):
    """An action, model call, parser or tool at work; `parent` is the id of the execution that caused it."""

    id: str
    parent: str | None
    type: str
    name: str
    status: str = Field(description="success, failed, reused, answered, unfinished or not recorded")
    problem_category: str | None
    error: str
    error_type: str
    started_at: str | None
    ended_at: str | None
    concluded: bool = Field(description="true where the log holds no life-cycle events, and requests tell it")


class LoggedOut(BaseModel):
    """One event. `how` is why it is in this run, `twice` what is to be said where it was there before."""

    ordinal: int
    how: str
    twice: str = Field(description="empty; again; again, with new lineage; or same id, other content")
    cut: int = Field(description="values that the log cut short")
    event: dict[str, Any] = Field(
        description="type, label, about, step, span_id, time_ms, attributes, identity, payload, unknown"
    )


class WholeRunOut(RunOut):
    """A run with what happened in it: all executions, and a window of its events."""

    log: str = Field(description="name of the log in which it begins")
    ordinal: int | None = Field(description="which input of its key it is, from 1, among what was imported")
    event_count: int
    next: int | None = Field(description="`start` of the events that follow; null where there are none")
    tree: list[ExecutionOut]
    events: list[LoggedOut]


def page_json(page: RunPage, redactor_of: Callable[[FlinkRun], Redactor] | None = None) -> RunPageOut:
    """A page of runs; with a redactor for each, as viewers see them."""
    runs = [_row(row if redactor_of is None else SeenRun.of(redactor_of(row), row)) for row in page.items]
    return RunPageOut(runs=[RunOut(**row) for row in runs], next=page.next, total=page.total)


def whole_json(whole: WholeRun, *, start: int, limit: int, redactor: Redactor | None = None) -> WholeRunOut:
    """A run with its events from `start` on, at most `limit` of them; with a redactor, only what passes it."""
    run = whole.run
    over = start + limit >= len(run.entries)
    return WholeRunOut(
        **_row(whole.row if redactor is None else SeenRun.of(redactor, whole.row)),
        log=whole.log_name if redactor is None else redactor.text(whole.log_name, Reveal.TEXTS) or "",
        ordinal=whole.ordinal,
        event_count=len(run.entries),
        next=None if over else start + limit,
        tree=[_execution(one if redactor is None else _hidden(redactor, one)) for one in run.executions],
        events=_events(run, start, limit, redactor),
    )


def _row(row: FlinkRun | SeenRun) -> dict[str, Any]:
    same = (
        "id", "ref", "key", "job", "task", "subtask", "agent", "status", "records", "executions", "unfinished",
        "duplicates", "truncated", "concluded", "input_missing", "categories", "tools", "models", "actions",
    )  # fmt: skip
    return {name: getattr(row, name) for name in same} | {
        "began_at": iso_of_ns(row.first_ns),
        "ended_at": iso_of_ns(row.last_ns),
        "verbose": not row.terse,
        "url": f"/flink/runs/{row.id}",
    }


def _events(run: Run, start: int, limit: int, redactor: Redactor | None) -> list[LoggedOut]:
    def told(entry: Entry) -> dict[str, Any]:
        event = neutral(entry, run).as_json()
        return event if redactor is None else redacted_event(redactor, event, "trace") or {}

    return [
        LoggedOut(
            ordinal=ordinal,
            how=str(entry.how),
            twice=str(entry.twice),
            cut=len(entry.record.truncations),
            event=told(entry),
        )
        for ordinal, entry in enumerate(run.entries[start : start + limit], start)
    ]


def _hidden(redactor: Redactor, one: Execution) -> Execution:
    """An execution as a viewer sees it: ids keep saying which caused which."""
    return replace(
        one,
        id=redactor.text(one.id, Reveal.KEY) or "",
        parent=redactor.text(one.parent, Reveal.KEY),
        type=str(word(ENTITIES, Reveal.NAMES)(redactor, one.type)),
        name=redactor.text(one.name, Reveal.NAMES) or "",
        problem_category=word(CATEGORIES, Reveal.NAMES)(redactor, one.problem_category),
        error=(redactor.text(one.error, Reveal.TEXTS) or "") if one.error else "",
        error_type=(redactor.text(one.error_type, Reveal.NAMES) or "") if one.error_type else "",
        metadata={},
    )


def _execution(one: Execution) -> ExecutionOut:
    return ExecutionOut(
        id=one.id,
        parent=one.parent,
        type=one.type,
        name=one.name,
        status=str(one.status),
        problem_category=one.problem_category,
        error=one.error,
        error_type=one.error_type,
        started_at=None if one.started_ns is None else iso_of_ns(one.started_ns),
        ended_at=None if one.ended_ns is None else iso_of_ns(one.ended_ns),
        concluded=one.concluded,
    )
