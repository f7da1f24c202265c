"""The rules of exports: who asks a running pipeline for a key's state, what became of it, and what counts as an answer.

The request is a row before anything is sent, so that no process can lose it. Only the collector sends; sending twice
is harmless. Functions take the caller's session and never commit.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.incidents import live_repository as live
from app.incidents import repository as db
from app.incidents.audit import Action, record_event
from app.incidents.errors import IncidentError, UnknownPipeline, WrongState, found
from app.incidents.live_evidence import add_evidence, snapshot_file
from app.incidents.live_models import Export, ExportAnswer, ExportState
from app.incidents.models import NOW, Incident
from app.incidents.store import ReadSession, WriteSession

DEFAULT_TIMEOUT_S: Final = 60.0
MAX_REASON: Final = 1000
# A pipeline that is further behind than this answers late, and with older state than one may think.
LAG_WARNING_MS: Final = 60_000

_UNPUBLISHED: Final = "it was never published: no collector that follows this pipeline took it up in time"
_UNANSWERED: Final = (
    "no answer came in time. A drained or crashed pipeline never answers, and one that lags answers late: a late answer"
    " is kept all the same"
)


@dataclass(frozen=True, slots=True)
class ExportView:
    """An export with what came back."""

    export: Export
    answers: tuple[ExportAnswer, ...]

    def as_json(self) -> dict[str, Any]:
        """The object of `GET /api/v1/exports/{id}`."""
        export = self.export
        target = export.target or {}
        published = None
        if export.offset is not None:
            published = {"topic": export.topic, "partition": export.partition, "offset": export.offset}
        return {
            "id": export.id,
            "incident": export.incident_id,
            "pipeline": export.pipeline,
            "request_id": export.request_id,
            "state": export.state,
            "reason": export.reason,
            "rule": export.rule,
            "requested_by": export.created_by,
            "requested_at_ms": export.created_at,
            "attempt": export.attempt,
            "deadline_at_ms": export.deadline_at,
            "published": published,
            "published_at_ms": export.published_at,
            "event_time_ms": target.get("event_time_ms"),
            "lag_ms": target.get("lag_ms"),
            "behind": target.get("behind"),
            "answered_at_ms": export.answered_at,
            "problem": export.problem,
            "answers": [_answer_json(answer) for answer in self.answers],
        }


def _answer_json(answer: ExportAnswer) -> dict[str, Any]:
    return {
        "sha256": answer.sha256,
        "size": answer.size,
        "counter": answer.seq,
        "snapshot_at_ms": answer.snapshot_at_ms,
        "suspended": answer.suspended,
        "late": answer.late,
        "foreign_key": answer.foreign_key,
        "arrived_at_ms": answer.arrived_at,
        "problem": answer.problem,
    }


def lag_warning(target: Mapping[str, Any] | None) -> str | None:
    """Say that the pipeline lags, where it does; `target` is `Export.target` or a search's outlook."""
    if not target:
        return None
    lag, behind = target.get("lag_ms"), target.get("behind")
    if isinstance(behind, int) and behind > 0:
        return (
            f"The pipeline has still to read {behind} record{'s' * (behind != 1)} of this partition: it answers after"
            " them, with the state that they leave."
        )
    if isinstance(lag, int) and lag > LAG_WARNING_MS:
        return (
            f"The latest event of this partition is {lag // 1000} s old: either nothing happens, or the pipeline lags"
            " and answers late."
        )
    return None


async def request_export(
    session: WriteSession,
    incident: Incident,
    *,
    who: str,
    reason: str,
    known: Collection[str],
    rule: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Export:
    """Ask for the state of an incident's key; `known` names the pipelines of the configuration.

    Raises `UnknownPipeline`, and `IncidentError` for an incident of no pipeline or a reason that is missing.
    """
    reason = reason.strip()
    if not reason:
        raise IncidentError("say why the key's state is asked for: it discloses the key's memory, and is recorded")
    if len(reason) > MAX_REASON:
        raise IncidentError(f"the reason has {len(reason)} characters; {MAX_REASON} are enough")
    if incident.pipeline is None or incident.entity_key is None:
        raise IncidentError(
            "this incident came from files: no pipeline is known that could be asked for its key; open one from the"
            " activations instead"
        )
    if incident.pipeline not in known:
        raise UnknownPipeline(incident.pipeline, sorted(known))
    export = Export(
        incident_id=incident.id,
        pipeline=incident.pipeline,
        entity_key=incident.entity_key,
        request_id=secrets.token_hex(16),
        reason=reason,
        rule=rule,
        created_by=who,
        deadline_at=await _deadline(session, timeout_s),
    )
    session.add(export)
    await session.flush()
    # The trail is kept for good, so it names the key by its digest.
    digest = hashlib.sha256(incident.entity_key).hexdigest()
    detail = {"incident": incident.id, "pipeline": incident.pipeline, "key_sha256": digest, "reason": reason}
    record_event(session, Action.STATE_REQUESTED, who=who, subject=export.id, detail=detail)
    return export


async def retry_export(
    session: WriteSession, export_id: str, *, who: str, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Export:
    """Ask again under the same request id. Raises `NotFound`, and `WrongState` unless it has timed out."""
    export = found(await live.export(session, export_id, lock=True), "export", export_id)
    if export.state != ExportState.TIMED_OUT:
        raise WrongState("repeat", export.state, "timed out", "an export")
    export.state = ExportState.REQUESTED
    export.due = True
    export.attempt += 1
    export.version += 1
    export.published_at = export.offset = export.partition = export.topic = export.problem = None
    export.deadline_at = await _deadline(session, timeout_s)
    record_event(session, Action.STATE_REQUESTED_AGAIN, who=who, subject=export.id, detail={"attempt": export.attempt})
    await session.flush()
    return export


async def get_export(session: ReadSession, export_id: str) -> ExportView:
    """Load one export with its answers. Raises `NotFound`."""
    export = found(await live.export(session, export_id), "export", export_id)
    return ExportView(export, tuple(await live.answers_of(session, [export.id])))


async def exports_of(session: ReadSession, incident: Incident) -> list[ExportView]:
    """List an incident's exports with their answers, newest first."""
    exports = await live.exports_of(session, incident.id)
    answers = await live.answers_of(session, [export.id for export in exports])
    return [ExportView(one, tuple(each for each in answers if each.export_id == one.id)) for one in exports]


# The collector's side ------------------------------------------------------------------------------------------------


async def due_exports(session: ReadSession, pipeline: str) -> list[Export]:
    """List what is to be published, the oldest first; what a crash left unclear is among it."""
    return await live.due_exports(session, pipeline)


async def note_target(session: WriteSession, export: Export, target: Mapping[str, Any]) -> bool:
    """Note where a request will go, and which clock it carries, before it is sent."""
    return await live.change_export(session, export.id, export.attempt, {"target": dict(target), "problem": None})


async def note_published(
    session: WriteSession, export: Export, *, topic: str, partition: int, offset: int, timeout_s: float
) -> bool:
    """Note where a request lies; the time to answer begins now. False when it was asked for again meanwhile."""
    values = {
        "due": False, "topic": topic, "partition": partition, "offset": offset, "published_at": NOW,
        "deadline_at": live.in_seconds(timeout_s), "problem": None,
    }  # fmt: skip
    return await live.change_export(session, export.id, export.attempt, values)


async def note_unpublished(session: WriteSession, export: Export, problem: str, *, final: bool = False) -> bool:
    """Note why a request could not be sent; `final` when trying again is of no use before somebody mends it."""
    values: dict[str, Any] = {"problem": problem}
    if final:
        values |= {"state": ExportState.TIMED_OUT, "due": False}
    return await live.change_export(session, export.id, export.attempt, values)


async def time_out_exports(session: WriteSession) -> list[str]:
    """Give up on requests whose time is over, in all pipelines, and say which; any process may do this."""
    return await live.time_out_exports(session, _UNPUBLISHED, _UNANSWERED)


async def settle_answers(session: WriteSession, pipeline: str) -> list[str]:
    """Note stored snapshots that carry a request id of ours, and make them evidence; which exports were answered.

    A snapshot of another key is noted and goes no further. One answer that cannot be read stops no other.
    """
    answered = []
    streams = await live.streams(session, pipeline)
    for row in await live.unsettled_answers(session, pipeline):
        stream = streams[row.stream_id]
        foreign = bytes(row.entity_key) != bytes(row.wanted_key)
        values = {
            "export_id": row.export_id,
            "sha256": row.sha256,
            "size": row.size,
            "entity_key": bytes(row.entity_key),
            "seq": row.seq,
            "snapshot_at_ms": row.snapshot_at_ms,
            "suspended": row.suspended,
            "foreign_key": foreign,
            "late": row.state == ExportState.TIMED_OUT,
            "source": {"kind": "kafka", "topic": stream.topic, "partition": row.partition, "offset": row.offset,
                       "timestamp_ms": row.at_ms},
            "problem": "it is of another key than the one asked for" if foreign else None,
        }  # fmt: skip
        if not foreign:
            values["problem"] = await _make_evidence(session, row, streams)
        if await live.add_answer(session, values) and await _note_answer(session, row.export_id, foreign=foreign):
            answered.append(row.export_id)
    return answered


async def _make_evidence(session: WriteSession, row: Any, streams: Any) -> str | None:
    """Add a snapshot to its incident; the problem where that cannot be."""
    incident = found(await db.incident(session, row.incident_id), "incident", row.incident_id)
    file = await snapshot_file(session, streams, row)
    if file is None:
        return "its raw record is no longer kept"
    _, problems = await add_evidence(session, incident, [file])
    return str(problems[0]) if problems else None


async def _note_answer(session: WriteSession, export_id: str, *, foreign: bool) -> bool:
    export = found(await live.export(session, export_id, lock=True), "export", export_id)
    export.version += 1
    if foreign:
        await session.flush()
        return False
    if export.answered_at is None:
        export.answered_at = await db.now(session)
    export.state = ExportState.ANSWERED
    export.due = False
    export.problem = None
    await session.flush()
    return True


async def _deadline(session: ReadSession, timeout_s: float) -> int:
    return await db.now(session) + round(timeout_s * 1000)


def open_exports(views: Sequence[ExportView]) -> list[ExportView]:
    """Those that may still be answered in time."""
    return [view for view in views if view.export.state == ExportState.REQUESTED]
