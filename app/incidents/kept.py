"""An incident's files as they are kept: described without their bytes, read exactly as they were received."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from app.incidents import intake
from app.incidents import repository as db
from app.incidents.errors import IncidentError, found
from app.incidents.intake import EvidenceFile, Role
from app.incidents.models import Evidence, Incident
from app.incidents.store import ReadSession

# Files up to this size are read along with what describes them; of larger ones, one at a time is held packed.
_ALONG_BYTES: Final = 1 << 20


async def evidence_of(session: ReadSession, incident: Incident) -> list[Evidence]:
    """List an incident's files in their order, without their bytes."""
    return await db.evidence_of(session, incident.id)


async def get_evidence(session: ReadSession, incident: Incident, evidence_id: int) -> Evidence:
    """Load one file's description, if it belongs to this incident. Raises `NotFound`."""
    return found(await db.evidence(session, incident.id, evidence_id), "evidence", evidence_id)


async def evidence_bytes(session: ReadSession, evidence: Evidence) -> bytes:
    """Read a file exactly as it was received. Raises `IncidentError` when stored bytes do not match their digest."""
    kept = found(await db.blob(session, evidence.sha256), "stored file", evidence.sha256)
    return await asyncio.to_thread(_unpacked, evidence, *kept)


def _unpacked(evidence: Evidence, codec: str, packed: bytes) -> bytes:
    data = intake.unpack(codec, packed)
    if hashlib.sha256(data).hexdigest() != evidence.sha256:
        raise IncidentError(
            f"the stored bytes of {evidence.name!r} no longer have the sha256 {evidence.sha256} under which they were"
            " received: the database is damaged; restore a back-up"
        )
    return data


async def evidence_read(
    session: ReadSession, incident: Incident, ids: Sequence[int]
) -> list[tuple[Evidence, EvidenceFile]]:
    """Read some of an incident's files whole, in their order, each beside what describes it. Raises `IncidentError`."""
    kept = await db.evidence_and_blobs(session, incident.id, ids, _ALONG_BYTES)
    here = [(file, codec, data) for file, codec, data in kept if codec is not None and data is not None]
    read = await asyncio.to_thread(lambda: {file.id: _unpacked(file, codec, data) for file, codec, data in here})
    for file, _, _ in kept:
        if file.id not in read:
            read[file.id] = await evidence_bytes(session, file)
    return [(file, EvidenceFile(Role(file.role), file.name, read[file.id])) for file, _, _ in kept]


async def evidence_files(session: ReadSession, incident: Incident, ids: Sequence[int]) -> list[EvidenceFile]:
    """Read some of an incident's files whole, in their order, as a replay takes them."""
    return [file for _, file in await evidence_read(session, incident, ids)]
