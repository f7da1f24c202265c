"""The SQL of removing things for good; it works only for the role that `hindcast migrate` gave the right to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import CursorResult, text

from app.incidents.store import ReadSession, WriteSession

_OF_RUNS: Final = "run_id IN (SELECT id FROM runs WHERE incident_id = ANY(:ids))"
# In this order nothing points at what is gone. Names of tables are ours; values are bound.
_STEPS: Final = (
    ("run_rows", _OF_RUNS),
    ("run_ledger", _OF_RUNS),
    ("shares", "incident_id = ANY(:ids)"),
    ("note_versions", "note_id IN (SELECT id FROM notes WHERE incident_id = ANY(:ids))"),
    ("notes", "incident_id = ANY(:ids)"),
    ("case_changes", "incident_id = ANY(:ids)"),
    ("incident_links", "incident_id = ANY(:ids) OR other_id = ANY(:ids)"),
    ("decodings", "gathering_id IN (SELECT id FROM gatherings WHERE incident_id = ANY(:ids))"),
    ("gatherings", "incident_id = ANY(:ids)"),
    ("export_answers", "export_id IN (SELECT id FROM exports WHERE incident_id = ANY(:ids))"),
    ("exports", "incident_id = ANY(:ids)"),
    ("freezes", "incident_id = ANY(:ids)"),
    ("evidence", "incident_id = ANY(:ids)"),
    ("runs", "incident_id = ANY(:ids)"),
    ("incidents", "id = ANY(:ids)"),
)
# What lies outside of incidents and is of one key.
_OF_KEY: Final = (
    ("attempts", "entity_key = :key"),
    ("keyed_records", "entity_key = :key"),
    ("snapshots", "entity_key = :key"),
    ("freezes", "entity_key = :key"),
    ("export_answers", "entity_key = :key"),
    ("decodings", "key = :key"),
)


async def lock(session: WriteSession) -> None:
    """Let imports and changes that are under way end, and none begin, until this unit of work does.

    A file that two incidents share must not go with one of them, and what is reopened must not go at all.
    """
    await session.execute(text("LOCK TABLE blobs, incidents IN SHARE ROW EXCLUSIVE MODE"))


async def digests_of(session: ReadSession, ids: Sequence[str]) -> list[tuple[str, str]]:
    """The files of some incidents: (incident, sha256)."""
    query = text("SELECT incident_id, sha256 FROM evidence WHERE incident_id = ANY(:ids) ORDER BY id")
    return [(row[0], row[1]) for row in await session.execute(query, {"ids": list(ids)})]


async def delete_incidents(session: WriteSession, ids: Sequence[str]) -> dict[str, int]:
    """Delete incidents with all that hangs on them; counts by table."""
    return {
        table: await _count(session, f"DELETE FROM {table} WHERE {which}", {"ids": list(ids)})  # noqa: S608
        for table, which in _STEPS
    }


async def delete_of_key(session: WriteSession, key: bytes) -> dict[str, int]:
    """Delete what intake noted of a key; counts by table."""
    return {
        table: await _count(session, f"DELETE FROM {table} WHERE {which}", {"key": key})  # noqa: S608
        for table, which in _OF_KEY
    }


async def delete_evidence(session: WriteSession, ids: Collection[int]) -> int:
    return await _count(session, "DELETE FROM evidence WHERE id = ANY(:ids)", {"ids": list(ids)})


async def delete_unused_blobs(session: WriteSession, digests: Collection[str]) -> int:
    """Delete those of some stored files that no incident holds any more."""
    statement = (
        "DELETE FROM blobs b WHERE sha256 = ANY(:digests)"
        " AND NOT EXISTS (SELECT 1 FROM evidence e WHERE e.sha256 = b.sha256)"
    )
    return await _count(session, statement, {"digests": sorted(digests)})


async def delete_flink(session: WriteSession, key: str) -> dict[str, int]:
    """Delete the recorded runs of a key from event logs, and lines of no run that hold its text."""
    of_runs = "run_id IN (SELECT id FROM flink_runs WHERE key = :key)"
    loose = "run_id IS NULL AND position(convert_to(:key, 'UTF8') IN line) > 0" if len(key) >= 4 else "false"
    records = f"DELETE FROM flink_records WHERE {of_runs} OR ({loose})"  # noqa: S608  our own words
    return {
        "flink_records": await _count(session, records, {"key": key}),
        "flink_runs": await _count(session, "DELETE FROM flink_runs WHERE key = :key", {"key": key}),
    }


# Segments ------------------------------------------------------------------------------------------------------------

SEGMENTS: Final = text(
    "SELECT g.id, g.stream_id, s.stream, g.partition, g.first_offset, g.next_offset, g.stored_at, g.data"
    " FROM segments g JOIN streams s ON s.id = g.stream_id WHERE g.id > :after ORDER BY g.id LIMIT :limit"
)
_DROP: Final = text(
    "DELETE FROM segments WHERE id = :id AND stream_id = :stream_id AND partition = :partition"
    " AND first_offset = :first_offset"
)
_ADD: Final = text(
    "INSERT INTO segments (id, stream_id, partition, first_offset, next_offset, records, size, stored_at, data)"
    " VALUES (:id, :stream_id, :partition, :first_offset, :next_offset, :records, :size, :stored_at, :data)"
)
_UNDECODABLE: Final = text(
    'DELETE FROM undecodable WHERE stream_id = :stream_id AND partition = :partition AND "offset" = ANY(:offsets)'
)


async def replace_segment(
    session: WriteSession, row: Any, gone: Sequence[int], kept: tuple[int, int, bytes] | None
) -> None:
    """Put a segment without some offsets in the place of one; `kept` is (records, size, data), None where none is."""
    named = {name: getattr(row, name) for name in ("id", "stream_id", "partition", "first_offset")}
    await session.execute(_DROP, named)
    if kept is not None:
        records, size, data = kept
        more = {"next_offset": row.next_offset, "stored_at": row.stored_at}
        await session.execute(_ADD, {**named, **more, "records": records, "size": size, "data": data})
    places = {"stream_id": row.stream_id, "partition": row.partition, "offsets": list(gone)}
    await session.execute(_UNDECODABLE, places)


# Shapes --------------------------------------------------------------------------------------------------------------


async def blank_shapes(session: WriteSession, key: str) -> int:
    """Take the text of a key out of the words that attempts have in common, should it stand there."""
    statement = (
        "UPDATE shapes SET reason = replace(reason, :key, '…'), error_type = replace(error_type, :key, '…')"
        " WHERE position(:key IN reason) > 0 OR position(:key IN error_type) > 0"
    )
    return await _count(session, statement, {"key": key}) if len(key) >= 4 else 0


async def _count(session: WriteSession, statement: str, values: dict[str, Any]) -> int:
    result = await session.execute(text(statement), values)
    return result.rowcount if isinstance(result, CursorResult) else 0
