"""Re-runs of Flink Agents: the example's 50 recorded inputs, confined, from a log's runs to verdicts.

Processor time is told beside the clock's: ours is that of both processes, the framework's that of its local runner.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.flink.inside.messages import Handling
from app.flink.model import Run
from app.flink.rerun.case import Options
from app.flink.rerun.stretch import Stretch, summed
from app.jobs.flink_runs import SandboxedBuild
from app.replay.rerun_pb2 import RerunRequest
from app.sandbox.model import Finished
from app.sandbox.runner import Sandbox
from benchmarks.measure import Row
from scripts.flink_env import FlinkMissing, python
from tests.fixtures.flink import EXAMPLE, Code, example_runs

INPUTS: Final = 50
_RUNS: Final = 15
_OPTIONS: Final = Options(
    begins_empty=True, handling={"tool:issue_refund": Handling(answer="accepted", has_answer=True)}
)
# The framework's own local runner over the same inputs, its models and tools executed for real.
_PEER: Final = """
import io, sys, time
sys.path.insert(0, {folder!r})
import record
given = record.inputs({inputs})
record.record("v1", io.StringIO(), given)
best = 1e9
for _ in range(5):
    begun = time.process_time()
    record.record("v1", io.StringIO(), given)
    best = min(best, time.process_time() - begun)
print(best * 1000 / {inputs})
"""


class Desk:
    """The example's builds over one warm sandbox, and the processor time that their runs took."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.child_ms = 0.0

    def build(self, version: str) -> SandboxedBuild:
        return SandboxedBuild(Code(version, "desk:RefundDesk", (EXAMPLE / version, EXAMPLE / "shared")), self._run)

    def _run(self, request: RerunRequest) -> Finished:
        finished = self._sandbox.run(request)
        self.child_ms += finished.cpu_ms
        return finished

    def timed(self, runs: list[Run], version: str, reference: str) -> tuple[float, float]:
        """Milliseconds by the clock and of the processors, the median and the best of several goes."""
        walls, processors = [], []
        for _ in range(_RUNS):
            self.child_ms, wall, own = 0.0, time.perf_counter(), time.process_time()
            Stretch(runs, self.build(version), self.build(reference), _OPTIONS).replay()
            walls.append((time.perf_counter() - wall) * 1000)
            processors.append((time.process_time() - own) * 1000 + self.child_ms)
        return statistics.median(walls), min(processors)


def rows() -> Iterator[Row]:
    """Every figure of this file; none where Flink Agents cannot be had."""
    try:
        interpreter = python()
    except FlinkMissing as missing:
        yield Row("re-runs of Flink Agents", "not measured", "", None, str(missing))
        return
    runs, theirs = example_runs(), _peer(interpreter)
    with Sandbox(interpreter=interpreter, driver="flink") as sandbox:
        desk = Desk(sandbox)
        desk.timed(runs[:1], "v1", "v1")
        for what, version in (("the build that made the record", "v1"), ("another build beside it", "v2")):
            wall, processor = desk.timed(runs, version, "v1")
            share = processor / INPUTS
            yield Row(
                f"50 inputs, {what}: an input",
                f"{share:.2f} ms of processor time, {wall / INPUTS:.1f} ms by the clock",
                "",
                None,
                f"local runner {theirs:.2f} ms of processor time: ×{share / theirs:.2f}",
            )
        wall, processor = desk.timed(runs[:1], "v1", "v1")
        yield Row("one input alone", f"{processor:.0f} ms of processor time, {wall:.0f} ms by the clock", "", None)
        told = summed(Stretch(runs, desk.build("v2"), desk.build("v1"), _OPTIONS).replay())
        held = told["verdicts"] == {"diverged": 14, "reproduced": 36}
        yield Row("inputs that differ under the other build", str(len(told["differ"])), "14 of 50", held)


def _peer(interpreter: Path) -> float:
    """Milliseconds of processor time an input takes in the framework's own runner, unconfined, its calls made."""
    code = _PEER.format(folder=str(EXAMPLE), inputs=INPUTS)
    done = subprocess.run(
        [interpreter, "-c", code], capture_output=True, env={"DESK_LEDGER": "/dev/null"}, timeout=300, check=True
    )
    return float(done.stdout)
