"""Finds one captured model response in an incident's snapshots, so that a page can show the evidence behind a word."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.incidents.errors import NotFound
from app.incidents.kept import evidence_bytes, evidence_of
from app.incidents.models import Evidence, Incident
from app.incidents.store import ReadSession
from app.replay.evidence import EvidenceFile, Role, load

_ROLES: Final = (Role.SNAPSHOT, Role.SNAPSHOTS)


@dataclass(frozen=True, slots=True)
class Captured:
    """One cache entry: who holds it, what it says, and whether its bytes are those that its digest names.

    `response` is None where only the digest was kept. `created_ms` is the clock of the attempt that obtained it.
    """

    evidence_id: int
    source: str
    counter: int
    response: bytes | None
    digest: str
    sound: bool
    created_ms: int


async def captured_responses(session: ReadSession, incident: Incident, cache_key: str) -> list[Captured]:
    """Every snapshot's entry for a request, in the order of the evidence. Raises `NotFound` when none has one."""
    kept = [file for file in await evidence_of(session, incident) if file.role in _ROLES]
    files = [EvidenceFile(Role(file.role), file.name, await evidence_bytes(session, file)) for file in kept]
    found = await asyncio.to_thread(_search, kept, files, cache_key)
    if not found:
        raise NotFound("captured response", cache_key)
    return found


def _search(kept: Sequence[Evidence], files: Sequence[EvidenceFile], cache_key: str) -> list[Captured]:
    found = []
    for held, file in zip(kept, files, strict=True):
        for snapshot in load([file]).snapshots:
            for entry in snapshot.record.llm_cache.entries:
                if entry.cache_key == cache_key:
                    response = None if entry.digest_only else entry.response
                    digest = entry.response_digest.hex()
                    sound = response is None or hashlib.sha256(response).hexdigest() == digest
                    found.append(
                        Captured(held.id, file.name, snapshot.counter, response, digest, sound, entry.created_at_ms)
                    )
    return found
