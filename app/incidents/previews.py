"""What a replay of an incident would be fed with, told before it starts; computed once for each set of evidence.

Evidence may be large, so it is read and planned in a thread, one incident at a time, and pages need not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.incidents.kept import evidence_files
from app.incidents.models import Incident
from app.incidents.store import Store
from app.replay.evidence import EvidenceFile, UnusableEvidence
from app.replay.preview import preview
from app.replay.select import Unanswerable
from app.replay.whatif import Waiting, waiting

_KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class Stop:
    """Why no build could be replayed on this evidence: the outcome that every run would have, and its reason."""

    outcome: str
    code: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan (see `app.replay.preview`) or the reason why there is none; and what may still be decided."""

    plan: Mapping[str, Any] | None
    stop: Stop | None
    waiting: tuple[Waiting, ...] = ()


def preview_of(files: Sequence[EvidenceFile], seq: int | None, key: bytes | None) -> Preview:
    """Plan over files, and find what a person could decide. Pure, and slow where the evidence is large."""
    try:
        waits = waiting(files, key)
    except UnusableEvidence:
        waits = ()
    try:
        return Preview(preview(files, seq), None, waits)
    except Unanswerable as stop:
        reason = stop.reason
        return Preview(None, Stop(str(stop.outcome), reason.code, reason.text, reason.remedy), waits)


class Previews:
    """The process's previews, by evidence set. Evidence never changes, so neither does what is kept here."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: OrderedDict[tuple[object, ...], asyncio.Task[Preview]] = OrderedDict()
        self._one = asyncio.Semaphore(1)

    async def of(self, incident: Incident, evidence_ids: Sequence[int], *, patience_s: float | None) -> Preview | None:
        """The preview of an incident's evidence; None when it is not ready within `patience_s` (None: wait for it)."""
        key = (incident.id, incident.wanted_seq, *evidence_ids)
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(self._compute(incident, list(evidence_ids)))
            if len(self._tasks) > _KEPT:
                self._tasks.popitem(last=False)[1].cancel()
        self._tasks.move_to_end(key)
        done, _ = await asyncio.wait({task}, timeout=patience_s)
        if not done:
            return None
        if task.cancelled() or task.exception() is not None:
            self._tasks.pop(key, None)  # whatever it was (the database away), the next page asks again
        return task.result()

    async def _compute(self, incident: Incident, evidence_ids: list[int]) -> Preview:
        async with self._one:
            async with self._store.read() as session:
                files = await evidence_files(session, incident, evidence_ids)
            return await asyncio.to_thread(preview_of, files, incident.wanted_seq, incident.entity_key)
