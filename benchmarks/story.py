"""What explaining a run costs: its ledger beside none, and the pages that read it over a database of their own."""

from __future__ import annotations

import asyncio
import gzip
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx

from app.demo.postgres import Urls
from app.incidents import service
from app.incidents.service import LEDGER_BYTES, Incident, Report, Store
from app.replay import compare
from app.replay.engine import Options, replay
from app.replay.events import Event
from app.replay.inprocess import InProcessRunner
from app.replay.preview import preview
from app.replay.verdict import FieldPair, FieldState, LedgerEntry, Outcome, RowState, Verdict
from app.replay.verdict import Row as TimelineRow
from app.settings import load
from app.web.app import create_app
from benchmarks.intake import _database
from benchmarks.measure import Row, repeat
from tests.golden.scenarios import scenario

LONG: Final = "a30_exactly_64_calls"
LEDGER_GOAL: Final = 1.30
PAGE_GOAL_MS: Final = 150
PAGE_GOAL_KIB: Final = 40
PAGE_GOAL_NODES: Final = 1_500
EVENTS: Final = 10_000
TOKEN: Final = "a-token-for-benchmarks"


def rows() -> Iterator[Row]:
    """Every figure of this file."""
    yield ledger()
    yield plan()
    with _database() as urls, TemporaryDirectory() as folder:
        yield from asyncio.run(_pages(urls, Path(folder)))


def ledger() -> Row:
    """The same replay with a ledger and without, one after the other, so that both see the same machine."""
    one = scenario(LONG)
    files, code, runner = one.bundle(), one.code(), InProcessRunner()
    kept = Options(ledger_bytes=LEDGER_BYTES)
    for _ in range(30):
        replay(files, runner, code)
        replay(files, runner, code, options=kept)
    ratios, off, on = [], [], []
    for _ in range(300):
        without = _cpu(lambda: replay(files, runner, code))
        with_one = _cpu(lambda: replay(files, runner, code, options=kept))
        off.append(without)
        on.append(with_one)
        ratios.append(with_one / without)
    runner.close()
    ratio = statistics.median(ratios)
    return Row(
        f"a ledger beside none, {LONG.split('_')[0]} in process",
        f"×{ratio:.2f}",
        f"≤ ×{LEDGER_GOAL:.2f}",
        ratio <= LEDGER_GOAL,
        f"{statistics.median(on) * 1000:.2f} ms beside {statistics.median(off) * 1000:.2f} ms of processor time",
    )


def _cpu(action: Callable[[], object]) -> float:
    begun = time.process_time()
    action()
    return time.process_time() - begun


def plan() -> Row:
    """The plan that a page shows before a run, from the evidence of a run with two caches and a suspension."""
    files = scenario("m09_union_of_two_caches").full()
    timing = repeat(lambda: preview(files), runs=50)
    return Row("the plan before a run, m09 with all its evidence", str(timing), "-", None)


# Pages ---------------------------------------------------------------------------------------------------------------


async def _pages(urls: Urls, folder: Path) -> list[Row]:
    store = Store(urls.app)
    environment = {"HINDCAST_TOKEN": TOKEN, "HINDCAST_DATABASE_URL": urls.app, "HINDCAST_HOME": str(folder)}
    (folder / "hindcast.toml").write_text("")
    app = create_app(load(folder / "hindcast.toml", environment), store)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            incident = await _import(store)
            await _record(store, incident, _timeline())
            base = f"/incidents/{incident.id}/runs/1"
            found = [
                await _page(client, base, f"the first window of {EVENTS:,} events"),
                await _page(client, f"{base}?at=5001", "a window in their middle, around a difference"),
                await _page(client, f"{base}?folds=open", "the first window, nothing folded"),
                await _page(client, f"{base}?folds=open&end=5001", "a window read backwards, nothing folded"),
                await _page(client, f"{base}?q=needle", "a search of all of them, and of the ledger, for a word"),
                await _page(client, f"{base}/events/4213", "one event opened, with its part of a ledger of 8 MiB"),
            ]
    await store.close()
    return found


async def _import(store: Store) -> Incident:
    async with store.write() as session:
        return await service.import_evidence(session, scenario(LONG).bundle(), who="bench")


async def _record(store: Store, incident: Incident, report: Report) -> None:
    async with store.write() as session:
        run = await service.request_replay(session, incident, "bench", who="bench", known=["bench"])
    async with store.write() as session:
        await service.claim_run(session, run.id, worker="bench", lease_s=60)
        assert await service.finish_run(session, run.id, 1, report)


def _timeline() -> Report:
    """A long run of which every thousandth event differs, with a ledger as large as one may be."""
    rows = tuple(_row(n, n % 1_000 == 1) for n in range(EVENTS))
    said = "x" * (LEDGER_BYTES // 1_000 - 200)
    entries = tuple(
        LedgerEntry(n * 10, "tool", {"tool": "look", "arguments": "{}", "value": said, "outcome": "executed"})
        for n in range(1_000)
    )
    verdict = Verdict(Outcome.DIVERGED, "made up", counts=compare.counts(rows), first_divergence=1)
    return replace(Report(verdict, rows), ledger=entries)


def _row(n: int, differs: bool) -> TimelineRow:
    attributes = {"gen_ai.request.model": "m-1", "gen_ai.usage.input_tokens": str(n), "beam_agents.cache_hit": "true"}
    event = Event("LLM_CALL" if n % 3 else "TOOL_CALL", "m-1", "", n, f"{n:016x}", n, attributes)
    fields = (FieldPair("args.amount", "4900", "49", FieldState.CHANGED),) if differs else ()
    return TimelineRow(n, RowState.CHANGED if differs else RowState.EQUAL, compare.TRACE, event, event, fields)


async def _page(client: httpx.AsyncClient, path: str, what: str) -> Row:
    taken, worked = [], []
    for _ in range(25):
        begun, before = time.perf_counter(), time.process_time()
        answer = await client.get(path)
        taken.append(time.perf_counter() - begun)
        worked.append(time.process_time() - before)
        assert answer.status_code == 200, answer.text[:300]
    elements = len(re.findall(r"<[a-z]", answer.text))
    size = len(gzip.compress(answer.content)) / 1024
    median = statistics.median(taken) * 1000
    held = median <= PAGE_GOAL_MS and size <= PAGE_GOAL_KIB and elements <= PAGE_GOAL_NODES
    goal = f"≤ {PAGE_GOAL_MS} ms, ≤ {PAGE_GOAL_KIB} KiB, ≤ {PAGE_GOAL_NODES} elements"
    work = statistics.median(worked) * 1000  # what the console itself computes, whoever else is on the machine
    figure = f"{median:.0f} ms (best {min(taken) * 1000:.0f}; {work:.0f} of the console's processor)"
    figure += f", {size:.1f} KiB compressed, {elements} elements"
    # Words are looked for in everything that the run holds; no figure is promised for that.
    return Row(what, figure, goal, held) if "search" not in what else Row(what, figure, "-", None)
