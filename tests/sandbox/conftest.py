"""One sandbox per tier for all tests: that earlier runs leave nothing behind is part of what is tested."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.replay.rerun_pb2 import RerunRequest
from app.sandbox import zygote
from app.sandbox.model import Finished, Limits
from app.sandbox.runner import Sandbox
from tests.waiting import PATIENCE_S

HERE = Path(__file__).parent
AGENTS = HERE / "agents"
ENTRIES = HERE / "entries"
# Ends what hangs; a try that is to run out of time is given less.
QUICK = Limits(wall_s=PATIENCE_S, cpu_s=60, memory_bytes=256 << 20)

Attempt = Callable[..., Finished]


def request_for(agent: str, folders: tuple[Path, ...] = (AGENTS,), **arguments: object) -> RerunRequest:
    """A request that makes `plain_entry` call one function of an agent file."""
    request = RerunRequest(entity_key=json.dumps(arguments).encode())
    request.code.agent = agent
    request.code.paths.extend(str(path) for path in folders)
    return request


def make_sandbox(**options: object) -> Sandbox:
    """A sandbox that runs `plain_entry` instead of a whole re-run."""
    settings: dict = {
        "entry": "plain_entry:run",
        "preload": (),
        "import_path": [*zygote.import_path(), str(ENTRIES)],
    } | options
    return Sandbox(**settings)


@pytest.fixture(scope="session")
def world_without(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes our interpreter in a world that refuses one of `refusing.WORLDS`."""
    folder = tmp_path_factory.mktemp("worlds")
    source = (HERE / "refusing.py").read_text()

    def make(what: str) -> Path:
        script = folder / f"python-without-{what}"
        script.write_text(f"#!{sys.executable} -S\nWHAT = {what!r}\n{source}")
        script.chmod(0o755)
        return script

    return make


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody on the machine may enter: only the sandbox keeps a run out of it."""
    with tempfile.TemporaryDirectory(prefix="hindcast-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture(scope="session", params=["namespaces", "baseline"])
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def sandbox(tier: str, world_without: Callable[[str], Path]) -> Iterator[Sandbox]:
    """The tier that `tier` names; skips aloud where this machine does not grant namespaces."""
    options: dict = {"interpreter": world_without("namespaces")} if tier == "baseline" else {}
    with make_sandbox(**options) as made:
        first = made.run(request_for("nice:greet"), QUICK)
        assert first.confinement is not None, first
        if first.confinement.tier != tier:
            assert tier == "namespaces", first
            pytest.skip(f"this machine grants no namespaces: {first.confinement.missing}")
        yield made


@pytest.fixture
def attempt(sandbox: Sandbox) -> Attempt:
    """Run one function of `agents/` and return how it ended."""

    def run(agent: str, limits: Limits = QUICK, **arguments: object) -> Finished:
        return sandbox.run(request_for(agent, **arguments), limits)

    return run


def said(finished: Finished) -> str:
    """What the function returned, where it finished."""
    assert finished.result is not None, finished
    return finished.result.error_detail


def is_root() -> bool:
    return os.geteuid() == 0


def processes_of(session: int) -> list[int]:
    """All processes that the pre-loaded process and its runs consist of: they share a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found
