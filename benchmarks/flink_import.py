"""Event logs of Flink Agents: how fast lines are read, counted and stored, in how much memory; pages of their runs."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from app.demo.postgres import APPLICATION, EmbeddedPostgres, Urls
from app.flink.logs import runs_of
from app.flink.model import Placed
from app.flink.placing import Placer
from app.flink.records import Record, read_line
from app.incidents import schema
from app.incidents.flink_runs import RunFilter, get_flink_run, list_runs
from app.incidents.service import Store
from benchmarks.measure import Row, largest_process_mib

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "tests" / "flink" / "data" / "eventlog-head-failed-tool.jsonl"
COPIES: Final = 600  # of a log of 66 records in three runs
COUNTED_GOAL: Final = 10_000
STORED_GOAL: Final = 5_000
MEMORY_GOAL_MIB: Final = 300
PAGE_GOAL_MS: Final = 100
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def rows() -> Iterator[Row]:
    """Every figure of this file."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "big.log"
        records = _make(log, COPIES)
        yield from reading(log, records)
        yield from counting(log, records)
        with _database() as urls:
            yield from storing(log, records, urls)
            yield from asyncio.run(pages(urls))


def reading(log: Path, records: int) -> Iterator[Row]:
    """Lines to runs, in one process and in memory: what parsing and assembling cost."""
    lines = log.read_bytes().splitlines()[: min(records, 40_000)]
    begun = time.process_time()
    read = [record for line in lines if isinstance(record := read_line(line), Record)]
    parsed = time.process_time() - begun
    placer = Placer()
    begun = time.process_time()
    placed: list[Placed] = [placer.place(record) for record in read]
    runs_of(placed)
    made = time.process_time() - begun
    yield Row(
        f"a line of {log.stat().st_size / records:.0f} bytes to a record; records to runs",
        f"{parsed / len(lines) * 1e6:.1f} µs and {made / len(lines) * 1e6:.1f} µs of processor time",
        "-",
        None,
    )


def counting(log: Path, records: int) -> Iterator[Row]:
    """`hindcast flink import --dry-run`, as a process of its own."""
    argv = [sys.executable, "-m", "app.cli", "flink", "import", "--dry-run", str(log)]
    cpu, wall = _run(argv, {})
    size = log.stat().st_size / 2**20
    peak = largest_process_mib(argv, folder=ROOT, expect=0)
    yield Row(
        f"dry run over {size:.0f} MiB, {records:,} records", f"{records / cpu:,.0f} records a second of processor time",
        f"≥ {COUNTED_GOAL:,}", records / cpu >= COUNTED_GOAL, f"by the clock {records / wall:,.0f}/s",
    )  # fmt: skip
    held = peak <= MEMORY_GOAL_MIB
    yield Row("its memory", f"{peak:.0f} MiB", f"≤ {MEMORY_GOAL_MIB} MiB", held, "lines wait on disk, run by run")


def storing(log: Path, records: int, urls: Urls) -> Iterator[Row]:
    """`hindcast flink import`, as a process of its own, into an empty database; then once more."""
    argv = [sys.executable, "-m", "app.cli", "flink", "import", str(log)]
    environment = {"HINDCAST_DATABASE_URL": urls.app, "HINDCAST_HOME": str(log.parent)}
    cpu, wall = _run(argv, environment)
    again, _ = _run(argv, environment)
    yield Row(
        f"import of {records:,} records into PostgreSQL", f"{records / cpu:,.0f} records a second of processor time",
        f"≥ {STORED_GOAL:,}", records / cpu >= STORED_GOAL,
        f"without the server's; by the clock {records / wall:,.0f}/s; the same log again {again:.1f} s",
    )  # fmt: skip


def _run(argv: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of processor time and of the clock that a command takes."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, env=os.environ | environment)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ended - begun


async def pages(urls: Urls) -> Iterator[Row]:
    """Pages over what was imported."""
    store = Store(urls.app)
    found = []
    for what, chosen in (
        ("newest runs", RunFilter()),
        ("runs of a key", RunFilter(key="c17")),
        ("runs with a problem that say a phrase", RunFilter(category="tool_call_failed", text='"payment gateway"')),
    ):
        found.append((what, [await _timed(store, chosen) for _ in range(9)]))
    async with store.read() as session:
        run = (await list_runs(session, RunFilter(), limit=1)).items[0].id
        taken = []
        for _ in range(9):
            begun = time.perf_counter()
            await get_flink_run(session, run)
            taken.append((time.perf_counter() - begun) * 1000)
        whole = sorted(taken)[len(taken) // 2]
    await store.close()
    made = []
    for what, times in found:
        median = sorted(times)[len(times) // 2]
        goal = f"≤ {PAGE_GOAL_MS} ms"
        made.append(Row(f"{what}, 50 of {COPIES * 3:,} runs", f"{median:.0f} ms", goal, median <= PAGE_GOAL_MS))
    made.append(Row("a run whole", f"{whole:.0f} ms", f"≤ {PAGE_GOAL_MS} ms", whole <= PAGE_GOAL_MS))
    return iter(made)


async def _timed(store: Store, chosen: RunFilter) -> float:
    async with store.read() as session:
        begun = time.perf_counter()
        await list_runs(session, chosen)
        return (time.perf_counter() - begun) * 1000


def _make(log: Path, copies: int) -> int:
    """A large log out of a real one: every copy with ids, keys and times of its own."""
    text = SOURCE.read_text()
    known = sorted(set(_ID.findall(text)))
    random = Random(1)
    with log.open("w") as file:
        for number in range(copies):
            ids = {old: str(uuid.UUID(int=random.getrandbits(128), version=4)) for old in known}
            made = _ID.sub(lambda found, ids=ids: ids[found[0]], text)  # type: ignore[misc]
            clock = f"T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}."
            made = re.sub(r"T19:53:16\.", clock, made).replace('"c1"', f'"c{number % 500}"')
            file.write(made)
    return text.count("\n") * copies


@contextmanager
def _database() -> Iterator[Urls]:
    home = Path(tempfile.mkdtemp(prefix="hindcast-bench-"))
    home.chmod(0o711)
    server = EmbeddedPostgres(home)
    try:
        urls = server.start()
        schema.upgrade(urls.owner, application=APPLICATION)
        yield urls
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
