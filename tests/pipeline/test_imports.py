"""What a process pays for: the processor needs neither Beam nor Kafka, and Beam's absence is told."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("keyed", "apache_beam confluent_kafka sqlalchemy"),
        ("keyspace", "apache_beam confluent_kafka sqlalchemy"),
        ("embedded", "apache_beam sqlalchemy"),
    ],
)
def test_nothing_else_comes_along(module: str, absent: str) -> None:
    done = run(f"import sys, app.pipeline.{module}; print([n for n in {absent.split()} if n in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_without_beam() -> None:
    done = run("import sys; sys.modules['apache_beam'] = None; import app.pipeline.beam")
    assert done.returncode == 1
    assert "app.pipeline.beam needs Apache Beam" in done.stderr
    assert "pip install 'hindcast-console[beam]'" in done.stderr
