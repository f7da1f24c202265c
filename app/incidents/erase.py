"""Answers a request to erase: everything of one key goes, wherever it lies, and digests are left to show that it went.

Incidents of the key go whole. Files of other incidents go where they hold records of it. What the collector keeps is
rewritten without its records. Nothing here can reach topics, back-ups, or bundles that somebody took away.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import DecodeError
from sqlalchemy import or_, select, text
from sqlalchemy.orm import undefer

from app.incidents import intake, purge, segments
from app.incidents import purge_sql as sql
from app.incidents.audit import Action, record_event
from app.incidents.case_models import Note
from app.incidents.dissect import frames, is_stream
from app.incidents.flink_erase import erase_logged
from app.incidents.intake import Role, key_text
from app.incidents.models import Blob, Draft, DraftFile, Evidence, Incident
from app.incidents.segments import Raw
from app.incidents.store import ReadSession, Store, WriteSession
from app.wire.records import (
    ActivationErrorRecord,
    AgentEnvelope,
    RecordError,
    StateSnapshot,
    ToolIntent,
    TraceEvent,
    parse,
)

_BATCH: Final = 40  # segments that are read, and rewritten, in one transaction
_READABLE: Final = 4  # bytes of a key below which finding it in other bytes says nothing


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of a key. `files` are those of other incidents with records of it, as (incident, evidence id).

    `mentions` are other incidents in whose titles or notes people wrote it: those are for a person to look at.
    `latest` is the newest file that was read.
    """

    incidents: tuple[str, ...]
    files: tuple[tuple[str, int], ...]
    drafts: tuple[str, ...]
    mentions: tuple[str, ...]
    latest: int


@dataclass
class Erased:
    """What went, by table, and what somebody still has to look at."""

    counts: Counter[str] = field(default_factory=Counter)
    incidents: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()
    records: int = 0


async def find(session: ReadSession, key: bytes, known: Found | None = None) -> Found:
    """Look everywhere but in what the collector keeps; nothing is changed.

    `known` is what was found a moment ago: only files that came since are read then.
    """
    own = list(await session.scalars(select(Incident.id).where(Incident.entity_key == key).order_by(Incident.id)))
    files: list[tuple[str, int]] = [] if known is None else list(known.files)
    own += [] if known is None else known.incidents
    latest = 0 if known is None else known.latest
    query = (
        select(Evidence.id, Evidence.incident_id, Evidence.role, Evidence.sha256, Incident.entity_key)
        .join(Incident, Incident.id == Evidence.incident_id)
        .where(Evidence.incident_id.not_in(own), Evidence.id > latest)
        .order_by(Evidence.sha256)
    )
    last: tuple[str, bytes] = ("", b"")
    for ident, incident, role, sha256, of_key in (await session.execute(query)).all():
        latest = max(latest, ident)
        if last[0] != sha256:
            last = (sha256, await _blob(session, sha256))
        if await asyncio.to_thread(holds, Role(role), last[1], key):
            if of_key is None:
                own.append(incident)
            else:
                files.append((incident, ident))
    drafts = await _drafts(session, key)
    own = list(dict.fromkeys(own))
    files = [(incident, ident) for incident, ident in files if incident not in own]
    return Found(tuple(own), tuple(files), drafts, await _mentions(session, key, own), latest)


async def erase(store: Store, key: bytes, *, who: str, reason: str) -> Erased:
    """Erase everything of a key. Safe to repeat: a second time finds what came since.

    `store` is one over the role that may remove. Raises `IncidentError` for a reason that quotes the key.
    """
    words = purge.checked_reason(reason, [key_text(key) or "", key.hex()])
    erased = Erased()
    await _rewrite_segments(store, key, erased)
    async with store.read() as session:
        seen = await find(session, key)
    async with store.write() as session:
        await sql.lock(session)
        found = await find(session, key, seen)
        digest = hashlib.sha256(key).hexdigest()
        erased.counts += await purge.remove(
            session, found.incidents, what="erased", who=who, reason=words, key_sha256=digest
        )
        dropped = await _drop_files(session, found, erased)
        erased.counts += Counter(await sql.delete_of_key(session, key))
        if (named := key_text(key)) is not None:
            erased.counts["shapes"] += await sql.blank_shapes(session, named)
            erased.counts += Counter(await erase_logged(session, named))
        detail = {
            "removed": {table: count for table, count in sorted(erased.counts.items()) if count},
            "records": erased.records,
            "incidents": list(found.incidents),
            "files_of_other_incidents": dropped,
        }
        session.add(purge.tombstone("erased", "key", who, words, digest, detail))
        told = {"key_sha256": digest, "incidents": list(found.incidents)}
        record_event(session, Action.KEY_ERASED, who=who, subject="key", detail=told)
    erased.incidents, erased.mentions = found.incidents, found.mentions
    return erased


async def _drop_files(session: WriteSession, found: Found, erased: Erased) -> list[dict[str, Any]]:
    """Take single files out of incidents of other keys, and drafts away that hold the key."""
    ids = [ident for _, ident in found.files]
    dropped = (await session.execute(select(Evidence.incident_id, Evidence.sha256).where(Evidence.id.in_(ids)))).all()
    erased.counts["evidence"] += await sql.delete_evidence(session, ids)
    erased.counts["blobs"] += await sql.delete_unused_blobs(session, {sha256 for _, sha256 in dropped})
    for table, column in (("draft_files", "draft_id"), ("drafts", "id")):
        statement = text(f"DELETE FROM {table} WHERE {column} = ANY(:ids)")  # noqa: S608  our own words
        await session.execute(statement, {"ids": list(found.drafts)})
    erased.counts["drafts"] += len(found.drafts)
    return [{"incident": incident, "sha256": sha256} for incident, sha256 in dropped]


# Where a key can be --------------------------------------------------------------------------------------------------


def holds(role: Role, data: bytes, key: bytes) -> bool:
    """Whether a file of evidence holds a record of a key; outputs carry no key, and go with their incident."""
    if role is Role.OUTPUTS or key not in data:
        return False
    if not is_stream(role):
        return _is_of(_STREAMS[role], data, key)
    whole = (one for one in frames(data) if not one.problem)
    return any(_is_of(_STREAMS[role], data[one.start : one.start + one.size], key) for one in whole)


def _is_of(kind: type[Any], data: bytes, key: bytes) -> bool:
    """Whether a record is of the key; bytes that are no record of that kind are, where the key can be read in them."""
    if key not in data:
        return False
    try:
        record = parse(kind, data)
        if record.entity_key == key:
            return True
        if kind is AgentEnvelope and record.external_event:
            letter = parse(ActivationErrorRecord, record.external_event)
            return bool(letter.entity_key == key)
    except (RecordError, DecodeError, ValueError):
        return len(key) >= _READABLE and not _parses(kind, data)
    return False


def _parses(kind: type[Any], data: bytes) -> bool:
    try:
        parse(kind, data)
    except (RecordError, DecodeError, ValueError):
        return False
    return True


_STREAMS: Final[dict[Any, type[Any]]] = {
    Role.SNAPSHOT: StateSnapshot, Role.SNAPSHOTS: StateSnapshot, Role.TRACES: TraceEvent, Role.EVENT: AgentEnvelope,
    Role.EVENTS: AgentEnvelope, Role.INTENTS: ToolIntent, Role.ERRORS: AgentEnvelope,
}  # fmt: skip


async def _blob(session: ReadSession, sha256: str) -> bytes:
    codec, data = (await session.execute(select(Blob.codec, Blob.data).where(Blob.sha256 == sha256))).one()
    return await asyncio.to_thread(intake.unpack, codec, data)


async def _drafts(session: ReadSession, key: bytes) -> tuple[str, ...]:
    held = set()
    for ident in list(await session.scalars(select(Draft.id))):
        query = select(DraftFile).where(DraftFile.draft_id == ident).options(undefer(DraftFile.data))
        for file in await session.scalars(query):
            data = await asyncio.to_thread(intake.unpack, file.codec, file.data)
            if key in data and await asyncio.to_thread(holds, Role(file.role), data, key):
                held.add(ident)
    return tuple(sorted(held))


async def _mentions(session: ReadSession, key: bytes, own: Sequence[str]) -> tuple[str, ...]:
    words = key_text(key)
    if words is None or len(words) < _READABLE:
        return ()
    query = (
        select(Incident.id)
        .outerjoin(Note, Note.incident_id == Incident.id)
        .where(
            Incident.id.not_in(own),
            or_(Incident.title.contains(words, autoescape=True), Note.text.contains(words, autoescape=True)),
        )
        .distinct()
    )
    return tuple(sorted(await session.scalars(query)))


# What the collector keeps --------------------------------------------------------------------------------------------


async def _rewrite_segments(store: Store, key: bytes, erased: Erased) -> None:
    """Write every segment that holds records of the key anew without them; what comes meanwhile is seen as well."""
    after = -1
    while True:
        async with store.write() as session:
            rows = (await session.execute(sql.SEGMENTS, {"after": after, "limit": _BATCH})).all()
            for row in rows:
                kept, gone = await asyncio.to_thread(_without, row.stream, bytes(row.data), key)
                if gone:
                    packed = None if not kept else await asyncio.to_thread(segments.pack, kept)
                    replaced = None if packed is None else (len(kept), packed[1], packed[0])
                    await sql.replace_segment(session, row, [one.offset for one in gone], replaced)
                    erased.records += len(gone)
                    erased.counts["segments"] += 1
        if not rows:
            return
        after = rows[-1].id


def _without(stream: str, data: bytes, key: bytes) -> tuple[list[Raw], list[Raw]]:
    kept: list[Raw] = []
    gone: list[Raw] = []
    of_key = _record_test(stream, key)
    for record in segments.unpack(data):
        (gone if of_key(record) else kept).append(record)
    return kept, gone


def _record_test(stream: str, key: bytes) -> Callable[[Raw], bool]:
    kind = {
        "traces": TraceEvent, "snapshots": StateSnapshot, "intents": ToolIntent, "errors": AgentEnvelope,
    }.get(stream)  # fmt: skip

    def of_key(record: Raw) -> bool:
        if record.key == key:
            return True
        if kind is None or record.value is None:
            return False
        return _is_of(kind, record.value, key)

    return of_key
