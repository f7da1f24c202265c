"""The page of workers and queues, what a waiting run says, a full queue, and streams that cost no connection."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import httpx
import pytest

from app.incidents import pool, service
from app.incidents.service import Run, Store
from app.settings import Settings
from app.web.app import create_app
from tests.golden.scenarios import scenario
from tests.waiting import PATIENCE_S
from tests.web.conftest import Browser
from tests.web.test_stream import http, served, told
from tests.web.work import work

A01, D01 = "a01_fraud_completed", "d01_intent_order"


async def queued(store: Store, build: str = A01) -> Run:
    async with store.write() as session:
        incident = await service.import_evidence(session, scenario(A01).bundle(), who="ada")
        return await service.request_replay(session, incident, build, who="ada", known=[A01, D01])


async def appear(store: Store, ident: str, **told: object) -> None:
    """A worker that shows signs of life for the next hour, however long the test takes."""
    values = {"name": f"host:{ident}", "version": "1", "builds": [A01], "jobs": 2, "running": 0, "draining": False}
    async with store.write() as session:
        await pool.beat(session, ident, **values | told)
        later = pool.text("UPDATE workers SET beat_at = beat_at + interval '1 hour' WHERE id = :id")
        await session.execute(later, {"id": ident})


async def test_a_waiting_run_says_what_it_waits_for(person: Browser, api: httpx.AsyncClient, store: Store) -> None:
    run, other = await queued(store), await queued(store, D01)

    async def said(run: Run) -> str:
        page = (await person.get(f"/incidents/{run.incident_id}/runs/1")).text
        words: str = (await api.get(f"/api/v1/replays/{run.id}")).json()["waits_for"]
        assert words in page
        return words

    assert await said(run) == f"No worker is running. Start one: hindcast worker --builds {A01}"
    await appear(store, "1", running=2)
    assert await said(run) == "Every worker of this build is busy."
    assert f"No running worker serves the build {D01}; those that run serve {A01}." in await said(other)
    later = await queued(store)
    assert await said(later) == "1 run of this build wait before it."
    await appear(store, "2", builds=None)
    assert await said(other) == "A worker is about to take it."
    await work(store, run.id)
    assert (await api.get(f"/api/v1/replays/{run.id}")).json()["waits_for"] is None


async def test_the_page_shows_every_worker_and_queue(person: Browser, api: httpx.AsyncClient, store: Store) -> None:
    page = (await person.get("/workers")).text
    assert "No worker is running." in page
    await queued(store, D01)
    await appear(store, "1", running=1)
    await appear(store, "2", draining=True, builds=[D01])
    async with store.write() as session:
        await pool.beat(session, "3", name="old:1", version="0", builds=[], jobs=1, running=0, draining=False)
        await session.execute(pool.text("UPDATE workers SET beat_at = beat_at - interval '1 minute' WHERE id = '3'"))
    found = (await api.get("/api/v1/workers")).json()
    assert [(one["name"], one["state"], one["running"]) for one in found["workers"]] == [
        ("host:1", "idle", 1), ("host:2", "draining", 0), ("old:1", "gone", 0),
    ]  # fmt: skip
    queues = {one["build"]: one for one in found["queues"]}
    assert (queues[D01]["waiting"], queues[D01]["workers"], queues[A01]["capacity"]) == (1, 0, 2)
    assert (found["waiting"], found["max_waiting"]) == (1, 1000)
    page = (await person.get("/workers")).text
    assert f"Runs wait for builds that no running worker serves:</span> {D01}." in page
    assert "host:2" in page
    async with store.write() as session:
        await session.execute(pool.text("UPDATE workers SET beat_at = beat_at - interval '1 hour' WHERE id = '3'"))
        await pool.forget_gone(session)
        await pool.leave(session, "2")
    assert [one["name"] for one in (await api.get("/api/v1/workers")).json()["workers"]] == ["host:1"]


@pytest.fixture
def settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    return settings.with_console(max_waiting=getattr(request, "param", settings.console.max_waiting))


@pytest.mark.parametrize("settings", [2], indirect=True)
async def test_a_full_queue_takes_no_more_and_says_what_to_do(
    person: Browser, api: httpx.AsyncClient, store: Store
) -> None:
    first, second = await queued(store), await queued(store)
    refused = await api.post(f"/api/v1/incidents/{first.incident_id}/replays", json={"build": A01})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "15")
    assert refused.json()["what"] == "2 replays wait already; no more are taken until some of them have begun."
    page = await person.post(f"/incidents/{first.incident_id}/replays", {"build": A01})
    assert (page.status_code, "start more workers" in page.text) == (503, True)
    await appear(store, "1")
    assert "The queue is full:" in (await person.get("/workers")).text
    async with store.write() as session:
        await service.cancel_run(session, second.id, who="ada")
    taken = await api.post(f"/api/v1/incidents/{first.incident_id}/replays", json={"build": A01})
    assert taken.status_code == 202
    again = await person.post(f"/incidents/{second.incident_id}/runs/1/retry")
    assert again.status_code == 503
    async with store.read() as session:
        assert (await service.get_run(session, second.id)).state == "cancelled"


async def test_fifty_streams_and_pages_live_on_five_connections(settings: Settings, store: Store) -> None:  # row 43
    runs = [await queued(store) for _ in range(5)]
    small = Store(settings.database_url, pool_size=5, max_overflow=0, pool_timeout_s=PATIENCE_S)
    app = create_app(settings, small)
    limits = httpx.Limits(max_connections=200)
    async with served(app) as base, http(base, limits=limits) as client, AsyncExitStack() as stack:
        streams = []
        for number in range(50):
            run = runs[number % 5]
            path = f"/incidents/{run.incident_id}/runs/1/changes"
            answer = await stack.enter_async_context(client.stream("GET", path, params={"since": run.version}))
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("retry:")  # it follows the run before it says so
            streams.append(lines)
        assert app.state.changes.subscribers == 50
        paths = [path for run in runs for path in ("/", f"/incidents/{run.incident_id}", "/workers", "/activations")]
        pages = await asyncio.gather(*(client.get(path) for path in paths * 3))
        assert {page.status_code for page in pages} == {200}
        ends = [asyncio.create_task(told(lines, "done")) for lines in streams]
        for run in runs:
            await work(store, run.id)
        async with asyncio.timeout(PATIENCE_S):
            assert len(await asyncio.gather(*ends)) == 50
    await small.close()
