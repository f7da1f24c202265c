"""The JSON of event logs that scripts read: runs in short, and one whole with its executions and events."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from app.flink.model import Execution, Run
from app.flink.neutral import neutral
from app.incidents.flink_models import FlinkRun
from app.incidents.flink_runs import RunPage, WholeRun
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


def page_json(page: RunPage) -> RunPageOut:
    """A page of runs."""
    return RunPageOut(runs=[RunOut(**_row(row)) for row in page.items], next=page.next, total=page.total)


def whole_json(whole: WholeRun, *, start: int, limit: int) -> WholeRunOut:
    """A run with its events from `start` on, at most `limit` of them."""
    run = whole.run
    over = start + limit >= len(run.entries)
    return WholeRunOut(
        **_row(whole.row),
        log=whole.log_name,
        ordinal=whole.ordinal,
        event_count=len(run.entries),
        next=None if over else start + limit,
        tree=[_execution(one) for one in run.executions],
        events=_events(run, start, limit),
    )


def _row(row: FlinkRun) -> dict[str, Any]:
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


def _events(run: Run, start: int, limit: int) -> list[LoggedOut]:
    return [
        LoggedOut(
            ordinal=ordinal,
            how=str(entry.how),
            twice=str(entry.twice),
            cut=len(entry.record.truncations),
            event=neutral(entry, run).as_json(),
        )
        for ordinal, entry in enumerate(run.entries[start : start + limit], start)
    ]


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
