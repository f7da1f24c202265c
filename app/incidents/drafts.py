"""Holds the sound files of an unfinished import for an hour: who must mend one need not choose the others again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from app.incidents import intake, service
from app.incidents import repository as db
from app.incidents.errors import FileProblem, ImportRefused, IncidentError, found
from app.incidents.intake import EvidenceFile, FileSummary, Role
from app.incidents.models import Draft, DraftFile, Incident
from app.incidents.store import ReadSession, WriteSession

HELD_MS: Final = 3_600_000
MAX_FILES: Final = 200


@dataclass(frozen=True, slots=True)
class Held:
    """What a draft holds now (without bytes), and what was wrong with the files just handed in."""

    draft_id: str
    files: tuple[DraftFile, ...]
    problems: tuple[FileProblem, ...]


async def check_and_hold(
    session: WriteSession, files: Sequence[EvidenceFile], *, who: str, draft_id: str | None = None
) -> Held:
    """Check each file by itself and hold the sound ones, in a new draft or in `draft_id`.

    The caller commits although there are problems: that is the point. Raises `NotFound` for a draft that expired.
    """
    summaries, problems = await asyncio.to_thread(intake.check, files)
    draft = await _draft(session, draft_id, who)
    if len(await held_files(session, draft.id)) + len(files) > MAX_FILES:
        raise IncidentError(f"an import takes at most {MAX_FILES} files; merge streams of one kind into one file")
    for file, summary in zip(files, summaries, strict=True):
        if summary is not None:
            session.add(await asyncio.to_thread(_file, draft.id, file, summary))
    await session.flush()
    return Held(draft.id, await held_files(session, draft.id), tuple(problems))


async def held_files(session: ReadSession, draft_id: str) -> tuple[DraftFile, ...]:
    """List what a draft holds, in the order of arrival, without bytes. Raises `NotFound` when it is gone or expired."""
    await _live(session, draft_id)
    return tuple(await db.draft_files(session, draft_id))


async def drop_held(session: WriteSession, draft_id: str, file_ids: Collection[int]) -> None:
    """Let some files of a draft go; ids that are not in it are ignored. Raises `NotFound`."""
    await _live(session, draft_id)
    await db.drop_draft_files(session, draft_id, file_ids)


async def import_held(
    session: WriteSession, draft_id: str, *, who: str, title: str | None = None, seq: int | None = None
) -> Incident:
    """Open an incident from what a draft holds, and end the draft. Raises `NotFound`, `ImportRefused`."""
    await _live(session, draft_id)
    kept = await db.draft_files(session, draft_id, bodies=True)
    files = [
        EvidenceFile(Role(file.role), file.name, await asyncio.to_thread(intake.unpack, file.codec, file.data))
        for file in kept
    ]
    incident = await service.import_evidence(session, files, who=who, title=title, seq=seq)
    await db.drop_draft(session, draft_id)
    return incident


async def sweep_drafts(session: WriteSession) -> int:
    """Delete drafts that expired, with their files; returns how many."""
    return await db.drop_expired_drafts(session)


async def _draft(session: WriteSession, draft_id: str | None, who: str) -> Draft:
    if draft_id is not None:
        return await _live(session, draft_id)
    draft = Draft(created_by=who, expires_at=await db.now(session) + HELD_MS)
    session.add(draft)
    await session.flush()
    return draft


async def _live(session: ReadSession, draft_id: str) -> Draft:
    return found(await db.draft(session, draft_id), "draft of an import", draft_id)


def _file(draft_id: str, file: EvidenceFile, summary: FileSummary) -> DraftFile:
    packed = intake.pack(file)
    return DraftFile(
        draft_id=draft_id,
        role=str(summary.role),
        name=summary.name,
        sha256=packed.sha256,
        size=packed.size,
        records=summary.records,
        summary=summary.describes,
        warnings=list(summary.warnings),
        codec=packed.codec,
        data=packed.data,
    )


__all__ = ["Held", "ImportRefused", "check_and_hold", "drop_held", "held_files", "import_held", "sweep_drafts"]
