"""The sandbox: how soon a new one gives its first result, and what one confined run costs once it is warm."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.replay.engine import replay
from app.replay.rerun_pb2 import RerunRequest
from app.sandbox.model import Ending, Finished
from app.sandbox.runner import Sandbox
from benchmarks.measure import Row, repeat
from tests.golden.scenarios import scenario

SHORT: Final = "a01_fraud_completed"
COLD_GOAL_S: Final = 0.25
WARM_GOAL_MS: Final = 5.0
RATE_GOAL: Final = 100.0
SIZE_GOAL_MIB: Final = 60.0


def rows() -> Iterator[Row]:
    """Every figure of this file, for each tier that this machine grants."""
    request = _request(SHORT)
    for namespaces in (True, False):
        with Sandbox(namespaces=namespaces) as sandbox:
            first = sandbox.run(request)
            assert first.ending is Ending.FINISHED, first
            assert first.confinement is not None
            tier = first.confinement.tier
            if namespaces and tier != "namespaces":
                continue
            yield _cold(request, tier, namespaces=namespaces)
            yield from _warm(sandbox, request, tier)


def _request(name: str) -> RerunRequest:
    """The request that a verdict on this scenario asks for."""
    asked: list[RerunRequest] = []

    class Listening(Sandbox):
        def run(self, request: RerunRequest, *args: object, **more: object) -> Finished:  # type: ignore[override]
            asked.append(request)
            return super().run(request)

    one = scenario(name)
    with Listening() as sandbox:
        replay(one.bundle(), sandbox, one.code())
    return asked[0]


def _cold(request: RerunRequest, tier: str, *, namespaces: bool) -> Row:
    def once() -> None:
        with Sandbox(namespaces=namespaces) as sandbox:
            sandbox.run(request)

    timing = repeat(once, runs=15, warm_up=2)
    return Row(
        f"sandbox from nothing to the first result of a01, {tier}",
        str(timing),
        f"≤ {COLD_GOAL_S} s",
        timing.median <= COLD_GOAL_S,
    )


def _warm(sandbox: Sandbox, request: RerunRequest, tier: str) -> Iterator[Row]:
    timing = repeat(lambda: sandbox.run(request), runs=200, warm_up=10)
    goal, ours = f"≤ {WARM_GOAL_MS:g} ms", timing.median * 1000
    yield Row(f"one warm confined run of a01, {tier}", str(timing), goal, ours <= WARM_GOAL_MS)
    cpu = [sandbox.run(request).cpu_ms for _ in range(100)]
    yield Row(f"processor time of its process, {tier}", f"{sum(cpu) / len(cpu):.1f} ms (mean of 100)", "-", None)
    rate, threads = _rate(sandbox, request)
    yield Row(
        f"confined runs a second, {threads} at a time, {tier}",
        f"{rate:.0f}",
        f"≥ {RATE_GOAL:.0f} a core",
        rate >= RATE_GOAL,
    )
    size = max(_peak_mib(pid) for pid in _session(sandbox))
    yield Row(f"its largest process, {tier}", f"{size:.0f} MiB", f"≤ {SIZE_GOAL_MIB:.0f} MiB", size <= SIZE_GOAL_MIB)


def _rate(sandbox: Sandbox, request: RerunRequest) -> tuple[float, int]:
    threads, each = 4, 60
    begun = time.perf_counter()
    workers = [threading.Thread(target=lambda: [sandbox.run(request) for _ in range(each)]) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * each / (time.perf_counter() - begun), threads


def _session(sandbox: Sandbox) -> list[int]:
    """The processes that one sandbox keeps while no run is under way."""
    started = sandbox.pid
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == started:
                found.append(int(entry.name))
    return found


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
