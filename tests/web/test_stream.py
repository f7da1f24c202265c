"""Pages follow a run: each change is told, duplicates are harmless, the end ends it, no stream costs a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from app.incidents import service
from app.incidents.changes import Changes
from app.incidents.service import Run, Store
from app.settings import Settings
from app.web import stream
from app.web.app import create_app
from tests.golden.scenarios import scenario
from tests.waiting import PATIENCE_S, until_async
from tests.web.conftest import TOKEN, Browser
from tests.web.work import claim, work

D01 = "d01_intent_order"


async def queued(store: Store) -> Run:
    async with store.write() as session:
        incident = await service.import_evidence(session, scenario(D01).bundle(), who="ada")
        return await service.request_replay(session, incident, D01, who="ada", known=[D01])


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The console behind a real socket: only so do streams arrive piece by piece."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started or running.done()

    await until_async(started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


def http(base: str, **options: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S, **options)  # type: ignore[arg-type]


async def told(lines: AsyncIterator[str], wanted: str) -> str:
    """Wait for an event of a name; returns its data."""
    name = ""
    async for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        if line.startswith("data: ") and name == wanted:
            return line.removeprefix("data: ")
    raise AssertionError(f"the stream ended without {wanted!r}")


async def test_a_run_is_followed_to_its_end(settings: Settings, store: Store) -> None:
    run = await queued(store)
    path = f"/incidents/{run.incident_id}/runs/1/changes"
    async with served(create_app(settings)) as base, http(base) as client:
        async with client.stream("GET", path, params={"since": run.version}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-accel-buffering"] == "no"
            assert answer.headers["cache-control"] == "no-store"
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("retry:")
            working = asyncio.create_task(work(store, run.id))
            first = int(await told(lines, "change"))
            assert first > run.version
            await working
            last = int(await told(lines, "done"))
            assert last >= first
            assert [line async for line in lines if line] == []
        # complaints 40 and 41: whoever connects again, with whatever it last saw, is told how things stand, and to stop
        for headers in ({}, {"Last-Event-ID": str(run.version)}, {"Last-Event-ID": str(last)}, {"Last-Event-ID": "x"}):
            again = await client.get(path, params={"since": run.version}, headers=headers)
            assert f"event: done\nid: {last}" in again.text
            assert ("event: change" in again.text) == (headers.get("Last-Event-ID") != str(last))


async def test_an_incident_is_followed_until_all_its_runs_have_ended(settings: Settings, store: Store) -> None:
    run = await queued(store)
    path = f"/incidents/{run.incident_id}/changes"
    async with (
        served(create_app(settings)) as base,
        http(base) as client,
        client.stream("GET", path, params={"since": 1}) as answer,
    ):
        working = asyncio.create_task(work(store, run.id))
        await told(answer.aiter_lines(), "done")
        await working


# complaint 42
async def test_silence_is_filled_so_that_proxies_do_not_cut(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stream.HEARTBEAT_S <= 15
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.05)

    async def same() -> stream.Standing:
        return 1, False

    async with Changes(store.url) as changes:
        messages = stream.messages(changes, "run_x", 1, same)
        assert [await anext(messages) for _ in range(3)] == [
            "retry: 2000\n\n",
            ": nothing new\n\n",
            ": nothing new\n\n",
        ]
        await messages.aclose()  # type: ignore[attr-defined]
        assert changes.subscribers == 0


async def test_a_stream_does_not_outlive_its_welcome(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(stream, "LONGEST_S", 0.1)

    async def same() -> stream.Standing:
        return 1, False

    async with Changes(store.url) as changes:
        found = [message async for message in stream.messages(changes, "run_x", 1, same)]
    assert "event" not in "".join(found)


# complaint 43
async def test_fifty_open_streams_leave_the_pool_to_the_pages(settings: Settings, store: Store) -> None:
    run = await queued(store)
    await claim(store, run.id)
    small = Store(store.url, pool_size=5, max_overflow=0, pool_timeout_s=PATIENCE_S)
    path = f"/incidents/{run.incident_id}/runs/1"
    async with served(create_app(settings, small)) as base:
        limits = httpx.Limits(max_connections=200)
        async with http(base, limits=limits) as client, asyncio.TaskGroup() as group:
            opened = asyncio.Semaphore(0)
            over = asyncio.Event()

            async def listen() -> None:
                async with client.stream("GET", f"{path}/changes", params={"since": run.version + 1}) as answer:
                    assert answer.status_code == 200
                    opened.release()
                    await over.wait()

            for _ in range(50):
                group.create_task(listen())
            for _ in range(50):
                await asyncio.wait_for(opened.acquire(), PATIENCE_S)
            answers = await asyncio.gather(*(client.get(path) for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}
            over.set()
    await small.close()


async def test_a_stream_needs_the_token_like_everything(person: Browser, store: Store) -> None:
    run = await queued(store)
    path = f"/incidents/{run.incident_id}/runs/1/changes"
    assert (await person.http.get(path, headers={"Authorization": "Bearer x"})).status_code == 401
    assert (await person.get("/incidents/inc_x/changes")).status_code == 404
