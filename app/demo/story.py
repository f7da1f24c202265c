"""The story of the demo: a refund a hundred times too high, its evidence, and what the two builds make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from app.demo.desk import example
from app.incidents import service
from app.incidents.service import EvidenceFile, Role, Run, Store

WHO: Final = "the demo"
TITLE: Final = "customer-42 was refunded 4800.00 EUR for an order of 48.00 EUR"

# In the order in which a person would hand them in.
_FILES: Final = (
    (Role.SNAPSHOT, "snapshot-before.pb"),
    (Role.SNAPSHOT, "snapshot-after.pb"),
    (Role.TRACES, "traces.bin"),
    (Role.EVENT, "event.pb"),
    (Role.INTENTS, "intents.bin"),
    (Role.OUTPUTS, "outputs.bin"),
)


def evidence() -> list[EvidenceFile]:
    """Read the recordings of the night."""
    return [EvidenceFile(role, name, (example() / "evidence" / name).read_bytes()) for role, name in _FILES]


async def tell(store: Store, builds: Sequence[str]) -> list[str]:
    """Bring the story into an empty console, with a replay by each build; returns the ids of the story's runs.

    A console that knows the story already is left as it is, and one with other incidents is not told it.
    """
    async with store.write() as session:
        page = await service.list_incidents(session, limit=200)
        ours = [incident for incident in page.items if (incident.created_by, incident.title) == (WHO, TITLE)]
        if ours:
            return [run.id for run in reversed(await service.runs_of(session, ours[-1]))]
        if page.items:
            return []
        incident = await service.import_evidence(session, evidence(), who=WHO, title=TITLE)
        runs = [await service.request_replay(session, incident, build, who=WHO, known=builds) for build in builds]
    return [run.id for run in runs]


async def endings(store: Store, run_ids: Sequence[str], patience_s: float) -> list[Run]:
    """Wait until the runs have ended, or the patience has; returns them as they are then."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while True:
        async with store.read() as session:
            runs = [await service.get_run(session, run_id) for run_id in run_ids]
        if all(run.run_state.finished for run in runs) or asyncio.get_running_loop().time() > deadline:
            return runs
        await asyncio.sleep(0.05)
