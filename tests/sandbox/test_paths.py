"""Which paths are opened to an agent, and which never."""

import os
import tempfile
from pathlib import Path

import pytest

from app.sandbox import paths
from app.sandbox.model import AgentPathError, Ending
from app.sandbox.runner import Sandbox
from tests.sandbox.conftest import AGENTS, QUICK, request_for, said


@pytest.mark.parametrize(
    "path", ["/", "/root", "/home", "/usr", "/tmp", "/var/lib", "/tmp/../tmp", str(Path.home()), tempfile.gettempdir()]
)
def test_wide_places(path: str) -> None:
    with pytest.raises(AgentPathError, match="far more than its own code"):
        paths.agent_paths([path])


@pytest.mark.parametrize("path", ["/etc", "/etc/ssl", "/proc", "/proc/self", "/dev", "/sys", "/run", "/usr/../etc"])
def test_places_of_the_system(path: str) -> None:
    with pytest.raises(AgentPathError, match="which no replay may read"):
        paths.agent_paths([path])


def test_the_checkout_itself() -> None:
    with pytest.raises(AgentPathError, match="name the folder that holds its modules"):
        paths.agent_paths([paths.app_root()])


def test_a_link_to_a_wide_place(tmp_path: Path) -> None:
    (tmp_path / "agents").symlink_to("/etc")
    with pytest.raises(AgentPathError, match="lies in /etc"):
        paths.agent_paths([str(tmp_path / "agents")])


def test_relative_and_missing(tmp_path: Path) -> None:
    with pytest.raises(AgentPathError, match="'agents' is relative"):
        paths.agent_paths(["agents"])
    with pytest.raises(AgentPathError, match="nothing-here' does not exist"):
        paths.agent_paths([str(tmp_path / "nothing-here")])


def test_each_path_once_with_its_real_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real, link = str(tmp_path / "real"), str(tmp_path / "link")
    assert paths.agent_paths([real, link, real + "/"]) == [
        (real, os.path.realpath(real)),
        (link, os.path.realpath(real)),
    ]


def test_private_entries_are_left_out(tmp_path: Path) -> None:
    for name in ("agent.py", "hindcast.toml", ".env", "package/module.py", "package/hindcast.toml", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    denied = tmp_path / "package" / "keys" / "key.pem"
    denied.parent.mkdir()
    denied.touch()
    (tmp_path / "package" / "keys" / "public.pem").touch()
    root = str(tmp_path)
    assert dict(paths.readable(root, [str(denied)])) == {
        root: False,
        f"{root}/agent.py": True,
        f"{root}/package": False,
        f"{root}/package/module.py": True,
        f"{root}/package/hindcast.toml": True,
        f"{root}/package/keys": False,
        f"{root}/package/keys/public.pem": True,
    }
    assert paths.readable(root + "/package/keys", []) == [(root + "/package/keys", True)]


def test_private_entries_cannot_be_read(sandbox: Sandbox, open_folder: Path) -> None:
    """An agent whose folder also holds the console's configuration: the checkout of a whole project."""
    folder = open_folder
    (folder / "lib").mkdir()
    (folder / "project_agent.py").write_text((AGENTS / "tries.py").read_text())
    for name in ("hindcast.toml", ".env", "lib/password", "lib/data.txt"):
        (folder / name).write_text("content")
    (folder / "link").symlink_to("hindcast.toml")
    hidden = ["hindcast.toml", ".env", "lib/password", "link"]
    with_denied = Sandbox(
        entry=sandbox._start.entry,
        import_path=sandbox._start.import_path,
        interpreter=sandbox._interpreter,
        denied=[str(folder / "lib" / "password")],
    )
    with with_denied:
        for name in hidden:
            finished = with_denied.run(request_for("project_agent:read", (folder,), paths=[str(folder / name)]), QUICK)
            assert finished.ending is Ending.FINISHED, finished
            assert "REACHED" not in said(finished)
        public = request_for("project_agent:read", (folder,), paths=[str(folder / "lib" / "data.txt")])
        assert said(with_denied.run(public, QUICK)) == "REACHED b'content'"


def test_an_agent_behind_a_link(sandbox: Sandbox, open_folder: Path) -> None:
    folder = open_folder
    (folder / "real" / "agents").mkdir(parents=True)
    (folder / "real" / "agents" / "linked_agent.py").write_text("def go():\n    return __file__\n")
    (folder / "link").symlink_to(folder / "real")
    finished = sandbox.run(request_for("linked_agent:go", (folder / "link" / "agents",)), QUICK)
    assert said(finished) == f"{folder}/link/agents/linked_agent.py"
