"""The sandbox: how soon a new one gives its first result, and what one confined run costs once it is warm."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.replay.engine import replay
from app.replay.rerun_pb2 import RerunRequest
from app.sandbox.drivers import DEFAULT, DRIVERS
from app.sandbox.model import Ending, Finished
from app.sandbox.runner import Sandbox
from benchmarks.measure import Row, repeat
from tests.golden.scenarios import scenario

SHORT: Final = "a01_fraud_completed"
COLD_GOAL_S: Final = 0.25
WARM_GOAL_MS: Final = 5.0
RATE_GOAL: Final = 100.0
SIZE_GOAL_MIB: Final = 60.0
_ROUNDS: Final = 8
_A_ROUND: Final = 50


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
    yield from _processor_time(sandbox, request, tier)
    rate, threads = _rate(sandbox, request)
    yield Row(
        f"confined runs a second, {threads} at a time, {tier}",
        f"{rate:.0f}",
        "-",
        None,
    )
    size = max(_peak_mib(pid) for pid in _session(sandbox))
    yield Row(f"its largest process, {tier}", f"{size:.0f} MiB", f"≤ {SIZE_GOAL_MIB:.0f} MiB", size <= SIZE_GOAL_MIB)


def _processor_time(sandbox: Sandbox, request: RerunRequest, tier: str) -> Iterator[Row]:
    """All that a run costs, in every process that takes part, beside the same re-run in a plain fork of a warm process.

    Both are counted in turns, so that both see the same machine.
    """
    plain = _PlainForks(request)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(_ROUNDS):
        begun = _spent_s(sandbox)
        for _ in range(_A_ROUND):
            sandbox.run(request)
        ours.append((_spent_s(sandbox) - begun) / _A_ROUND)
        theirs.append(plain.spend(_A_ROUND) / _A_ROUND)
    plain.close()
    mine, bare = statistics.median(ours), statistics.median(theirs)
    yield Row(
        f"its processor time, all processes, {tier}",
        f"{mine * 1000:.1f} ms: {1 / mine:.0f} a second and core",
        f"≥ {RATE_GOAL:.0f} a second and core",
        1 / mine >= RATE_GOAL,
        f"a plain fork of a warm process, not confined: {bare * 1000:.1f} ms, ×{mine / bare:.2f}",
    )


def _spent_s(sandbox: Sandbox) -> float:
    """Processor time so far of this process and of the sandbox's, its ended runs included."""
    ticks = 0
    for pid in _session(sandbox):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


class _PlainForks:
    """A process that is warm as the sandbox's is and forks itself for each re-run, with nothing held back."""

    _CODE: Final = """
import gc, importlib, os, resource, sys
gc.disable()
for name in sys.argv[1].split(","):
    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)()
from app.replay.rerun import run
from app.replay.rerun_pb2 import RerunRequest
request = bytes.fromhex(sys.stdin.readline())
sys.dont_write_bytecode = True
gc.freeze()
for line in sys.stdin:
    for _ in range(int(line)):
        pid = os.fork()
        if pid == 0:
            run(RerunRequest.FromString(request)).SerializeToString()
            os._exit(0)
        os.waitpid(pid, 0)
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(sum(one.ru_utime + one.ru_stime for one in spent), flush=True)
"""

    def __init__(self, request: RerunRequest) -> None:
        warm = ",".join(DRIVERS[DEFAULT].warm)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", self._CODE, warm], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._last = 0.0
        self._tell(request.SerializeToString().hex())
        self._last = self.spend(1)

    def spend(self, runs: int) -> float:
        """Make some runs; returns the processor time that they took, in seconds."""
        self._tell(str(runs))
        assert self._process.stdout is not None
        before, self._last = self._last, float(self._process.stdout.readline())
        return self._last - before

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


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
