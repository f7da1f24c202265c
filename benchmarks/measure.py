"""Timing that says how it was taken: medians and best cases of many runs, and the size of the largest process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Timing:
    """Seconds of one thing done many times."""

    median: float
    best: float
    runs: int

    def __str__(self) -> str:
        return f"{_human(self.median)} (best {_human(self.best)}, {self.runs} runs)"


@dataclass(frozen=True)
class Row:
    """One line of the table: what, what was measured, what it is held against, and how the two relate."""

    what: str
    figure: str
    goal: str
    held: bool | None
    against: str = ""

    def __str__(self) -> str:
        mark = {True: "yes", False: "NO", None: "-"}[self.held]
        return f"| {self.what} | {self.figure} | {self.goal} | {mark} | {self.against} |"


def repeat(action: Callable[[], object], *, runs: int, warm_up: int = 3) -> Timing:
    """Time an action `runs` times after a few that do not count."""
    for _ in range(warm_up):
        action()
    taken = []
    for _ in range(runs):
        begun = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begun)
    return Timing(statistics.median(taken), min(taken), runs)


def command(argv: Sequence[str], *, folder: Path, expect: int) -> None:
    """Run a command quietly; raises when it ends with another code than expected."""
    done = subprocess.run(argv, cwd=folder, capture_output=True, check=False, env=dict(os.environ))
    if done.returncode != expect:
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")


# A process counts as at least as large as the one that it was forked from, so a small one stands between.
_LAUNCHER: Final = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
sys.stderr.buffer.write(done.stderr[-2000:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


def largest_process_mib(argv: Sequence[str], *, folder: Path, expect: int) -> float:
    """Peak resident size, in MiB, of the largest process that a command starts (itself included)."""
    launched = [sys.executable, "-S", "-c", _LAUNCHER, *argv]
    done = subprocess.run(launched, cwd=folder, capture_output=True, check=False, text=True)
    if done.returncode != expect:
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}: {done.stderr}")
    return int(done.stdout) / 1024


def _human(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.2f} ms"
