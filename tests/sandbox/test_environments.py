"""A build's own interpreter: its packages, what is loaded from it before any run, and what is said when it cannot."""

import shutil
import threading
from pathlib import Path

import pytest

from app.replay.runner import FINISHED
from app.sandbox import drivers
from app.sandbox.environment import InterpreterError, look_at
from app.sandbox.model import SandboxError
from app.sandbox.runner import Sandbox
from tests.sandbox.conftest import ENTRIES, QUICK, processes_of, request_for, said
from tests.sandbox.environments import environment, install, site
from tests.waiting import joined, until


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what every driver needs, and a function to call in the place of a re-run."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    environment(folder)
    shutil.copy(ENTRIES / "plain_entry.py", site(folder))
    return folder


@pytest.fixture
def venv(made: Path) -> Path:
    install(made, "vendored", "1.0", "VERSION = '1.0'\n")
    return made


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "own_agent.py").write_text(
        "import sys\n"
        "before = 'vendored' in sys.modules\n"
        "def version():\n"
        "    import vendored\n"
        "    return f'{vendored.VERSION} {before}'\n"
        "def slowly():\n"
        "    import os, time\n"
        "    while not os.path.exists(os.path.join(os.path.dirname(__file__), 'go')):\n"
        "        time.sleep(0.01)\n"
        "    return version()\n"
        "def looks():\n"
        "    import importlib.metadata\n"
        "    return importlib.metadata.version('vendored')\n"
        "def console():\n"
        "    import sqlalchemy\n"
    )
    return folder


def sandbox_in(venv: Path, **options: object) -> Sandbox:
    settings: dict = {"interpreter": venv / "bin" / "python", "entry": "plain_entry:run", "preload": ()} | options
    return Sandbox(**settings)


def test_what_it_finds_there(venv: Path) -> None:
    found = look_at(venv / "bin" / "python")
    assert found.packages["vendored"] == "1.0"
    assert "sqlalchemy" not in found.packages
    assert found.import_path == (str(site(venv)),)
    assert found.is_current()
    install(venv, "vendored", "1.1", "VERSION = '1.1'\n")
    assert not found.is_current()
    assert look_at(venv / "bin" / "python").digest != found.digest


@pytest.mark.parametrize("namespaces", [True, False])
def test_a_run_has_its_packages_and_not_the_consoles(venv: Path, agent: Path, namespaces: bool) -> None:
    with sandbox_in(venv, namespaces=namespaces) as sandbox:
        assert said(sandbox.run(request_for("own_agent:version", (agent,)), QUICK)) == "1.0 False"
        finished = sandbox.run(request_for("own_agent:console", (agent,)), QUICK)
        assert "No module named 'sqlalchemy'" in finished.detail


def test_preloaded_modules_are_there_before_the_agent(venv: Path, agent: Path) -> None:
    with sandbox_in(venv, libraries=["vendored"]) as sandbox:
        assert said(sandbox.run(request_for("own_agent:version", (agent,)), QUICK)) == "1.0 True"


def test_what_is_installed_later_is_seen_and_disturbs_no_run(venv: Path, agent: Path) -> None:
    with sandbox_in(venv, libraries=["vendored"]) as sandbox:
        assert said(sandbox.run(request_for("own_agent:version", (agent,)), QUICK)) == "1.0 True"
        old, slow = sandbox.pid, []
        before = set(processes_of(old))
        thread = threading.Thread(
            target=lambda: slow.append(sandbox.run(request_for("own_agent:slowly", (agent,)), QUICK))
        )
        thread.start()
        until(lambda: set(processes_of(old)) - before, "the start of the run")
        # Of another size: written in the second of the first and as long, it would be taken for what was compiled then.
        install(venv, "vendored", "2.0", "VERSION = '2.0'  # newer\n")
        assert said(sandbox.run(request_for("own_agent:version", (agent,)), QUICK)) == "2.0 True"
        assert sandbox.pid != old
        (agent / "go").touch()
        joined(thread)
        assert said(slow[0]) == "1.0 True"
        assert sandbox._outdated == []


def test_a_module_that_cannot_be_preloaded_is_named(venv: Path) -> None:
    with (
        sandbox_in(venv, libraries=["no_such_library"]) as sandbox,
        pytest.raises(SandboxError, match="preload names 'no_such_library', which cannot be imported: ModuleNotFound"),
    ):
        sandbox.run(request_for("nice:greet"), QUICK)


def test_a_module_that_starts_threads_is_not_preloaded(venv: Path) -> None:
    install(venv, "threaded", "1", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n")
    with (
        sandbox_in(venv, libraries=["threaded"]) as sandbox,
        pytest.raises(SandboxError, match="preload names 'threaded', which starts threads"),
    ):
        sandbox.run(request_for("nice:greet"), QUICK)


def test_a_thread_of_the_drivers_own_is_not_laid_at_a_modules_door(venv: Path) -> None:
    install(venv, "threaded", "1", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n")
    install(venv, "plain", "1", "VALUE = 1\n")
    with sandbox_in(venv, preload=["threaded"], libraries=["plain"]) as sandbox:
        assert sandbox.run(request_for("nice:greet"), QUICK).ending == FINISHED


def test_an_environment_may_lie_behind_a_link(venv: Path, agent: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(venv)
    with sandbox_in(tmp_path / "linked") as sandbox:
        finished = sandbox.run(request_for("own_agent:looks", (agent,)), QUICK)
    assert said(finished) == "1.0"
    assert finished.result is not None
    assert list(finished.result.refusals) == []


def test_what_is_missing_is_said_at_once(tmp_path: Path) -> None:
    python = environment(tmp_path / "bare", packages=("pydantic",))
    with pytest.raises(InterpreterError, match=r"bare/bin/python .*'runtime'.* protobuf>=6\.31,<7 \(not installed\);"):
        Sandbox(interpreter=python).start()
    install(tmp_path / "bare", "protobuf", "5.29.5", "")
    install(tmp_path / "bare", "pydantic", "1.10.0", "")
    with pytest.raises(InterpreterError, match=r"<7 \(5\.29\.5\), pydantic>=2\.10,<3 \(1\.10\.0\); install that there"):
        Sandbox(interpreter=python).start()


def test_what_is_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(InterpreterError, match="/bin/true does not answer as Python does"):
        look_at(Path("/bin/true"))
    with pytest.raises(InterpreterError, match="no-python cannot be started: No such file"):
        look_at(tmp_path / "no-python")
    old = tmp_path / "old-python"
    answer = '{"version": [3, 10, 4], "implementation": "CPython", "prefix": "/nowhere", "folders": []}'
    old.write_text(f"#!/bin/sh\necho '{answer}'\n")
    old.chmod(0o755)
    with pytest.raises(InterpreterError, match=r"old-python is Python 3\.10\.4; a replay needs 3\.11 or newer"):
        Sandbox(interpreter=old).start()
    old.write_text(f"#!/bin/sh\necho '{answer.replace('CPython', 'PyPy')}'\n")
    with pytest.raises(InterpreterError, match="old-python is PyPy; a replay needs CPython"):
        look_at(old)


def test_a_driver_that_is_not_there() -> None:
    with pytest.raises(drivers.UnknownDriverError, match="no driver 'other'; there are runtime"):
        Sandbox(driver="other")


@pytest.mark.parametrize(
    ("version", "expected"), [("6.33.6", (6, 33, 6)), ("1.0.0a1", (1, 0, 0)), ("2", (2,)), ("unknown", ())]
)
def test_versions(version: str, expected: tuple[int, ...]) -> None:
    from app.sandbox.environment import numbers

    assert numbers(version) == expected
