"""The pool from outside: from a click in a browser to the verdict on the page, how long runs wait, what workers add.

Console and workers are the processes that they are in production, over an embedded PostgreSQL, all on this machine.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx

from app.demo.postgres import Urls
from app.incidents import pool, service
from app.incidents.service import Run, Store
from benchmarks.intake import _database
from benchmarks.measure import Row
from tests.conftest import CHROMIUM
from tests.faults.fleet import BUILDS, SCENARIO, Fleet, descendants, fleet_at
from tests.golden.scenarios import scenario

TOKEN: Final = "a-token-for-benchmarks"
CLICKS: Final = 30
P50_GOAL_MS: Final = 300
P95_GOAL_MS: Final = 1000
QUEUE_GOAL_MS: Final = 20
CANCEL_GOAL_MS: Final = 1000
RUNS: Final = 60


def rows() -> Iterator[Row]:
    """Every figure of this file."""
    home = Path(tempfile.mkdtemp(prefix="hindcast-bench-pool-"))
    home.chmod(0o711)
    try:
        with _database() as urls, fleet_at(home / "fleet", urls.app) as fleet:
            yield from _measured(urls, fleet)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _measured(urls: Urls, fleet: Fleet) -> Iterator[Row]:
    console = fleet.start("serve", "--port", "0", "--log-level", "warning", HINDCAST_TOKEN=TOKEN)
    worker = fleet.start("worker", "--log-level", "warning", "--jobs", "2")
    assert console.stdout is not None
    entrance = console.stdout.readline().strip()
    base = entrance.partition("/enter")[0]
    with httpx.Client(base_url=base, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as api:
        incident = _imported(api)
        for _ in range(5):
            _replayed(api, incident)
        waits = sorted(_waited(_replayed(api, incident)) for _ in range(CLICKS))
        middle = statistics.median(waits)
        yield Row(
            "queue latency, asked for to taken, one at a time",
            f"p50 {middle:.0f} ms, p95 {_at(waits, 0.95):.0f} ms",
            f"p50 ≤ {QUEUE_GOAL_MS} ms",
            middle <= QUEUE_GOAL_MS,
        )
        if CHROMIUM is not None:
            yield from _clicks(api, entrance, incident)
        yield _cancelled(api, worker.pid, incident)
    yield from asyncio.run(_growth(urls.app, fleet, worker))


def _imported(api: httpx.Client) -> str:
    files = [(str(file.role), (file.name, file.data)) for file in scenario(SCENARIO).bundle()]
    answer = api.post("/api/v1/incidents/import", files=files)
    answer.raise_for_status()
    return str(answer.json()["id"])


def _replayed(api: httpx.Client, incident: str) -> dict[str, Any]:
    asked = api.post(f"/api/v1/incidents/{incident}/replays", json={"build": "swift"}).json()
    while True:
        found: dict[str, Any] = api.get(f"/api/v1/replays/{asked['id']}").json()
        if found["state"] not in ("queued", "running"):
            assert found["outcome"] == "reproduced", found
            return found
        time.sleep(0.01)


def _waited(run: dict[str, Any]) -> float:
    """Milliseconds from asking to taking, by the database's clock."""
    created, started = (datetime.fromisoformat(run[name]) for name in ("created_at", "started_at"))
    return (started - created).total_seconds() * 1000


# Notes when the browser heard of a click, and when a frame was drawn that shows a verdict; epoch milliseconds, as all
# marks here are. A page that is loaded anew forgets, so the click is kept where it does not.
_WATCH: Final = """(() => {
    const now = () => performance.timeOrigin + performance.now();
    addEventListener("click", () => {
        window.shown = 0;
        delete document.documentElement.dataset.shown;
        sessionStorage.setItem("clicked", now());
    }, true);
    window.shown = 0;
    new MutationObserver(() => {
        if (window.shown || !sessionStorage.getItem("clicked") || !document.getElementById("verdict")) return;
        window.shown = -1;
        requestAnimationFrame(() => {
            const frame = new MessageChannel();
            frame.port1.onmessage = () => { window.shown = now(); document.documentElement.dataset.shown = ""; };
            frame.port2.postMessage(null);
        });
    }).observe(document, { childList: true, subtree: true });
})()"""
_MARKS: Final = """() => {
    const answers = performance.getEntriesByType("resource").filter((one) => one.initiatorType === "xmlhttprequest");
    const answer = answers.at(-1) ?? performance.getEntriesByType("navigation")[0];
    const clicked = Number(sessionStorage.getItem("clicked"));
    sessionStorage.removeItem("clicked");
    return [clicked, performance.timeOrigin + answer.responseEnd, window.shown];
}"""
_PARTS: Final = ("asked for", "taken", "verdict stored", "answered", "drawn")


def _clicks(api: httpx.Client, entrance: str, incident: str) -> Iterator[Row]:
    """Press Replay in a real browser, and wait until the page shows the verdict; the first few do not count."""
    from playwright.sync_api import sync_playwright

    taken, marks = [], []
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_page()
        page.add_init_script(_WATCH)
        page.goto(entrance)
        for _ in range(CLICKS + 5):
            page.goto(f"{api.base_url}/incidents/{incident}")
            for box in page.locator('input[name="build"]').all():
                box.set_checked(box.get_attribute("value") == "swift")
            button = page.get_by_role("button", name="Replay", exact=True).first
            begun = time.time() * 1000
            button.click(no_wait_after=True)
            page.wait_for_selector("html[data-shown]", state="attached", timeout=60_000)
            clicked, answered, shown = page.evaluate(_MARKS)
            taken.append(shown - begun)
            marks.append(_between(api, page.url.rpartition("/")[2], incident, (clicked, answered, shown)))
        browser.close()
    taken = sorted(taken[5:])
    middle, late = statistics.median(taken), _at(taken, 0.95)
    yield Row(
        "click to verdict on the page, in Chromium, warm",
        f"p50 {middle:.0f} ms, p95 {late:.0f} ms ({len(taken)} clicks)",
        f"p50 ≤ {P50_GOAL_MS} ms, p95 ≤ {P95_GOAL_MS / 1000:.1f} s",
        middle <= P50_GOAL_MS and late <= P95_GOAL_MS,
    )
    steps = list(zip(*marks[5:], strict=True))
    whole = sorted(map(sum, marks[5:]))
    parts = ", ".join(f"{name} {statistics.median(step):.0f}" for name, step in zip(_PARTS, steps, strict=True))
    yield Row(
        "of that, from the click as the browser hears it to the frame that shows the verdict",
        f"p50 {statistics.median(whole):.0f} ms, p95 {_at(whole, 0.95):.0f} ms",
        "–",
        None,
        f"p50 of each step, ms: {parts}",
    )


def _between(api: httpx.Client, number: str, incident: str, marks: Sequence[float]) -> list[float]:
    """Milliseconds of each of `_PARTS` of one click; the run's own times are the database's, on the same machine."""
    clicked, answered, shown = marks
    runs = api.get(f"/api/v1/incidents/{incident}").json()["replays"]
    run = next(run for run in runs if run["number"] == int(number))
    stored = [
        datetime.fromisoformat(run[f"{name}_at"]).timestamp() * 1000 for name in ("created", "started", "finished")
    ]
    times = [clicked, *stored, answered, shown]
    return [later - earlier for earlier, later in pairwise(times)]


def _cancelled(api: httpx.Client, worker: int, incident: str) -> Row:
    """Cancel a run that would wait for ever, and wait until its process is gone."""
    idle = descendants(worker)
    taken = []
    for _ in range(7):
        asked = api.post(f"/api/v1/incidents/{incident}/replays", json={"build": "patient"}).json()
        deadline = time.monotonic() + 60
        while not (made := descendants(worker) - idle) or _state(api, asked["id"]) != "running":
            assert time.monotonic() < deadline, "the run does not begin"
            time.sleep(0.02)
        time.sleep(0.3)
        made = descendants(worker) - idle
        number = api.get(f"/api/v1/replays/{asked['id']}").json()["number"]
        begun = time.perf_counter()
        with httpx.Client(base_url=api.base_url, headers=dict(api.headers), timeout=60) as button:
            button.post(f"/incidents/{incident}/runs/{number}/cancel")
        while descendants(worker) & made:
            time.sleep(0.002)
        taken.append((time.perf_counter() - begun) * 1000)
    return Row(
        "cancel, from the button to the end of the run's process",
        f"median {statistics.median(taken):.0f} ms, longest {max(taken):.0f} ms",
        f"≤ {CANCEL_GOAL_MS / 1000:.0f} s",
        max(taken) <= CANCEL_GOAL_MS,
    )


def _state(api: httpx.Client, run: str) -> str:
    return str(api.get(f"/api/v1/replays/{run}").json()["state"])


async def _growth(url: str, fleet: Fleet, worker: subprocess.Popen[str]) -> list[Row]:
    """How many runs a second one worker ends that works on one at a time, and how many two such workers."""
    worker.terminate()
    await asyncio.to_thread(worker.wait)
    store = Store(url)
    rates = []
    for count in (1, 2):
        workers = [fleet.start("worker", "--log-level", "warning", "--jobs", "1") for _ in range(count)]
        await _alive(store, count)
        await _ended(store, await _asked(store, 10))
        runs = await _asked(store, RUNS)
        begun = time.perf_counter()
        await _ended(store, runs)
        rates.append(RUNS / (time.perf_counter() - begun))
        for one in workers:
            one.terminate()
            await asyncio.to_thread(one.wait)
    await store.close()
    growth = rates[1] / rates[0]
    return [
        Row("runs a second, one worker with one job, verdicts stored", f"{rates[0]:.0f}/s", "–", None),
        Row("two such workers on two cores", f"{rates[1]:.0f}/s", "about ×2 on idle cores", None, f"×{growth:.2f}"),
    ]


async def _alive(store: Store, count: int) -> None:
    while True:
        async with store.read() as session:
            if len((await pool.pool_status(session)).alive) == count:
                return
        await asyncio.sleep(0.05)


async def _asked(store: Store, count: int) -> Sequence[Run]:
    async with store.write() as session:
        incident = await service.import_evidence(session, scenario(SCENARIO).bundle(), who="bench")
        return [
            await service.request_replay(session, incident, "swift", who="bench", known=BUILDS) for _ in range(count)
        ]


async def _ended(store: Store, runs: Sequence[Run]) -> None:
    while True:
        async with store.read() as session:
            incident = await service.get_incident(session, runs[0].incident_id)
            states = [run.state for run in await service.runs_of(session, incident)]
        if all(state == "done" for state in states):
            return
        assert not set(states) - {"queued", "running", "done"}, states
        await asyncio.sleep(0.02)


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
