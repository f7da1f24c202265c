"""The installed package as a driver: it gives the verdicts that our own runtime gives, from the same evidence.

These tests need an environment that holds `beam-agents`: `HINDCAST_PEER_PATH` names it, or its `bin` folder.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.replay import peer
from app.replay.engine import Options, replay
from app.replay.rerun_pb2 import RerunRequest, RerunResult
from app.replay.runner import Runner
from app.replay.verdict import Report
from app.sandbox.environment import InterpreterError
from app.sandbox.runner import Sandbox
from tests.golden.scenarios import Scenario, has_valid_command, names, scenario
from tests.sandbox.environments import environment, install

GOLDEN = [name for folder in ("corpus", "corpus_multi") for name in names(folder) if has_valid_command(scenario(name))]

# Its agent puts the time of day into what it asks, so no two runs are alike.
CLOCK = "s13_wall_clock_agent"


@pytest.fixture(scope="module")
def theirs() -> Iterator[Sandbox]:
    told = os.environ.get("HINDCAST_PEER_PATH")
    python = next(
        (path for path in (Path(told or "/", end) for end in ("python", "bin/python")) if path.is_file()), None
    )
    if told is None or python is None:
        pytest.skip("HINDCAST_PEER_PATH names no environment with beam-agents: the second driver is not tested here")
    with Sandbox(interpreter=python, driver=peer.DRIVER) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def ours() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def run(one: Scenario, runner: Runner) -> Report:
    return replay(one.full(), runner, one.code(), seq=one.seq, options=Options(ledger_bytes=1 << 20))


def without_driver(report: Report) -> dict[str, Any]:
    """A verdict but for what says how it was come by, and in whose words a state that is too old is refused."""
    told = report.verdict.as_json()
    if told["reason"] is not None and told["reason"]["code"] == "migration_gap":
        told |= {"reason": "migration_gap", "headline": ""}
    return {name: value for name, value in told.items() if name not in ("driver", "confinement")}


def steps(report: Report) -> list[str]:
    """What the ledger tells of, but for memory: each runtime's own compactor looks at it in its own way."""
    return [entry.kind for entry in report.ledger if entry.kind != "memory"]


@pytest.mark.parametrize("name", GOLDEN)
def test_both_drivers_agree(name: str, theirs: Sandbox, ours: Sandbox) -> None:
    one = scenario(name)
    report = run(one, theirs)
    assert report.verdict.exit_code in one.right("full"), report.verdict.headline
    same = run(one, ours)
    if name == CLOCK:
        assert report.verdict.outcome == same.verdict.outcome
        return
    assert without_driver(report) == without_driver(same)
    assert [row.state for row in report.rows] == [row.state for row in same.rows]
    assert steps(report) == steps(same)
    if report.verdict.driver:
        assert report.verdict.driver["name"] == "beam_agents"
        assert report.verdict.driver["version"] in peer.TESTED
        assert report.verdict.confinement["tier"] in ("namespaces", "baseline")


# What needs no such environment


def test_another_version_is_refused(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    install(tmp_path / "venv", "beam_agents", "1.0.7", "raise AssertionError('imported')")
    with Sandbox(interpreter=python, driver=peer.DRIVER) as sandbox:
        finished = sandbox.run(RerunRequest(code=scenario("a01_fraud_completed").code()))
    assert finished.result is not None, finished
    assert finished.result.outcome == RerunResult.REFUSED
    assert finished.result.refusal == (
        "the build's environment holds beam-agents 1.0.7, and the driver 'beam_agents' was tested with 1.0.0a1 only;"
        " install that there, or choose the driver 'runtime'"
    )


def test_an_environment_without_it_is_refused(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", packages=("protobuf",))
    with pytest.raises(InterpreterError, match=r"'beam_agents': it needs beam-agents>=1\.0\.0,<1\.1 \(not inst"):
        Sandbox(interpreter=python, driver=peer.DRIVER).start()
