"""Event logs for people who may see them and not read them: runs as shapes and digests, found by nothing hidden.

As for an incident, everything passes the redactor before a template sees it; each run has a key of its own.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from app.flink.neutral import CATEGORIES
from app.incidents import flink_runs, redacted
from app.incidents.errors import IncidentError
from app.incidents.flink_models import FlinkRun
from app.incidents.flink_runs import RunFilter, RunPage, WholeRun
from app.incidents.redacted_rows import word
from app.incidents.redaction import Redactor, Reveal
from app.incidents.service import ReadSession
from app.web.access import Permission
from app.web.loading import pages_of, principal_of, store_of
from app.web.recorded import Recorded, context_of, event_page
from app.web.views_recorded import run_status

_NOTHING: Final = RunPage((), None, 0)
_SAME: Final = (
    "id", "form", "status", "subtask", "first_ns", "last_ns", "records", "executions", "unfinished", "duplicates",
    "shared", "truncated", "concluded", "terse", "input_missing", "partial",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A run's row as somebody sees it who may not read it: names are shapes, numbers and words of ours stand open."""

    id: int
    form: str
    status: str
    subtask: int
    first_ns: int
    last_ns: int
    records: int
    executions: int
    unfinished: int
    duplicates: int
    shared: int
    truncated: int
    concluded: int
    terse: bool
    input_missing: bool
    partial: bool
    ref: str
    key: str | None
    job: str
    task: str
    agent: str | None
    categories: Sequence[str]
    tools: Sequence[str]
    models: Sequence[str]
    actions: Sequence[str]

    @classmethod
    def of(cls, redactor: Redactor, row: FlinkRun) -> SeenRun:
        def names(held: Sequence[str]) -> list[str]:
            return [redactor.text(name, Reveal.NAMES) or "" for name in held]

        categories = [str(word(CATEGORIES, Reveal.NAMES)(redactor, name)) for name in row.categories]
        same = {name: getattr(row, name) for name in _SAME}
        return cls(
            **same,
            ref=redactor.text(row.ref, Reveal.KEY) or "",
            key=redactor.text(row.key, Reveal.KEY),
            job=(redactor.text(row.job, Reveal.NAMES) or "") if row.job else "",
            task=(redactor.text(row.task, Reveal.NAMES) or "") if row.task else "",
            agent=redactor.text(row.agent, Reveal.NAMES),
            categories=categories,
            tools=names(row.tools),
            models=names(row.models),
            actions=names(row.actions),
        )


def only_seen(request: Request) -> bool:
    """Whether the person may see event logs, and not read them."""
    return not principal_of(request).may(Permission.LOGS, None)


def redactor_of(request: Request, row: FlinkRun) -> Redactor:
    """What hides a run from viewers: the same for all of them, and another for each run."""
    key = hmac.digest(request.app.state.keys.viewers, f"flink run {row.id}".encode(), "sha256")
    return Redactor(key, rules=request.app.state.rules)


async def find(session: ReadSession, chosen: RunFilter, *, after: str | None = None, limit: int = 50) -> RunPage:
    """Runs for a viewer; a filter by what is hidden finds nothing, whatever there is. Raises `IncidentError`."""
    asks = chosen.key is not None or chosen.tool or chosen.text or chosen.log is not None
    if asks or (chosen.category and chosen.category not in CATEGORIES):
        return _NOTHING
    return await flink_runs.list_runs(session, chosen, after=after, limit=limit)


async def runs_page(request: Request, chosen: RunFilter, after: str | None) -> Response:
    """The list of runs."""
    problem, page = None, _NOTHING
    async with store_of(request).read() as session:
        try:
            page = await find(session, chosen, after=after)
        except IncidentError as error:
            problem = str(error)
    return pages_of(request).page(
        "viewer_flink.html",
        request,
        runs=[SeenRun.of(redactor_of(request, row), row) for row in page.items],
        page=page,
        problem=problem,
        statuses=flink_runs.STATUSES,
        categories=sorted(CATEGORIES),
        chosen=chosen,
        paged=bool(after),
        status_of=run_status,
    )


async def run_page(request: Request, whole: WholeRun) -> Response:
    """One run: its events in order, beside the tree of what caused what."""
    recorded = _recorded(request, whole)
    context: dict[str, Any] = context_of(request, recorded)
    return pages_of(request).page("viewer_flink_run.html", request, **_facts(request, whole), **context)


def seen_event_page(request: Request, whole: WholeRun, ordinal: int) -> Response:
    """One event with every field."""
    return event_page(request, _recorded(request, whole), ordinal, "viewer_flink_event.html", **_facts(request, whole))


def _recorded(request: Request, whole: WholeRun) -> Recorded:
    return Recorded(whole.run, f"/flink/runs/{whole.row.id}", redactor_of(request, whole.row))


def _facts(request: Request, whole: WholeRun) -> dict[str, Any]:
    redactor = redactor_of(request, whole.row)
    glyph, words, tone = redacted.badge(redactor)
    return {
        "row": SeenRun.of(redactor, whole.row),
        "input": whole.ordinal,
        "again": [(other.id, other.first_ns, count) for other, count in whole.again],
        "hidden": {"glyph": glyph, "words": words, "tone": tone},
    }
