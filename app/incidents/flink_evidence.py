"""Event logs of Flink Agents as evidence of an incident: the lines of one run, exactly as they were logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.flink.keys import Path, parse_paths
from app.flink.logs import Log, read_log
from app.flink.model import Run
from app.incidents.errors import FileProblem
from app.incidents.facts import Facts
from app.replay.evidence import EvidenceFile, Role, UnusableFile
from app.replay.inspection import FileSummary

KIND: Final = "flink run"
DRIVER: Final = "flink"  # of the builds that replay one
# In the provenance of a file: the run before which the runs in it came.
LEADS_UP: Final = "leads_up_to"
_EXPECTED: Final = "lines of an event log of Flink Agents, such as `hindcast flink import` reads"


def check_event_log(file: EvidenceFile) -> FileSummary:
    """Say what a log holds. Raises `UnusableFile` where nothing in it is a record."""
    log = read_log(file.data, file.name)
    records = sum(len(run.entries) for run in log.runs)
    if not records and not log.unattributed:
        what = log.garbage[0].reason if log.garbage else "the file is empty"
        remedy = "Choose the event log itself, not the job's other logs."
        raise UnusableFile(FileProblem(file.name, str(file.role), f"no line is a record ({what})", _EXPECTED, remedy))
    keys = tuple(sorted({run.key.encode("utf-8", "surrogatepass") for run in log.runs if run.key is not None}))
    return FileSummary(
        role=file.role,
        name=file.name,
        records=records + len(log.unattributed),
        size=len(file.data),
        sha256=file.sha256,
        describes=f"{_count(records, 'record')} of {_count(len(log.runs), 'run')}",
        entity_keys=keys,
        warnings=tuple(_warnings(log)),
    )


def _warnings(log: Log) -> list[str]:
    told = []
    if log.unattributed:
        told.append(f"{_count(len(log.unattributed), 'record')} of no known run")
    if log.garbage:
        told.append(f"{_count(len(log.garbage), 'line')} no record: {log.garbage[0].reason}")
    if cut := sum(run.truncated for run in log.runs):
        told.append(f"{_count(cut, 'record')} cut short by the log")
    return told


def flink_run_of(files: Sequence[EvidenceFile], sources: Sequence[Mapping[str, Any]] = ()) -> Run | None:
    """The one run that the evidence holds; None where it holds none, or several."""
    runs = _runs(files, sources)
    return runs[0] if len(runs) == 1 else None


def flink_facts(files: Sequence[EvidenceFile], sources: Sequence[Mapping[str, Any]] = ()) -> Facts:
    """Say which run the evidence is of."""
    runs = _runs(files, sources)
    if len(runs) != 1:
        said = "no run" if not runs else f"{len(runs)} runs, and an incident is about one"
        return Facts(
            kind=KIND, problem=f"the event log holds {said}: import it under Event logs, and open the run that you mean"
        )
    run = runs[0]
    return Facts(
        entity_key=None if run.key is None else run.key.encode("utf-8", "surrogatepass"),
        kind=KIND,
        clock_ms=run.first_ns // 1_000_000,
        recorded_status=str(run.status),
        attempt=attempt_json(run),
    )


def attempt_json(run: Run) -> dict[str, Any]:
    """What tells the run from others of its key."""
    return {
        "kind": KIND,
        "run": run.ref,
        "job": run.stream.job,
        "task": run.stream.task,
        "subtask": run.stream.subtask,
        "agent": run.agent,
        "form": str(run.form),
        "status": str(run.status),
        "clock_ms": run.first_ns // 1_000_000,
    }


def leading_up(files: Sequence[EvidenceFile], sources: Sequence[Mapping[str, Any]]) -> list[Run]:
    """The earlier runs of the key that were kept beside the one that the incident is about: its memory is theirs."""
    return _runs(files, sources, before=True)


def _runs(files: Sequence[EvidenceFile], sources: Sequence[Mapping[str, Any]], *, before: bool = False) -> list[Run]:
    logs = [
        (file, paths_of(sources, n))
        for n, file in enumerate(files)
        if file.role is Role.EVENT_LOG and _leads_up(sources, n) is before
    ]
    return [run for file, paths in logs for run in read_log(file.data, file.name, paths).runs]


def _leads_up(sources: Sequence[Mapping[str, Any]], number: int) -> bool:
    return number < len(sources) and isinstance(sources[number].get(LEADS_UP), str)


def paths_of(sources: Sequence[Mapping[str, Any]], number: int) -> tuple[Path, ...]:
    """Where the keys of a file stand, as its provenance tells; nothing where that is no list of paths."""
    told = sources[number].get("key_paths") if number < len(sources) else None
    try:
        return parse_paths(told) if isinstance(told, list) else ()
    except (TypeError, ValueError, AttributeError):
        return ()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
