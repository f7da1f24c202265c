"""Replays: the command cold, the engine in one process, and the comparison of long timelines."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.replay.compare import rows_of
from app.replay.engine import replay
from app.replay.events import Event
from app.replay.inprocess import InProcessRunner
from benchmarks.measure import Row, Timing, command, largest_process_mib, repeat
from tests.golden.scenarios import Scenario, scenario

SHORT: Final = "a01_fraud_completed"
LONG: Final = "a30_exactly_64_calls"

# The peer's own figures on a machine of this size, for where it is not at hand.
PEER_COLD_S: Final = 1.0
PEER_COLD_MIB: Final = 138.0
PEER_IN_PROCESS_MS: Final = {SHORT: 0.50, LONG: 3.0}
GOAL_MS: Final = {SHORT: 0.5, LONG: 3.0}


def rows() -> Iterator[Row]:
    """Every figure of this file."""
    yield from cold()
    for name in (SHORT, LONG):
        yield in_process(name)
    yield from comparison()


def cold() -> Iterator[Row]:
    """`hindcast replay` from nothing: interpreter, imports, sandbox, run, text."""
    one = scenario(SHORT)
    argv = [sys.executable, "-m", "app.cli", "replay", *one.command()]
    folder = one.folder
    with _import_path():
        timing = repeat(lambda: command(argv, folder=folder, expect=0), runs=15)
        size = largest_process_mib(argv, folder=folder, expect=0)
    peer = _peer_cold(one)
    theirs = f"peer {peer}" if peer else f"peer about {PEER_COLD_S} s, {PEER_COLD_MIB:.0f} MiB (noted earlier)"
    ratio = timing.median / (peer.median if peer else PEER_COLD_S)
    yield Row(
        "command, cold and confined, a01",
        str(timing),
        "≤ 0.40 s where the peer takes 1.0 s: ×0.40",
        ratio <= 0.40,
        f"{theirs}: ×{ratio:.2f}",
    )
    yield Row(
        "its largest process",
        f"{size:.0f} MiB",
        "≤ 80 MB",
        size * 1.048576 <= 80,
        f"peer about {PEER_COLD_MIB:.0f} MB: ×{size * 1.048576 / PEER_COLD_MIB:.2f}",
    )


def in_process(name: str) -> Row:
    """Load, re-run, compare and judge in one process, without a sandbox."""
    one = scenario(name)
    contents = [(file.role, file.name, file.data) for file in one.bundle()]
    code = one.code()
    kind = type(one.bundle()[0])
    runner = InProcessRunner()
    timing = repeat(lambda: replay([kind(*content) for content in contents], runner, code), runs=500, warm_up=50)
    runner.close()
    goal = GOAL_MS[name]
    ours = timing.median * 1000
    peer = _peer_in_process(one)
    theirs = PEER_IN_PROCESS_MS[name] if peer is None else peer
    how = "noted earlier" if peer is None else "its command in one process, same run"
    return Row(
        f"in process, {name.split('_')[0]}",
        str(timing),
        f"≤ {goal} ms where the peer takes {PEER_IN_PROCESS_MS[name]} ms: ×{goal / PEER_IN_PROCESS_MS[name]:.2f}",
        ours / theirs <= goal / PEER_IN_PROCESS_MS[name],
        f"peer {theirs:.2f} ms ({how}): ×{ours / theirs:.2f}",
    )


def comparison() -> Iterator[Row]:
    """Alignment and comparison of two long timelines that differ in one event of a hundred."""
    taken: dict[int, Timing] = {}
    for size in (1_000, 10_000):
        recorded = list(_timeline(size))
        replayed = list(_changed(recorded))
        taken[size] = repeat(lambda one=recorded, other=replayed: rows_of(one, other), runs=5, warm_up=1)  # type: ignore[misc]
    growth = taken[10_000].best / taken[1_000].best
    yield Row("10,000 against 10,000 events", str(taken[10_000]), "≤ 1.0 s", taken[10_000].median <= 1.0)
    yield Row("growth from 1,000 to 10,000", f"×{growth:.1f}", "about ×10", growth <= 15)


def _timeline(size: int) -> Iterator[Event]:
    for step in range(size):
        kind = "LLM_CALL" if step % 3 else "INTENT_EMITTED"
        yield Event(
            kind,
            "m-1" if step % 3 else "TOOL",
            step=step,
            span_id=f"{step:016x}",
            attributes={"gen_ai.usage.input_tokens": str(step % 97), "beam_agents.cache_hit": "false"},
            identity={"span_id": f"{step:016x}", "parent_span_id": "00", "trace_id": "00", "seq": "0"},
        )


def _changed(events: list[Event]) -> Iterator[Event]:
    chance = random.Random(7)
    for event in events:
        luck = chance.random()
        if luck < 0.003:
            continue
        if luck < 0.006:
            yield Event("TOOL_CALL", "lookup", step=event.step)
        attributes = dict(event.attributes)
        if event.type == "LLM_CALL":
            attributes["beam_agents.cache_hit"] = "true"
        if luck > 0.996:
            attributes["gen_ai.usage.input_tokens"] = "1000"
        yield Event(event.type, event.label, "", event.step, event.span_id, 0, attributes, event.identity)


def _peer_cold(one: Scenario) -> Timing | None:
    """The peer's command on the same files, where `HINDCAST_PEER_PATH` names its environment's `bin`."""
    folder = os.environ.get("HINDCAST_PEER_PATH")
    if not folder:
        return None
    argv = [str(Path(folder) / "beam-agents-replay"), *one.argv]
    os.environ["PYTHONPATH"] = str(one.folder)
    try:
        return repeat(lambda: command(argv, folder=one.folder, expect=0), runs=5, warm_up=1)
    finally:
        del os.environ["PYTHONPATH"]


# The peer's command called again and again inside its own interpreter; nothing of it is imported here.
_IN_PROCESS: Final = """
import contextlib, io, statistics, sys, time
from importlib.metadata import entry_points
(found,) = [e for e in entry_points(group="console_scripts") if e.name == "beam-agents-replay"]
main, taken = found.load(), []
for _ in range(220):
    begun = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(sys.argv[1:])
    taken.append(time.perf_counter() - begun)
print(statistics.median(taken[20:]) * 1000)
"""


def _peer_in_process(one: Scenario) -> float | None:
    """Milliseconds that the peer's command takes without start-up: reading files, re-run, comparison, its text."""
    folder = os.environ.get("HINDCAST_PEER_PATH")
    if not folder:
        return None
    argv = [str(Path(folder) / "python"), "-c", _IN_PROCESS, *one.argv]
    environment = {**os.environ, "PYTHONPATH": str(one.folder)}
    done = subprocess.run(argv, cwd=one.folder, env=environment, capture_output=True, check=True)
    return float(done.stdout)


class _import_path:  # noqa: N801
    """This checkout importable from any folder while commands are timed."""

    def __enter__(self) -> None:
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])

    def __exit__(self, *_: object) -> None:
        os.environ.pop("PYTHONPATH", None)
