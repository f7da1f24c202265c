"""All rules of the domain: what may be imported, who may replay what, how a run ends.

Functions take the caller's session and never commit: the caller's block (`Store.write`) is the unit of work. Those
that only read take a `ReadSession` (a `WriteSession` is one too). Times are epoch milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from app.incidents import bundle, intake
from app.incidents import repository as db
from app.incidents.audit import Action, record_event
from app.incidents.bundle import Bundle, Limits
from app.incidents.captured import Captured, captured_responses
from app.incidents.errors import (
    BundleError,
    FileProblem,
    ImportRefused,
    IncidentError,
    NotFound,
    Purged,
    QueueFull,
    UnknownBuild,
    WrongState,
    found,
)
from app.incidents.inputs import InputRefused, RunInputs
from app.incidents.intake import EvidenceFile, Facts, FileSummary, Role, key_text
from app.incidents.kept import evidence_bytes, evidence_files, evidence_of, evidence_read, get_evidence
from app.incidents.ledger import (
    LEDGER_BYTES,
    LedgerPage,
    entry_json,
    ledger_at,
    ledger_bodies,
    ledger_entry,
    ledger_lines,
    ledger_outline,
    ledger_outline_of,
    ledger_page,
)
from app.incidents.listing import Page, list_incidents
from app.incidents.models import Draft, DraftFile, Evidence, Incident, LedgerRow, Run, RunKind, RunRow, RunState
from app.incidents.previews import Preview, Previews
from app.incidents.purge import tombstone_of
from app.incidents.rows import Filters
from app.incidents.runs import (
    LivedBuild,
    Voucher,
    awaits_others,
    cancel_run,
    claim_run,
    fail_run,
    finish_run,
    get_run,
    get_run_by_number,
    give_back_run,
    heartbeat,
    inputs_of,
    lose_run,
    request_replay,
    requeue_forgotten,
    retry_run,
    runs_of,
    standing_of,
    suggest_build,
    sweep_lost,
    time_out_run,
    vindicated_reads,
    vouchers,
)
from app.incidents.store import ReadSession, Store, WriteSession
from app.incidents.timeline import (
    Facet,
    Neighbours,
    Window,
    facets_of,
    get_row,
    neighbours,
    rows_around,
    rows_before,
    rows_of,
    rows_with_payload,
    with_bodies,
)
from app.replay.verdict import Report
from app.replay.whatif import Waiting

T = TypeVar("T")

# Other rooms find here whatever they may use of this one.
__all__ = [
    "LEDGER_BYTES",
    "BundleError",
    "Captured",
    "Draft",
    "DraftFile",
    "Evidence",
    "EvidenceFile",
    "Facet",
    "FileProblem",
    "FileSummary",
    "Filters",
    "ImportRefused",
    "Incident",
    "IncidentError",
    "InputRefused",
    "LedgerPage",
    "LedgerRow",
    "Limits",
    "LivedBuild",
    "Neighbours",
    "NotFound",
    "Page",
    "Preview",
    "Previews",
    "QueueFull",
    "ReadSession",
    "Report",
    "Role",
    "Run",
    "RunInputs",
    "RunKind",
    "RunRow",
    "RunState",
    "Store",
    "UnknownBuild",
    "Voucher",
    "Waiting",
    "Window",
    "WriteSession",
    "WrongState",
    "awaits_others",
    "cancel_run",
    "captured_responses",
    "claim_run",
    "entry_json",
    "evidence_bytes",
    "evidence_files",
    "evidence_of",
    "evidence_read",
    "export_bundle",
    "facets_of",
    "fail_run",
    "finish_run",
    "get_evidence",
    "get_incident",
    "get_incident_and_run",
    "get_row",
    "get_run",
    "get_run_by_number",
    "give_back_run",
    "heartbeat",
    "import_bundle",
    "import_evidence",
    "inputs_of",
    "key_text",
    "latest_runs",
    "ledger_at",
    "ledger_bodies",
    "ledger_entry",
    "ledger_lines",
    "ledger_outline",
    "ledger_outline_of", "ledger_page",
    "list_incidents",
    "lose_run",
    "neighbours",
    "request_replay",
    "requeue_forgotten",
    "retry_run",
    "rows_around",
    "rows_before",
    "rows_of",
    "rows_with_payload",
    "runs_of",
    "standing_of",
    "suggest_build",
    "sweep_lost",
    "time_out_run",
    "vindicated_reads",
    "vouchers",
    "with_bodies",
]  # fmt: skip

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
    if not files:
        raise ImportRefused([_NO_FILES])
    summaries, problems = await asyncio.to_thread(intake.check, files)
    if problems:
        raise ImportRefused(problems)
    facts = await asyncio.to_thread(intake.facts_of, files, seq, sources or ())
    await db.keep_blobs(session, await asyncio.to_thread(lambda: [intake.pack(file) for file in files]))
    incident = _incident(facts, title or _title(facts, files), who, seq, build_hint, imported=imported)
    session.add(incident)
    await session.flush()
    for position, (summary, source) in enumerate(zip(summaries, sources or bundle.sources_of(files), strict=True)):
        assert summary is not None, "a file without a summary has a problem"
        session.add(_evidence(incident, position, summary, source))
    detail = {"files": [file.sha256 for file in files], "bundle": imported}
    record_event(session, Action.INCIDENT_IMPORTED, who=who, subject=incident.id, detail=detail)
    await session.flush()
    return incident


async def import_bundle(
    session: WriteSession, data: bytes, *, name: str, who: str, title: str | None = None, limits: Limits | None = None
) -> Incident:
    """Open an incident from a `bundle.zip`, marked as imported; `name` is what the file is called in messages.

    Raises `ImportRefused` naming the bundle, or the entry inside it, that is wrong.
    """
    try:
        unpacked = await asyncio.to_thread(bundle.read, data, name, limits)
    except BundleError as error:
        raise ImportRefused([error.as_file_problem()]) from error
    return await import_evidence(
        session,
        unpacked.files,
        who=who,
        title=title,
        seq=unpacked.seq,
        sources=unpacked.sources,
        build_hint=unpacked.build,
        imported=True,
    )


async def export_bundle(session: ReadSession, incident: Incident) -> bytes:
    """Pack an incident's evidence as a `bundle.zip`; equal evidence gives equal bytes."""
    kept = await evidence_of(session, incident)
    files = await evidence_files(session, incident, [file.id for file in kept])
    made = Bundle(
        files=tuple(files),
        sources=tuple(file.source for file in kept),
        seq=incident.wanted_seq,
        attempt=incident.attempt,
        build=incident.build_hint,
    )
    return await asyncio.to_thread(bundle.write, made)


async def latest_runs(session: ReadSession, incidents: Sequence[Incident]) -> dict[str, Run]:
    """Find the newest run of each incident, by incident id, in one query; incidents without runs are left out."""
    return {run.incident_id: run for run in await db.latest_runs(session, [incident.id for incident in incidents])}


async def get_incident(session: ReadSession, incident_id: str) -> Incident:
    """Load one incident. Raises `NotFound`, `Purged` for one that was removed for good."""
    return await _there(session, await db.incident(session, incident_id), incident_id)


async def get_incident_and_run(session: ReadSession, incident_id: str, number: int) -> tuple[Incident, Run | None]:
    """Load an incident and its n-th run, its `verdict` included; None where it has fewer. Raises as `get_incident`."""
    return await _there(session, await db.incident_and_run(session, incident_id, number), incident_id)


async def _there(session: ReadSession, loaded: T | None, incident_id: str) -> T:
    if loaded is None and (gone := await tombstone_of(session, incident_id)) is not None:
        raise Purged(incident_id, gone.at, f"{gone.what}: {gone.reason}", gone.detail.get("pipeline"))
    return found(loaded, "incident", incident_id)


# Small helpers -------------------------------------------------------------------------------------------------------

_NO_FILES: Final = FileProblem(
    "(no file)",
    "",
    "nothing was handed in",
    "a snapshot, a trace stream and the triggering envelope",
    "Choose the files, or one bundle.zip.",
)


def _incident(
    facts: Facts, title: str, who: str, seq: int | None, build_hint: str | None, *, imported: bool
) -> Incident:
    return Incident(
        title=title,
        created_by=who,
        entity_key=facts.entity_key,
        seq=facts.seq,
        kind=facts.kind,
        clock_ms=facts.clock_ms,
        recorded_status=facts.recorded_status,
        attempt=facts.attempt,
        wanted_seq=seq,
        build_hint=build_hint,
        imported=imported,
        problem=facts.problem,
    )


def _evidence(incident: Incident, position: int, summary: FileSummary, source: Mapping[str, Any]) -> Evidence:
    return Evidence(
        incident_id=incident.id,
        position=position,
        role=str(summary.role),
        name=summary.name,
        sha256=summary.sha256,
        size=summary.size,
        records=summary.records,
        summary=summary.describes,
        warnings=list(summary.warnings),
        source=dict(source),
    )


def _title(facts: Facts, files: Sequence[EvidenceFile]) -> str:
    if facts.entity_key is None:
        return files[0].name
    key = key_text(facts.entity_key) or facts.entity_key.hex() or "(empty key)"
    return key if facts.seq is None else f"{key}, seq {facts.seq}"
