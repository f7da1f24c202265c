"""From an imported event log to two builds side by side: opened, replayed by a worker, read on the pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.cli import main
from app.incidents import flink_runs, service
from app.incidents.flink_opening import open_flink_incident
from app.incidents.flink_runs import RunFilter
from app.incidents.service import Incident, Store
from app.jobs.replayer import SandboxedReplayer
from app.jobs.worker import Worker
from app.settings import Settings, load
from tests.fixtures.flink import EXAMPLE, KEY_PATH, LOG, example_log
from tests.fixtures.postgres import Database
from tests.web.conftest import TOKEN, Browser, configuration
from tests.web.html import Page


@pytest.fixture
def settings(flink_python: Path, tmp_path: Path, database: Database) -> Settings:
    text = (EXAMPLE / "hindcast.toml").read_text().replace('"../../.cache/flink/bin/python"', f'"{flink_python}"')
    for name in ("v1", "v2", "v3", "shared"):
        text = text.replace(f'"{name}"', f'"{EXAMPLE / name}"')
    file = tmp_path / "hindcast.toml"
    file.write_text(text + "\n" + configuration(("a01_fraud_completed",)))
    return load(file, {"HINDCAST_TOKEN": TOKEN, "HINDCAST_DATABASE_URL": database.app, "HINDCAST_HOME": str(tmp_path)})


@pytest.fixture
async def incident(person: Browser, store: Store) -> Incident:
    """The tenth input of a customer whose refund the second build would limit."""
    given = await person.post("/flink/import", {"key_paths": KEY_PATH}, [("log", (LOG.stem, example_log()))])
    assert given.status_code == 303
    async with store.read() as session:
        runs = await flink_runs.list_runs(session, RunFilter(key="ada"))
    async with store.write() as session:
        return await open_flink_incident(session, runs.items[1].id, who="ada")


@asynccontextmanager
async def worker_of(settings: Settings, database: Database) -> AsyncIterator[None]:
    replayer = SandboxedReplayer(settings.builds)
    worker = Worker(database.app, replayer)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(60):
            await running
        replayer.close()


async def finished(store: Store, incident: Incident) -> dict[str, service.Run]:
    """The runs by build, once all of them have ended."""
    async with asyncio.timeout(100):
        while True:
            async with store.read() as session:
                runs = await service.runs_of(session, incident)
                if runs and all(run.run_state.finished for run in runs):
                    return {run.build: await service.get_run(session, run.id) for run in runs}
            await asyncio.sleep(0.05)


async def test_a_recorded_run_is_replayed_with_two_builds_and_read_side_by_side(
    person: Browser,
    store: Store,
    settings: Settings,
    database: Database,
    incident: Incident,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = f"/incidents/{incident.id}"
    page = Page(await person.get(home))
    assert "desk-v2" in page.text
    assert "a01_fraud_completed" not in page.text  # a Beam build cannot replay an event log
    asked = await person.post(f"{home}/replays", {"build": ["desk-v1", "desk-v2", "desk-v3"]})
    assert asked.status_code == 303
    async with worker_of(settings, database):
        runs = await finished(store, incident)
    assert {build: (run.state, run.outcome, run.error) for build, run in runs.items()} == {
        "desk-v1": ("done", "reproduced", None),
        "desk-v2": ("done", "diverged", None),
        "desk-v3": ("done", "irreproducible", None),
    }
    changed = Page(await person.get(f"{home}/runs/{runs['desk-v2'].number}"))
    for words in (
        "TOOL_CALL issue_refund", "arguments.cents", "5000", "answered from the record", "only recorded",
        "each whole request was held against", "came out as recorded",
    ):  # fmt: skip
        assert words in changed.text, words
    missed = Page(await person.get(f"{home}/runs/{runs['desk-v3'].number}")).text
    assert "[-strict.] [+generous.]" in missed
    assert "You work at a refund desk. Be generous." in missed
    numbers = ",".join(str(runs[name].number) for name in ("desk-v1", "desk-v2"))
    both = Page(await person.get(f"{home}/compare?runs={numbers}")).text
    assert "issue_refund" in both
    assert "desk-v2" in both
    told = json.loads((await person.get(f"/api/v1/replays/{runs['desk-v2'].id}")).text)
    assert told["verdict"]["verdict"] == "diverged"
    assert told["verdict"]["differences"][0]["label"] == "issue_refund"
    assert (await person.get(f"{home}/runs/{runs['desk-v2'].number}/ledger")).status_code == 200
    # The bundle gives the same verdict in a terminal: rows 17 and 20.
    bundle = settings.home / f"hindcast-{incident.id}.zip"
    bundle.write_bytes((await person.get(f"{home}/bundle.zip")).content)
    assert f"--bundle {bundle.name}" in changed.text
    words = ["flink", "replay", "--config", str(settings.source), "--bundle", str(bundle), "--format", "json"]
    code = await asyncio.to_thread(main, [*words, "--build", "desk-v2"])
    again = json.loads(capsys.readouterr().out)["inputs"][0]
    assert code == again["exit_code"] == 1
    assert (again["headline"], again["differences"]) == (told["verdict"]["headline"], told["verdict"]["differences"])


async def test_earlier_inputs_of_the_key_are_kept_and_fed(store: Store, incident: Incident) -> None:
    """A log of 0.3.1 does not say what memory a run began with; the inputs before it do."""
    async with store.read() as session:
        kept = await service.evidence_of(session, incident)
        files = await service.evidence_files(session, incident, [file.id for file in kept])
    for file in files:  # byte for byte, in the log's order
        assert file.data in example_log() or all(line in example_log() for line in file.data.splitlines())
        times = [json.loads(line)["timestamp"] for line in file.data.splitlines()]
        assert times == sorted(times)
    assert [file.source.get("leads_up_to") is not None for file in kept] == [False, True]
    assert kept[1].source["runs"] == 9 == files[1].data.count(b'"eventType":"_input_event","event"')
    assert incident.entity_key == b"ada"
    assert incident.attempt is not None
    assert incident.attempt["run"] == kept[1].source["leads_up_to"]
