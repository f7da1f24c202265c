"""`python -m app.pipeline`: what it says to a person who names something wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.pipeline", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_help() -> None:
    assert "PREFIX.events" in run("--help").stdout


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        ("tests.pipeline.scripted:nobody", "agent tests.pipeline.scripted:nobody: tests.pipeline.scripted has no"),
        ("no_such_module:agent", "cannot be imported: ModuleNotFoundError"),
        ("agent", "'agent' is not of the form module:attribute"),
    ],
)
def test_a_reference_that_names_nothing(tmp_path: Path, agent: str, problem: str) -> None:
    place = ["--brokers", "127.0.0.1:1", "--topics", "t", "--journal", str(tmp_path / "journal")]
    done = run("--agent", agent, "--provider", "tests.pipeline.scripted:provider", *place)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert problem in done.stderr
    assert not (tmp_path / "journal").exists()
