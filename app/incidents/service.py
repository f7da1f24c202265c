"""All rules of the domain: what may be imported, who may replay what, how a run ends.

Functions take the caller's session and never commit: the caller's block (`Store.write`) is the unit of work. Those
that only read take a `ReadSession` (a `WriteSession` is one too). Times are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from app.incidents.models import Evidence, Incident, Run, RunRow
from app.incidents.store import ReadSession, WriteSession

if TYPE_CHECKING:
    from app.replay.evidence import EvidenceFile
    from app.replay.verdict import Report

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list, newest first; `next` is the cursor of the following page, None on the last one."""

    items: tuple[T, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run's timeline around some row.

    `total` counts the rows of the whole list asked for (all, or only the differing ones), by the same condition that
    chose `rows`. `previous` and `next` are what to pass as `start` for the windows before and after, None at the ends.
    """

    rows: tuple[RunRow, ...]
    total: int
    previous: int | None
    next: int | None


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Ordinals of the differing rows just before and just after one row; None where there is none."""

    previous: int | None
    next: int | None


# Incidents -----------------------------------------------------------------------------------------------------------


async def import_evidence(
    session: WriteSession,
    files: Sequence[EvidenceFile],
    *,
    who: str,
    title: str | None = None,
    seq: int | None = None,
    sources: Sequence[Mapping[str, Any]] | None = None,
    build_hint: str | None = None,
    imported: bool = False,
) -> Incident:
    """Open an incident from files: all of them are kept, byte for byte, or none.

    `sources` gives the provenance of each file, in the same order (default: an upload of that name). `seq` narrows
    the attempt. Raises `ImportRefused` with one problem per refused file. An attempt that cannot be selected is no
    reason to refuse: the incident then says why in `problem`.
    """
    raise NotImplementedError


async def import_bundle(
    session: WriteSession, data: bytes, *, name: str, who: str, title: str | None = None
) -> Incident:
    """Open an incident from a `bundle.zip`, marked as imported; `name` is what the file is called in messages.

    Raises `ImportRefused` naming the bundle, or the entry inside it, that is wrong.
    """
    raise NotImplementedError


async def export_bundle(session: ReadSession, incident: Incident) -> bytes:
    """Pack an incident's evidence as a `bundle.zip`; equal evidence gives equal bytes."""
    raise NotImplementedError


async def list_incidents(session: ReadSession, *, after: str | None = None, limit: int = 50) -> Page[Incident]:
    """Read incidents, newest first; `after` is a `Page.next`. Raises `IncidentError` for a cursor that is not ours."""
    raise NotImplementedError


async def latest_runs(session: ReadSession, incidents: Sequence[Incident]) -> dict[str, Run]:
    """Find the newest run of each incident, by incident id, in one query; incidents without runs are left out."""
    raise NotImplementedError


async def get_incident(session: ReadSession, incident_id: str) -> Incident:
    """Load one incident. Raises `NotFound`."""
    raise NotImplementedError


async def evidence_of(session: ReadSession, incident: Incident) -> list[Evidence]:
    """List an incident's files in their order, without their bytes."""
    raise NotImplementedError


async def get_evidence(session: ReadSession, incident: Incident, evidence_id: int) -> Evidence:
    """Load one file's description, if it belongs to this incident. Raises `NotFound`."""
    raise NotImplementedError


async def evidence_bytes(session: ReadSession, evidence: Evidence) -> bytes:
    """Read a file exactly as it was received. Raises `IncidentError` when stored bytes do not match their digest."""
    raise NotImplementedError


# Runs ----------------------------------------------------------------------------------------------------------------


async def request_replay(
    session: WriteSession, incident: Incident, build: str, *, who: str, known: Collection[str]
) -> Run:
    """Create a run and queue it, in the caller's transaction; `known` names the builds of the configuration.

    Raises `UnknownBuild`. The run holds the evidence that the incident has now.
    """
    raise NotImplementedError


async def retry_run(session: WriteSession, run_id: str, *, who: str, known: Collection[str]) -> Run:
    """Queue a run again that ended without a verdict. Raises `NotFound`, `WrongState`, `UnknownBuild`."""
    raise NotImplementedError


async def cancel_run(session: WriteSession, run_id: str, *, who: str) -> Run:
    """Cancel a queued or running run; what its worker still finds is not recorded. Raises `NotFound`, `WrongState`."""
    raise NotImplementedError


async def get_run(session: ReadSession, run_id: str) -> Run:
    """Load one run, its `verdict` included. Raises `NotFound`."""
    raise NotImplementedError


async def get_run_by_number(session: ReadSession, incident: Incident, number: int) -> Run:
    """Load the n-th run of an incident (from 1), its `verdict` included. Raises `NotFound`."""
    raise NotImplementedError


async def runs_of(session: ReadSession, incident: Incident) -> list[Run]:
    """List an incident's runs, newest first, without their verdicts."""
    raise NotImplementedError


async def rows_of(
    session: ReadSession,
    run: Run,
    *,
    start: int = 0,
    limit: int = 200,
    only_differences: bool = False,
    bodies: bool = False,
) -> Window:
    """Read the rows of a run from ordinal `start` on; `bodies` loads recorded, replayed and fields with them."""
    raise NotImplementedError


async def rows_around(
    session: ReadSession,
    run: Run,
    *,
    at: int,
    limit: int = 200,
    only_differences: bool = False,
    bodies: bool = False,
) -> Window:
    """Read the rows around ordinal `at`, so that a link to one event always finds it in the window."""
    raise NotImplementedError


async def get_row(session: ReadSession, run: Run, ordinal: int) -> RunRow:
    """Load one row with its bodies. Raises `NotFound`."""
    raise NotImplementedError


async def neighbours(session: ReadSession, run: Run, ordinal: int) -> Neighbours:
    """Find the differing rows before and after a row, for the keys `n` and `p`."""
    raise NotImplementedError


# The worker's side ---------------------------------------------------------------------------------------------------


async def claim_run(session: WriteSession, run_id: str, *, worker: str, lease_s: float) -> Run | None:
    """Take a queued run: its attempt rises and a lease begins. None when there is nothing to take (any more)."""
    raise NotImplementedError


async def heartbeat(session: WriteSession, run_id: str, attempt: int, *, lease_s: float) -> bool:
    """Extend the lease of attempt `attempt`; False when the run is not its worker's any more (cancelled, lost)."""
    raise NotImplementedError


async def finish_run(session: WriteSession, run_id: str, attempt: int, report: Report) -> bool:
    """Record the verdict and all rows of attempt `attempt`; False, and nothing written, when it is no longer ours."""
    raise NotImplementedError


async def fail_run(session: WriteSession, run_id: str, attempt: int, error: str) -> bool:
    """Record that the tool itself crashed in attempt `attempt`, with the report that a person can send us."""
    raise NotImplementedError


async def time_out_run(session: WriteSession, run_id: str, attempt: int, error: str) -> bool:
    """Record that attempt `attempt` took longer than a run may."""
    raise NotImplementedError


async def sweep_lost(session: WriteSession) -> list[str]:
    """Turn running runs whose lease is over into `lost`, and say which; skips rows that others hold locked."""
    raise NotImplementedError
