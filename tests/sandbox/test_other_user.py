"""The same tests once more as an ordinary user, and the tries where nothing holds them."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from app.sandbox.model import Ending, Limits
from tests.sandbox.agents import tries
from tests.sandbox.conftest import AGENTS, HERE, QUICK, is_root, make_sandbox, request_for, said
from tests.sandbox.test_tries import listening  # noqa: F401 (a fixture)

UID = 54321


def python_for(uid: int) -> str | None:
    """A Python of our version that this user can start; root's own may lie where nobody else can look."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, shutil.which(f"python{version}", path="/usr/bin:/usr/local/bin")):
        if candidate is None:
            continue
        check = [candidate, "-c", "import sys, sqlite3; print(sys.version_info[:2])"]
        try:
            done = subprocess.run(check, user=uid, group=uid, extra_groups=[], capture_output=True, cwd="/")
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


@pytest.mark.skipif(not is_root(), reason="the suite runs as an ordinary user already")
@pytest.mark.timeout(1800)  # they are some hundred tests
def test_all_of_it_as_an_ordinary_user(open_folder: Path) -> None:
    python = python_for(UID)
    if python is None:
        pytest.skip(f"no Python {sys.version_info[:2]} here that an ordinary user can start")
    if not os.access(HERE, os.R_OK) or any(not p.stat().st_mode & 0o001 for p in HERE.parents):
        pytest.skip(f"an ordinary user cannot read {HERE}")
    home = open_folder
    os.chown(home, UID, UID)
    packages = sysconfig.get_path("purelib")
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    names = ("test_tries.py", "test_ordinary.py", "test_runner.py", "test_paths.py")
    done = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-o",
            f"cache_dir={home}/cache",
            f"--confcutdir={HERE}",
            f"--basetemp={home}/tmp",
        ]
        + [str(HERE / name) for name in names],
        user=UID,
        group=UID,
        extra_groups=[],
        env=environment,
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


# Without these, a try that is broken would look like one that is refused.


def test_the_tries_reach_what_is_open(listening: dict, open_folder: Path) -> None:  # noqa: F811
    (open_folder / "credentials").write_text("secret")
    assert tries.read([str(open_folder / "credentials")]) == "REACHED b'secret'"
    assert tries.list_folders([str(open_folder)]).startswith("REACHED")
    assert tries.write([str(open_folder / "new")]) == f"REACHED '{open_folder}/new'"
    assert tries.change(str(open_folder / "new")).startswith("REACHED")
    assert tries.programs().startswith("REACHED")
    assert tries.program_in_memory().startswith("REACHED")
    assert tries.signal_others([os.getpid()]) == "REACHED 'signalled'"
    assert tries.other_memory([os.getpid()]).startswith("REACHED")
    assert tries.other_sockets().startswith("REACHED")


@pytest.mark.skipif(not is_root(), reason="only root can give a run a user of its own")
def test_root_gives_each_run_a_user_of_its_own_without_namespaces(open_folder: Path) -> None:
    python = python_for(UID)
    if python is None:
        pytest.skip(f"no Python {sys.version_info[:2]} here that an ordinary user can start")
    with make_sandbox(interpreter=Path(python), namespaces=False) as sandbox:
        first, second = (sandbox.run(request_for("nice:who"), QUICK) for _ in range(2))
        assert first.confinement is not None
        assert first.confinement.tier == "baseline"
        assert "own-user" in first.confinement.measures
        assert json.loads(said(first))["uid"] != json.loads(said(second))["uid"]
        assert said(sandbox.run(request_for("nice:scratch"), QUICK)) == "kept for this run, notes"
        assert "REACHED" not in said(sandbox.run(request_for("tries:change", path=str(AGENTS / "nice.py")), QUICK))
        bomb = sandbox.run(request_for("tries:fork_bomb"), Limits(wall_s=0.6, processes=20))
        assert bomb.ending is Ending.TIME_LIMIT  # the kernel counts its threads, so it gets no further
        private = open_folder / "private"
        private.mkdir(mode=0o700)
        (private / "private_agent.py").write_text("import os\ndef who():\n    return os.getuid()\n")
        os.chown(private, 1234, 1234)
        finished = sandbox.run(request_for("private_agent:who", (private,)), QUICK)
        assert said(finished) == "1234"
        assert finished.confinement is not None
        assert f"own-user: only user 1234 can read {private}" in finished.confinement.missing
