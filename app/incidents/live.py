"""Live pipelines, for the other rooms: what an incident of one has, lacks and waits for, in one object for its page.

Everything that pages, commands and the collector may use of activations, exports and searches is named here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from app.incidents import live_repository as live
from app.incidents import repository as db
from app.incidents.activations import (
    Activation,
    ActivationFilter,
    ActivationPage,
    Choices,
    EmittedIntent,
    choices,
    find_by_intent,
    get_activation,
    list_activations,
    parse_key,
)
from app.incidents.exports import (
    ExportView,
    exports_of,
    get_export,
    lag_warning,
    open_exports,
    request_export,
    retry_export,
    time_out_exports,
)
from app.incidents.gathering import (
    GatheringView,
    PartitionProgress,
    TopicProgress,
    cancel_gathering,
    gatherings_of,
    get_gathering,
    request_gathering,
)
from app.incidents.intake_status import BadRecord, StreamStatus, raw_record, stream_statuses, undecodable_records
from app.incidents.live_models import Export, ExportAnswer, ExportState, Freeze, Gathering, GatheringState
from app.incidents.models import Incident
from app.incidents.opening import attempt_of, choose_attempt, incidents_about, open_incident, refresh_incident
from app.incidents.readiness import Held, Missing, TableRow, Window, is_ready, missing, table_row, window
from app.incidents.store import ReadSession

__all__ = [
    "Activation", "ActivationFilter", "ActivationPage", "BadRecord", "Choices", "CollectorStatus", "EmittedIntent",
    "Export", "ExportAnswer", "ExportState", "ExportView", "Freeze", "Gathering", "GatheringState", "GatheringView",
    "LiveStatus", "Missing", "PartitionProgress", "StreamStatus", "TableRow", "TopicProgress", "Window",
    "cancel_gathering", "choices", "choose_attempt", "collector_statuses", "exports_of", "find_by_intent",
    "freezes", "gatherings_of", "get_activation", "get_export", "get_gathering", "incidents_about", "lag_warning",
    "list_activations", "live_status", "open_incident", "parse_key", "raw_record", "refresh_incident",
    "request_export", "request_gathering", "retry_export", "stream_statuses", "time_out_exports",
    "undecodable_records",
]  # fmt: skip

# A collector leaves a sign of life every few seconds.
_ALIVE_S = 15.0


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """Whether a pipeline is being followed. `lags` counts the records still to be read, by `topic/partition`.

    `missing` says by topic why it is not followed; `trouble` what keeps the collector from its work at the moment.
    """

    pipeline: str
    name: str
    alive: bool
    seen_at: int
    caught_up_at: int | None
    trouble: str | None
    lags: dict[str, int]
    missing: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline, "alive": self.alive, "seen_at_ms": self.seen_at,
            "caught_up_at_ms": self.caught_up_at, "trouble": self.trouble, "lags": self.lags, "missing": self.missing,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """An incident of a live pipeline as its page shows it.

    `state` is `gathering` while something is under way, else `ready` or `incomplete`. `version` rises with every change
    of what is here. `outlook` says where an export would go and how far the pipeline lags, `warning` that in words.
    `about` is the attempt as collected, `frozen` the rule that opened the incident.
    """

    state: str
    ready: bool
    version: int
    missing: tuple[Missing, ...]
    row: TableRow | None
    window: Window | None
    exports: tuple[ExportView, ...]
    gatherings: tuple[GatheringView, ...]
    about: Activation | None
    collector: CollectorStatus | None
    outlook: dict[str, Any] | None
    warning: str | None
    frozen: Freeze | None

    def as_json(self) -> dict[str, Any]:
        """What `GET /api/v1/incidents/{id}` adds for an incident of a live pipeline."""
        return {
            "state": self.state,
            "ready": self.ready,
            "missing": [one.as_json() for one in self.missing],
            "row": None if self.row is None else self.row.as_json(),
            "cache_window": None if self.window is None else self.window.as_json(),
            "exports": [one.as_json() for one in self.exports],
            "gathering": self.gatherings[0].as_json() if self.gatherings else None,
            "collector": None if self.collector is None else self.collector.as_json(),
            "outlook": self.outlook,
            "warning": self.warning,
            "frozen": None if self.frozen is None else {"rule": self.frozen.rule, "why": self.frozen.why},
        }


async def live_status(session: ReadSession, incident: Incident) -> LiveStatus:
    """Put together what the page of a live incident shows; for one from files, only `ready` and `missing` say much."""
    # Evidence first: what brought it is then seen to have ended, never the other way round.
    roles = frozenset(file.role for file in await db.evidence_of(session, incident.id))
    exports = tuple(await exports_of(session, incident))
    gatherings = tuple(await gatherings_of(session, incident))
    about = await attempt_of(session, incident)
    exporting = bool(open_exports(exports))
    searching = any(not one.gathering.gathering_state.finished for one in gatherings)
    held = Held(
        roles=roles,
        kind=incident.kind,
        seq=incident.seq,
        status=incident.recorded_status,
        selected=incident.problem is None,
        problem=incident.problem,
        calls_model=None if about is None else _calls_model(about),
        exporting=exporting,
        searching=searching,
        emitted=None if about is None or about.category != "activation" else len(about.intents),
        followed={stream.stream for stream in (await live.streams(session, incident.pipeline or "")).values()},
    )
    ready = is_ready(held)
    found = await live.freezes(session, incident_id=incident.id, limit=1)
    statuses = {one.pipeline: one for one in await collector_statuses(session)}
    outlook = next((dict(one.outlook) for one in gatherings if one.outlook), None)
    return LiveStatus(
        state="ready" if ready else "gathering" if exporting or searching else "incomplete",
        ready=ready,
        version=incident.version
        + sum(one.export.version for one in exports)
        + sum(one.gathering.version for one in gatherings),
        missing=missing(held),
        row=table_row(held),
        window=window(incident.clock_ms, await db.now(session)),
        exports=exports,
        gatherings=gatherings,
        about=about,
        collector=statuses.get(incident.pipeline or ""),
        outlook=outlook,
        warning=lag_warning(outlook),
        frozen=found[0] if found else None,
    )


async def collector_statuses(session: ReadSession) -> list[CollectorStatus]:
    """Say of each pipeline that was ever followed whether it is followed now."""
    return [
        CollectorStatus(
            pipeline=one.pipeline,
            name=one.name,
            alive=age < _ALIVE_S,
            seen_at=one.seen_at,
            caught_up_at=one.caught_up_at,
            trouble=one.trouble,
            lags=dict(one.detail.get("lags", {})),
            missing=dict(one.detail.get("missing", {})),
        )
        for one, age in await live.collectors(session)
    ]


async def freezes(session: ReadSession, *, limit: int = 50, among: Collection[str] | None = None) -> list[Freeze]:
    """List what rules froze by themselves (`among`: in these pipelines), and why, newest first."""
    return await live.freezes(session, limit=limit, among=among)


def _calls_model(about: Activation) -> bool | None:
    """Whether an attempt took a step that was no intent, which then was a model call; unknown for one that failed."""
    if about.category != "activation":
        return None
    # START and END, perhaps SUSPENDED, the tools and intents it names: what is more are model calls, or its own events.
    frame = 3 if about.status == "suspended" else 2
    called = set(about.tools) - {intent.tool for intent in about.intents}
    return about.events > frame + len(about.intents) + len(called)
