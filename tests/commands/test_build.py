"""`hindcast build`: what CI runs when it deploys an agent. The file stays a person's file."""

import tomllib
from pathlib import Path

import pytest

from app import cli
from app.settings import load
from tests.golden.scenarios import scenario
from tests.sandbox.environments import environment, install

FILE = """\
# Our console. Ask Ada before you change this.
[console]
port = 9000   # behind the proxy

[[builds]]
name = "fraud-v1"  # the old one
agent = "agent:AGENT"
paths = ["fraud"]
live_from = 2026-01-01T00:00:00Z

[[pipelines]]
name = "fraud"
brokers = ["b:9092"]
builds = ["fraud-v1"]  # newest last
[pipelines.topics]
traces = "t"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fraud").mkdir()
    (tmp_path / "fraud" / "agent.py").write_text((scenario("a01_fraud_completed").folder / "agent.py").read_text())
    (tmp_path / "hindcast.toml").write_text(FILE)
    return tmp_path / "hindcast.toml"


def run(*argv: str) -> int:
    return cli.main(["build", *argv])


ADD = ("add", "fraud-v2", "--agent", "agent:AGENT", "--registry", "agent:TOOLS", "--path", "fraud")


def test_a_build_is_added_and_nothing_else_changes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.chmod(0o640)
    assert run(*ADD, "--live-from", "2026-03-01T10:00:00+01:00", "--after", "fraud-v1", "--pipeline", "fraud") == 0
    assert "build fraud-v2 sha256:" in capsys.readouterr().out
    text = file.read_text()
    lines = iter(text.splitlines())
    assert all(line in lines for line in FILE.splitlines() if "newest last" not in line), "in order, none missing"
    assert 'builds = ["fraud-v1", "fraud-v2"]' in text
    assert "# newest last" in text
    assert "\n\n[[pipelines]]\n" in text
    first, second = load(file).builds
    assert (second.name, second.agent, second.registry) == ("fraud-v2", "agent:AGENT", "agent:TOOLS")
    assert second.digest == second.files_digest()
    assert first.live_to == second.live_from == 1_772_355_600_000
    assert tomllib.loads(text)["builds"][1]["paths"] == ["fraud"]
    assert load(file).pipelines[0].builds == ("fraud-v1", "fraud-v2")
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in file.parent.iterdir()) == ["fraud", "hindcast.toml"]


def test_a_file_is_made_where_there_is_none(file: Path) -> None:
    file.unlink()
    assert run(*ADD, "--live-from", "now") == 0
    (build,) = load(file).builds
    assert build.live_from is not None


def test_a_name_is_taken_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = ("add", "fraud-v1", "--agent", "agent:OTHER", "--path", "fraud")
    assert run(*again) == 2
    assert "already has a build 'fraud-v1'; give --replace to write it anew" in capsys.readouterr().err
    assert file.read_text() == FILE
    assert run(*again, "--replace") == 0
    (build,) = load(file).builds
    assert build.agent == "agent:OTHER"
    assert "# newest last" in file.read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--path", "nowhere"), "--path nowhere: "),
        (("--driver", "other"), "nothing was written: "),
        (("--driver", "other"), "hindcast.toml: builds[1].driver: there is no driver 'other'"),
        (("--interpreter", "bin/none"), "interpreter names 'bin/none'"),
        (("--live-from", "spring"), "'spring' is not a time such as 2026-05-01T12:00:00Z, nor `now`"),
        (("--live-from", "2026-01-01T00:00:00"), "is not a time such as"),
        (("--after", "fraud-v0", "--live-from", "now"), "has no build 'fraud-v0' to take over from (--after)"),
        (("--after", "fraud-v1"), "--after needs --live-from"),
        (("--after", "fraud-v1", "--live-from", "2025-01-01T00:00:00Z"), "live_to must be later than live_from"),
        (("--pipeline", "refunds"), "has no pipeline 'refunds' (--pipeline)"),
        (("--lock", "none.lock"), "lock names 'none.lock'"),
        (("--config", "no/such/folder/hindcast.toml"), "the folder of "),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(
    file: Path, more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*ADD, *more) == 2
    assert message in capsys.readouterr().err
    assert file.read_text() == FILE
    assert sorted(path.name for path in file.parent.iterdir()) == ["fraud", "hindcast.toml"]


def test_a_broken_file_stays_as_it_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, told in (("[console", "cannot be read"), ("builds = []\n", "is not written as [[builds]] tables")):
        file.write_text(text)
        assert run(*ADD) == 2
        assert told in capsys.readouterr().err
        assert file.read_text() == text


def test_builds_are_listed_and_verified(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*ADD, "--live-from", "2026-03-01T00:00:00Z") == 0
    capsys.readouterr()
    assert run("list") == 0
    first, second = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert first[:3] == ["fraud-v1", "runtime", "files not pinned"]
    assert second[:3] == ["fraud-v2", "runtime", "files as added"]
    assert second[3].startswith("live from 2026-03-01 00:00:00")
    assert run("verify") == 0
    assert capsys.readouterr().out.splitlines() == ["fraud-v1: can be replayed", "fraud-v2: can be replayed"]
    (file.parent / "fraud" / "agent.py").write_text("import no_such_thing\n")
    assert run("list") == 0
    assert "FILES CHANGED" in capsys.readouterr().out
    assert run("verify", "fraud-v2") == 1
    told = capsys.readouterr().out
    assert "its files are not those that were added" in told
    assert "its agent cannot be imported: " in told
    assert "no_such_thing" in told
    assert run("verify", "fraud-v3") == 2
    assert "there are: fraud-v1, fraud-v2" in capsys.readouterr().err


def test_an_environment_is_added_with_its_lock_and_held_against_it(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment(tmp_path / "venv")
    install(tmp_path / "venv", "vendored", "1.0", "")
    assert run(*ADD, "--interpreter", "venv/bin/python", "--preload", "vendored", "--write-lock") == 0
    build = load(file).builds[1]
    assert build.interpreter == tmp_path / "venv" / "bin" / "python"
    lock = (tmp_path / "fraud-v2.lock").read_text()
    assert lock.startswith("# python==3.")
    assert "\nvendored==1.0\n" in lock
    assert run("verify", "fraud-v2") == 0
    install(tmp_path / "venv", "vendored", "2.0", "")
    capsys.readouterr()
    assert run("verify", "fraud-v2") == 1
    assert "  vendored is 2.0 here, and 1.0 in production (its lock)\n" in capsys.readouterr().out
