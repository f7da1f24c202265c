"""All SQL of live incidents but intake's own: exports, searches, freezes, and the raw records of a key."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Row, case, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from app.incidents import collecting_sql as sql
from app.incidents.columns import plain
from app.incidents.live_models import (
    Collector,
    Export,
    ExportAnswer,
    ExportState,
    Freeze,
    Gathering,
    GatheringState,
    Position,
    Stream,
)
from app.incidents.models import NOW, Incident
from app.incidents.projection import Range, inside
from app.incidents.segments import Raw, unpack
from app.incidents.store import ReadSession, WriteSession

_UNTRACKED: Final = {"synchronize_session": False}


def in_seconds(seconds: float) -> Any:
    """A time from now, by the database's clock."""
    return text(f"date_trunc('milliseconds', clock_timestamp()) + make_interval(secs => {float(seconds)!r})")


# Raw records ---------------------------------------------------------------------------------------------------------


async def streams(session: ReadSession, pipeline: str) -> dict[int, Stream]:
    """The logs that were followed of a pipeline, by id."""
    found = await session.scalars(select(Stream).where(Stream.pipeline == pipeline))
    return {one.id: one for one in found}


async def raw_records(session: ReadSession, ranges: Iterable[Range]) -> dict[tuple[int, int], list[Raw]]:
    """Read the raw records of some ranges of offsets, ascending, by (stream, partition)."""
    wanted: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for one in ranges:
        wanted.setdefault((one.stream, one.partition), []).append((one.first, one.last))
    columns: dict[str, list[int]] = {"streams": [], "partitions": [], "firsts": [], "lasts": []}
    for (stream, partition), spans in wanted.items():
        for first, last in spans:
            for name, value in zip(columns, (stream, partition, first, last), strict=True):
                columns[name].append(value)
    if not wanted:
        return {}
    rows = (await session.execute(sql.SEGMENTS, columns)).all()
    segments = {(row.stream_id, row.partition, bytes(row.data)) for row in rows}
    return await asyncio.to_thread(_unpack, segments, wanted)


def _unpack(
    segments: Iterable[tuple[int, int, bytes]], wanted: Mapping[tuple[int, int], Sequence[tuple[int, int]]]
) -> dict[tuple[int, int], list[Raw]]:
    found: dict[tuple[int, int], dict[int, Raw]] = {}
    for stream, partition, data in segments:
        records = unpack(data, inside(wanted[stream, partition]))
        found.setdefault((stream, partition), {}).update({record.offset: record for record in records})
    return {place: [records[offset] for offset in sorted(records)] for place, records in found.items()}


async def keyed_places(
    session: ReadSession, stream_ids: Collection[int], entity_key: bytes, near_ms: int, limit: int
) -> list[Range]:
    """Find where the records of a key lie in some streams, those nearest to a time."""
    values = {"key": entity_key, "streams": list(stream_ids), "near": near_ms, "limit": limit}
    rows = await session.execute(_KEYED, values)
    return [Range(row.stream_id, row.partition, row.offset, row.offset) for row in rows]


async def snapshots_of(session: ReadSession, stream_ids: Collection[int], entity_key: bytes, limit: int) -> list[Any]:
    """List the latest snapshots of a key, whoever asked for them; an answer to us only once it is noted as that."""
    values = {"key": entity_key, "streams": list(stream_ids), "limit": limit}
    return list((await session.execute(_SNAPSHOTS, values)).all())


_KEYED: Final = text(
    'SELECT stream_id, partition, "offset" FROM keyed_records WHERE entity_key = :key'
    " AND stream_id = ANY(CAST(:streams AS smallint[]))"
    " ORDER BY abs(CAST(coalesce(at_ms, 0) AS numeric) - :near) LIMIT :limit"
)
_SNAPSHOTS: Final = text(
    "SELECT s.* FROM snapshots s WHERE s.entity_key = :key AND s.stream_id = ANY(CAST(:streams AS smallint[]))"
    " AND NOT EXISTS (SELECT 1 FROM exports e WHERE e.request_id = s.request_id"
    " AND e.created_at > clock_timestamp() - interval '30 days'"  # as below: later ones are never noted
    " AND e.pipeline = (SELECT l.pipeline FROM streams l WHERE l.id = s.stream_id)"
    " AND NOT EXISTS (SELECT 1 FROM export_answers a WHERE a.export_id = e.id AND a.sha256 = s.sha256))"
    " ORDER BY s.id DESC LIMIT :limit"
)


async def stored_at(session: ReadSession, ranges: Iterable[Range]) -> int | None:
    """When the last of some ranges was stored, in epoch milliseconds; None where nothing of them is there."""
    columns = list(zip(*ranges, strict=True))
    if not columns:
        return None
    names = ("streams", "partitions", "firsts", "lasts")
    values = {name: list(column) for name, column in zip(names, columns, strict=True)}
    found: int | None = (await session.execute(_STORED_AT, values)).scalar()
    return found


_STORED_AT: Final = text(
    "SELECT CAST(floor(extract(epoch FROM max(s.stored_at)) * 1000) AS bigint)"
    " FROM unnest(CAST(:streams AS smallint[]), CAST(:partitions AS integer[]), CAST(:firsts AS bigint[]),"
    " CAST(:lasts AS bigint[])) AS u (stream_id, partition, first, last)"
    " CROSS JOIN LATERAL (SELECT max(first_offset) AS low FROM segments WHERE stream_id = u.stream_id"
    " AND partition = u.partition AND first_offset <= u.last OFFSET 0) b"
    " JOIN segments s ON s.stream_id = u.stream_id AND s.partition = u.partition AND s.first_offset = b.low"
)


async def read_past(session: ReadSession, stream_ids: Collection[int]) -> int | None:
    """Up to which record time every partition of some logs was read; None where one holds nothing yet."""
    query = select(func.min(func.coalesce(Position.latest_ms, 0))).where(Position.stream_id.in_(stream_ids))
    return (await session.scalars(query)).one() or None


# Collectors ----------------------------------------------------------------------------------------------------------


async def collectors(session: ReadSession) -> list[tuple[Collector, float]]:
    """List the collectors' signs of life, each with its age in seconds."""
    age = func.extract("epoch", func.clock_timestamp() - Collector.seen_at)
    return [(one, float(seconds)) for one, seconds in await session.execute(select(Collector, age))]


async def beat(session: WriteSession, pipeline: str, name: str, values: Mapping[str, Any]) -> None:
    """Leave a collector's sign of life."""
    told = {"pipeline": pipeline, "name": plain(name), **values}
    statement = insert(Collector).values(**told, started_at=NOW, seen_at=NOW)
    changes = {**values, "name": plain(name), "seen_at": NOW}
    if "caught_up_at" in values and values["caught_up_at"] is None:
        del changes["caught_up_at"]  # when it last had read everything stays known
    await session.execute(statement.on_conflict_do_update(index_elements=["pipeline"], set_=changes))


async def began(session: WriteSession, pipeline: str) -> None:
    """Note that a collector begins now."""
    await session.execute(update(Collector).where(Collector.pipeline == pipeline).values(started_at=NOW))


# Exports -------------------------------------------------------------------------------------------------------------


async def export(session: ReadSession, export_id: str, *, lock: bool = False) -> Export | None:
    """Load one export."""
    query = select(Export).where(Export.id == export_id).execution_options(populate_existing=True)
    return (await session.scalars(query.with_for_update() if lock else query)).one_or_none()


async def exports_of(session: ReadSession, incident_id: str) -> list[Export]:
    """List an incident's exports, newest first."""
    query = select(Export).where(Export.incident_id == incident_id).order_by(Export.created_at.desc(), Export.id)
    return list(await session.scalars(query))


async def due_exports(session: ReadSession, pipeline: str) -> list[Export]:
    """List what waits to be published, the oldest first."""
    query = select(Export).where(
        Export.pipeline == pipeline, Export.due, Export.state == ExportState.REQUESTED
    )  # fmt: skip
    return list(await session.scalars(query.order_by(Export.created_at)))


async def change_export(session: WriteSession, export_id: str, attempt: int, values: Mapping[str, Any]) -> bool:
    """Change an export, if it is still the attempt that the caller means."""
    statement = (
        update(Export)
        .where(Export.id == export_id, Export.attempt == attempt)
        .values(version=Export.version + 1, **values)
        .returning(Export.id)
        .execution_options(**_UNTRACKED)
    )
    return (await session.scalars(statement)).one_or_none() is not None


async def time_out_exports(session: WriteSession, unpublished: str, unanswered: str) -> list[str]:
    """Turn open exports past their deadline into timed-out ones, and say which."""
    default = case((Export.offset.is_(None), unpublished), else_=unanswered)
    problem = func.coalesce(Export.problem, default)
    statement = (
        update(Export)
        .where(Export.state == ExportState.REQUESTED, Export.deadline_at < func.clock_timestamp())
        .values(state=ExportState.TIMED_OUT, due=False, version=Export.version + 1, problem=problem)
        .returning(Export.id)
        .execution_options(**_UNTRACKED)
    )
    return list(await session.scalars(statement))


async def unsettled_answers(session: ReadSession, pipeline: str) -> list[Row[Any]]:
    """Find snapshots under request ids of ours that are not noted as answers yet."""
    return list((await session.execute(_UNSETTLED, {"pipeline": pipeline})).all())


_UNSETTLED: Final = text(
    "SELECT e.id AS export_id, e.incident_id, e.entity_key AS wanted_key, e.state, s.* FROM exports e"
    " JOIN snapshots s ON s.request_id = e.request_id"
    " JOIN streams l ON l.id = s.stream_id AND l.pipeline = e.pipeline"
    " LEFT JOIN export_answers a ON a.export_id = e.id AND a.sha256 = s.sha256"
    " WHERE e.pipeline = :pipeline AND a.id IS NULL AND e.created_at > clock_timestamp() - interval '30 days'"
    " ORDER BY s.id LIMIT 50"
)


async def answers_of(session: ReadSession, export_ids: Sequence[str]) -> list[ExportAnswer]:
    """List the answers to some exports, in the order of their arrival."""
    query = select(ExportAnswer).where(ExportAnswer.export_id.in_(export_ids)).order_by(ExportAnswer.id)
    return list(await session.scalars(query))


async def add_answer(session: WriteSession, values: Mapping[str, Any]) -> bool:
    """Note an answer; False where the same one is noted already."""
    statement = insert(ExportAnswer).values(**values).on_conflict_do_nothing().returning(ExportAnswer.id)
    return (await session.scalars(statement)).one_or_none() is not None


# Searches ------------------------------------------------------------------------------------------------------------


async def gathering(session: ReadSession, gathering_id: str, *, lock: bool = False) -> Gathering | None:
    """Load one search."""
    query = select(Gathering).where(Gathering.id == gathering_id).execution_options(populate_existing=True)
    return (await session.scalars(query.with_for_update() if lock else query)).one_or_none()


async def gatherings_of(session: ReadSession, incident_id: str) -> list[Gathering]:
    """List an incident's searches, newest first."""
    query = select(Gathering).where(Gathering.incident_id == incident_id)
    return list(await session.scalars(query.order_by(Gathering.created_at.desc(), Gathering.id)))


async def claim_gathering(session: WriteSession, pipeline: str, lease_s: float) -> Gathering | None:
    """Take the oldest search that waits, or that a dead collector left behind."""
    waiting = (
        select(Gathering.id)
        .where(
            Gathering.pipeline == pipeline,
            (Gathering.state == GatheringState.QUEUED)
            | ((Gathering.state == GatheringState.RUNNING) & (Gathering.lease_until < func.clock_timestamp())),
        )
        .order_by(Gathering.created_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    statement = (
        update(Gathering)
        .where(Gathering.id.in_(waiting.scalar_subquery()))
        .values(
            state=GatheringState.RUNNING,
            attempt=Gathering.attempt + 1,
            version=Gathering.version + 1,
            lease_until=in_seconds(lease_s),
            started_at=NOW,
            problem=None,
        )
        .returning(Gathering)
    )
    return (await session.scalars(statement, execution_options={"populate_existing": True})).one_or_none()


async def change_gathering(
    session: WriteSession, gathering_id: str, attempt: int, values: Mapping[str, Any]
) -> bool | None:
    """Change a running search; whether it is to be cancelled, or None when it is no longer that attempt's."""
    statement = (
        update(Gathering)
        .where(Gathering.id == gathering_id, Gathering.attempt == attempt, Gathering.state == GatheringState.RUNNING)
        .values(version=Gathering.version + 1, **values)
        .returning(Gathering.cancel)
        .execution_options(**_UNTRACKED)
    )
    return (await session.scalars(statement)).one_or_none()


# Incidents of live pipelines -----------------------------------------------------------------------------------------


async def collecting(session: ReadSession, pipeline: str, keys: Collection[bytes] | None = None) -> list[Incident]:
    """List the incidents of a pipeline to which new records of their keys still belong."""
    query = select(Incident).where(
        Incident.pipeline == pipeline,
        Incident.collect_until.is_not(None),
        Incident.collect_until > func.clock_timestamp(),
    )
    if keys is not None:
        query = query.where(Incident.entity_key.in_(keys))
    return list(await session.scalars(query.order_by(Incident.created_at)))


async def incidents_about(session: ReadSession, pipeline: str, entity_key: bytes, limit: int) -> list[Incident]:
    """List the incidents of a key, newest first."""
    query = select(Incident).where(Incident.pipeline == pipeline, Incident.entity_key == entity_key)
    return list(await session.scalars(query.order_by(Incident.created_at.desc()).limit(limit)))


async def set_problem_of_freeze(session: WriteSession, freeze_id: int, problem: str) -> None:
    """Note why nothing came of a freeze."""
    await session.execute(update(Freeze).where(Freeze.id == freeze_id).values(problem=problem))


async def open_freezes(session: ReadSession, pipeline: str) -> list[Freeze]:
    """List what rules have taken and nobody has opened an incident for yet."""
    query = select(Freeze).where(
        Freeze.pipeline == pipeline, Freeze.incident_id.is_(None), Freeze.problem.is_(None)
    )  # fmt: skip
    return list(await session.scalars(query.order_by(Freeze.id).limit(20)))


async def freeze(session: ReadSession, freeze_id: int) -> Freeze | None:
    """Load one freeze and hold it, so that it is opened once."""
    query = select(Freeze).where(Freeze.id == freeze_id).with_for_update()
    return (await session.scalars(query)).one_or_none()


async def freezes(
    session: ReadSession, *, incident_id: str | None = None, limit: int = 50, among: Collection[str] | None = None
) -> list[Freeze]:
    """List freezes, newest first, of all incidents or of one, of all pipelines or of some."""
    query = select(Freeze).order_by(Freeze.id.desc()).limit(limit)
    if among is not None:
        query = query.where(Freeze.pipeline.in_(among))
    if incident_id is not None:
        query = query.where(Freeze.incident_id == incident_id)
    return list(await session.scalars(query))
