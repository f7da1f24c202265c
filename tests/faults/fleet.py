"""Worker and console processes as they run in production, and ways to kill them in the middle of something.

The agent of the build `patient` is a scenario's that first waits for a file in its own folder, so that a test decides
how long its re-run takes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from app.incidents import service
from app.incidents.service import Run, Store
from tests.golden.scenarios import scenario
from tests.waiting import until_async

ROOT = Path(__file__).parents[2]
SCENARIO = "a01_fraud_completed"
BUILDS = ("patient", "swift", "elsewhere")
WAIT = """
import os, time
while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
    time.sleep(0.01)
"""


@dataclass
class Fleet:
    """A folder with a configuration of three builds, and the processes that were started over one database."""

    folder: Path
    url: str
    lease_s: float = 10.0
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        tables = [f"[worker]\nlease_s = {self.lease_s}\n"]
        for name in BUILDS:
            code = self.folder / name
            code.mkdir()
            source = (scenario(SCENARIO).folder / "agent.py").read_text()
            marker = "async def AGENT(ctx: ActivationContext) -> Complete:\n"
            assert marker in source
            if name == "patient":
                source = source.replace(marker, f"{marker}    hold()\n")
                source += "\n\ndef hold():\n" + "".join(f"    {line}\n" for line in WAIT.strip().splitlines())
            (code / "agent.py").write_text(source)
            hooks = 'agent = "agent:AGENT"\nregistry = "agent:TOOLS"\ndecode = "agent:decode"'
            tables.append(f'[[builds]]\nname = "{name}"\n{hooks}\npaths = ["{name}"]\n')
        (self.folder / "hindcast.toml").write_text("\n".join(tables))
        for path in (self.folder, *(self.folder / name for name in BUILDS)):
            path.chmod(0o755)  # the sandbox may be another user

    def go(self) -> None:
        """Let the patient agent's runs go on."""
        (self.folder / "patient" / "go").touch()

    def hold(self) -> None:
        (self.folder / "patient" / "go").unlink()

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start a `hindcast` process; it is killed at the end at the latest."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HINDCAST_", "OTEL_"))}
        told = {"HINDCAST_HOME": str(self.folder / "home"), "HINDCAST_DATABASE_URL": self.url, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", *words, "--config", str(self.folder / "hindcast.toml")],
            stdout=subprocess.PIPE,
            stderr=(self.folder / f"{words[0]}.log").open("a"),
            text=True,
            env={**kept, **told, **environment},
        )
        self._stack.callback(self._end, process)
        return process

    def close(self) -> None:
        self._stack.close()

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()


@contextmanager
def fleet_at(folder: Path, url: str) -> Iterator[Fleet]:
    """Make a fleet, and end all of it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = Fleet(folder, url)
    try:
        yield made
    finally:
        made.close()


async def ask(store: Store, build: str) -> Run:
    """Import the scenario and ask for a run of a build."""
    async with store.write() as session:
        incident = await service.import_evidence(session, scenario(SCENARIO).bundle(), who="ada")
        return await service.request_replay(session, incident, build, who="ada", known=BUILDS)


async def until(store: Store, run: Run, *states: str) -> Run:
    """Wait until the run is in one of these states."""
    found = run

    async def reached() -> Run | None:
        nonlocal found
        try:
            async with store.read() as session:
                found = await service.get_run(session, run.id)
        except Exception:  # noqa: BLE001  the database may be the one that was killed
            return None
        return found if found.state in states else None

    what = f"a run that is {' or '.join(states)}"
    there = await until_async(reached, lambda: f"{what}: it is {found.state}, {found.error}", pause_s=0.05)
    assert there is not None
    return there


async def happens(what: Callable[[], bool], name: str) -> None:
    """Wait until something is true."""

    async def ask() -> bool:
        return what()

    await until_async(ask, name)


def children(pid: int) -> set[int]:
    """The direct children of a process that still run."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended since
            found |= {int(child) for child in task.read_text().split() if not _ended(int(child))}
    return found


def descendants(pid: int) -> set[int]:
    """All processes below one."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        below = children(todo.pop())
        found |= below
        todo += below
    return found


def confined(pid: int) -> list[int]:
    """The processes below one that are shut in, as runs are, those that began first before the others."""
    ours = _filters(os.getpid())
    return [
        child for _, child in sorted((_began(child), child) for child in descendants(pid) if _filters(child) > ours)
    ]


def _filters(pid: int) -> int:
    """How many filters of system calls a process is under; containers may put everybody under one."""
    try:
        found = re.search(r"(?m)^Seccomp_filters:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _began(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
