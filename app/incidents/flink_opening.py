"""Opening an incident on a run of an event log: its lines become evidence, byte for byte, and stay.

Where the log does not say with which memory the run began, the earlier runs of its key become evidence too, in a file
of their own: a re-run gets the memory from them.
"""

from __future__ import annotations

from app.flink.records import RUN_BEGIN
from app.incidents import service
from app.incidents.audit import Action, record_event
from app.incidents.flink_evidence import LEADS_UP
from app.incidents.flink_runs import WholeRun, get_flink_run, lines_before
from app.incidents.intake import EvidenceFile, Role
from app.incidents.models import Incident
from app.incidents.store import WriteSession


async def open_flink_incident(session: WriteSession, run_id: int, *, who: str, title: str | None = None) -> Incident:
    """Open an incident from a run. Raises `NotFound`."""
    whole = await get_flink_run(session, run_id)
    data = b"".join(line + b"\n" for line in whole.lines)
    source = {
        "kind": "event log",
        "file": whole.log_name,
        "run": whole.row.ref,
        "ordinal": whole.ordinal,
        "key_paths": list(whole.key_paths),
    }
    files, sources = [EvidenceFile(Role.EVENT_LOG, whole.log_name, data)], [source]
    if not any(record.type == RUN_BEGIN for record in whole.run.records):
        runs, before = await lines_before(session, whole.row)
        if runs:
            files.append(EvidenceFile(Role.EVENT_LOG, f"before-{whole.log_name}", b"".join(before)))
            sources.append(source | {LEADS_UP: whole.row.ref, "runs": runs})
    incident = await service.import_evidence(session, files, who=who, title=title or _title(whole), sources=sources)
    record_event(
        session, Action.INCIDENT_OPENED, who=who, subject=incident.id,
        detail={"run": whole.row.ref, "key": whole.row.key},
    )  # fmt: skip
    return incident


def _title(whole: WholeRun) -> str:
    key = whole.row.key if whole.row.key is not None else whole.row.ref[:16]
    return key if whole.ordinal is None else f"{key}, input {whole.ordinal}"
