"""An incident on a run of an event log: its lines are the evidence, and a bundle carries them whole."""

from __future__ import annotations

import pytest

from app.incidents import flink_runs, service
from app.incidents.flink_evidence import flink_run_of
from app.incidents.flink_opening import open_flink_incident
from app.incidents.flink_runs import RunFilter
from app.incidents.service import EvidenceFile, ImportRefused, Role, Store
from tests.fixtures.postgres import Database
from tests.incidents.flink import LOGS, NAMES, bring_in, bring_in_all


async def test_the_lines_of_the_run_are_the_evidence(database: Database, store: Store) -> None:
    bring_in_all(database.app)
    async with store.write() as session:
        page = await flink_runs.list_runs(session, RunFilter(category="tool_call_failed"))
        incident = await open_flink_incident(session, page.items[0].id, who="me")
    async with store.read() as session:
        (file,) = await service.evidence_of(session, incident)
        data = await service.evidence_bytes(session, file)
        whole = await flink_runs.get_flink_run(session, page.items[0].id)
    assert (incident.title, incident.entity_key, incident.kind) == ("c1, input 2", b"c1", "flink run")
    assert (incident.recorded_status, incident.problem, incident.attempt and incident.attempt["run"]) == (
        "completed", None, page.items[0].ref,
    )  # fmt: skip
    assert (file.role, file.summary, file.warnings) == ("event-log", "26 records of 1 run", [])
    assert set(data.splitlines()) <= set((LOGS / NAMES[2]).read_bytes().splitlines())
    assert flink_run_of([EvidenceFile(Role.EVENT_LOG, file.name, data)], [file.source]) == whole.run


@pytest.mark.parametrize("name", NAMES)
async def test_a_bundle_carries_the_run_and_its_key(database: Database, store: Store, name: str) -> None:
    bring_in(database.app, LOGS / name)
    async with store.write() as session:
        page = await flink_runs.list_runs(session, RunFilter())
        incident = await open_flink_incident(session, page.items[0].id, who="me")
        bundle = await service.export_bundle(session, incident)
    async with store.write() as session:
        again = await service.import_bundle(session, bundle, name="bundle.zip", who="you")
        assert await service.export_bundle(session, again) == bundle
    assert again.entity_key == incident.entity_key == str(page.items[0].key).encode()
    assert (again.attempt, again.clock_ms, again.recorded_status) == (
        incident.attempt, incident.clock_ms, incident.recorded_status,
    )  # fmt: skip


async def test_a_whole_log_is_not_one_run(store: Store) -> None:
    file = EvidenceFile(Role.EVENT_LOG, NAMES[2], (LOGS / NAMES[2]).read_bytes())
    async with store.write() as session:
        incident = await service.import_evidence(session, [file], who="me")
    assert incident.problem is not None
    assert "3 runs, and an incident is about one" in incident.problem


async def test_what_is_no_event_log_is_refused(store: Store) -> None:
    for data, what in ((b"", "the file is empty"), (b"INFO something\n", "no line is a record (not JSON)")):
        async with store.write() as session:
            with pytest.raises(ImportRefused) as refused:
                await service.import_evidence(session, [EvidenceFile(Role.EVENT_LOG, "x", data)], who="me")
        assert what in str(refused.value.problems[0])
