"""From an imported event log to two builds side by side: opened, replayed by a worker, read on the pages."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from app.cli import main
from app.incidents import flink_runs, service
from app.incidents.audit_trail import AuditFilter, read_trail
from app.incidents.flink_opening import open_flink_incident
from app.incidents.flink_runs import RunFilter
from app.incidents.service import Incident, Store
from app.jobs.replayer import SandboxedReplayer
from app.jobs.worker import Worker
from app.settings import Settings, load
from tests.fixtures.flink import KEY_PATH, LOG, builds_of_the_desk, example_log
from tests.fixtures.postgres import Database
from tests.golden.scenarios import scenario
from tests.waiting import PATIENCE_S, until_async
from tests.web.conftest import TOKEN, Browser, configuration
from tests.web.html import Page


@pytest.fixture
def settings(flink_python: Path, tmp_path: Path, database: Database) -> Settings:
    file = tmp_path / "hindcast.toml"
    file.write_text(builds_of_the_desk(flink_python) + "\n" + configuration(("a01_fraud_completed",)))
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
        async with asyncio.timeout(PATIENCE_S):
            await running
        replayer.close()


async def finished(store: Store, incident: Incident) -> dict[str, service.Run]:
    """The runs by build, once all of them have ended."""

    async def look() -> dict[str, service.Run] | None:
        async with store.read() as session:
            runs = await service.runs_of(session, incident)
            if not all(run.run_state.finished for run in runs):
                return None
            return {run.build: await service.get_run(session, run.id) for run in runs}

    found = await until_async(look, pause_s=0.05)
    assert found is not None
    return found


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


async def test_a_what_if_is_asked_for_in_so_many_words_and_called_one_everywhere(
    person: Browser,
    api: httpx.AsyncClient,
    stranger: httpx.AsyncClient,
    store: Store,
    settings: Settings,
    database: Database,
    incident: Incident,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = f"/incidents/{incident.id}"
    offered = Page(await person.get(home))
    for words in (
        "runs for real model connection desk_service: asked where the record has no answer",
        'only recorded tool issue_refund: answered from the record, else with "accepted"',
        "tool look_up_order: answered from the record, else with a note that it was not executed",
        "No model connection may be asked", "Workers have no network",
    ):  # fmt: skip
        assert words in offered.text, words
    assert re.search(r'name="build" value="desk-v3" checked', offered.html)  # the one that may ask a model
    form = {"form": "what-if", "build": "desk-v3"}
    unsaid = await person.post(f"{home}/replays", dict(form))
    assert unsaid.status_code == 422
    assert "Nobody said that it is a what-if" in Page(unsaid).text
    async with store.read() as session:
        assert await service.runs_of(session, incident) == []
    asked = await person.post(f"{home}/replays", form | {"what_if": "yes"})
    assert (asked.status_code, asked.headers["location"]) == (303, f"{home}/runs/1")
    assert "what-if: models are asked anew" in Page(await person.get(f"{home}/runs/1")).text
    by_script = await api.post(f"/api/v1{home}/replays", json={"builds": ["desk-v3", "desk-v1"], "what_if": True})
    assert [one["kind"] for one in by_script.json()["replays"]] == ["what-if"] * 2
    assert (await api.post(f"/api/v1{home}/replays", json={"build": "desk-v1"})).json()["kind"] == "replay"
    async with worker_of(settings, database):
        await finished(store, incident)
    told = [(await api.get(f"/api/v1/replays/{run['id']}")).json() for run in by_script.json()["replays"]]
    assert [(one["build"], one["kind"], one["outcome"], one["exit_code"], one["decision"]) for one in told] == [
        ("desk-v1", "what-if", "what-if", 4, None), ("desk-v3", "what-if", "what-if", 4, None),
    ]  # fmt: skip
    assert told[0]["verdict"]["served"]["executed"] == {}
    tried = told[1]["verdict"]
    assert (tried["served"]["mode"], tried["served"]["executed"]) == ("what-if", {"model desk_service": 2})
    assert tried["reason"]["code"] == "what_if"
    run = Page(await person.get(f"{home}/runs/1")).text
    for words in (
        "▷ what-if", "Nothing was sent but what the build allows: model desk_service (2 ×).", "2 model requests were",
        "What it would have done", "--what-if", "asked anew: nobody recorded this answer",
    ):  # fmt: skip
        assert words in run, words
    assert "a recorded answer of the provider" not in run
    assert "allow-network" not in run
    assert "run 1 what-if" in Page(await person.get(home)).text
    compared = Page(await person.get(f"{home}/compare?runs=1,4")).text
    assert "run 1 of desk-v3 what-if" in compared
    assert "run 4 of desk-v1 what-if" not in compared
    made = await api.post(f"/api/v1{home}/shares", json={"expires_in_s": 3600})
    link = "/s/" + made.json()["url"].partition("/s/")[2]
    assert "run 1 what-if" in Page(await stranger.get(link)).text
    assert "what-if: this has not happened" in Page(await stranger.get(f"{link}/runs/1")).text
    # Its bundle, and the command that the page spells, come to the same in a terminal.
    bundle = settings.home / f"hindcast-{incident.id}.zip"
    bundle.write_bytes((await person.get(f"{home}/bundle.zip")).content)
    words = ["flink", "replay", "--config", str(settings.source), "--bundle", str(bundle), "--format", "json"]
    assert await asyncio.to_thread(main, [*words, "--build", "desk-v3", "--what-if"]) == 4
    again = json.loads(capsys.readouterr().out)["inputs"][0]
    assert again["headline"] == tried["headline"]
    async with store.read() as session:
        trail = await read_trail(session, AuditFilter(what="run.requested"))
    assert [entry.detail.get("kind") for entry in trail.entries] == [None, "what-if", "what-if", "what-if"]


async def test_a_recorded_run_leads_to_its_what_if(person: Browser, store: Store, incident: Incident) -> None:
    async with store.read() as session:
        runs = await flink_runs.list_runs(session, RunFilter(key="ada"))
    run = f"/flink/runs/{runs.items[0].id}"
    assert "What if…" in Page(await person.get(run)).text
    opened = await person.post(f"{run}/incidents", {"then": "what-if"})
    home, _, place = opened.headers["location"].partition("#")
    assert place == "what-if"
    assert place in Page(await person.get(home)).ids


async def test_only_a_recorded_run_is_asked_anew(api: httpx.AsyncClient, incident: Incident) -> None:
    files = [(str(file.role), (file.name, file.data)) for file in scenario("a01_fraud_completed").files("bundle")]
    other = (await api.post("/api/v1/incidents/import", files=files)).json()["id"]
    asked = {"build": "a01_fraud_completed", "what_if": True}
    answer = await api.post(f"/api/v1/incidents/{other}/replays", json=asked)
    assert (answer.status_code, "only for a recorded run" in answer.text) == (422, True)
    decided = {"build": "desk-v3", "what_if": True, "decision": {"approve": "x"}}
    answer = await api.post(f"/api/v1/incidents/{incident.id}/replays", json=decided)
    assert (answer.status_code, "holds no intent" in answer.text) == (422, True)
    wrong = await api.post(f"/api/v1/incidents/{incident.id}/replays", json={"build": "desk-v3", "what_if": "yes"})
    assert wrong.status_code == 422


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
