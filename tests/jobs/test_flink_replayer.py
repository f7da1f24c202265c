"""A worker's replay of an incident that was opened from a run of Flink Agents."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.incidents.service import RunInputs
from app.jobs.replayer import BuildProblem, Case, Confinement, SandboxedReplayer
from app.replay.evidence import EvidenceFile, Role
from app.settings import Build
from tests.fixtures.flink import EXAMPLE, example_log, first_run
from tests.incidents.evidence import recording

NEVER = threading.Event()
LIVE = 1_700_000_000_000


def build(version: str, python: Path, **more: Any) -> Build:
    paths = (EXAMPLE / version, EXAMPLE / "shared")
    told = {"name": version, "driver": "flink", "agent": "desk:RefundDesk", "paths": paths, "interpreter": python}
    accepted = {"tool:issue_refund": {"policy": "record", "answer": "accepted"}}
    return Build.model_validate(told | {"resources": accepted} | more)


@pytest.fixture
def replayer(flink_python: Path) -> Iterator[SandboxedReplayer]:
    builds = (
        build("v1", flink_python, live_from="2026-11-01T00:00:00Z"),
        build("v3", flink_python),
        Build(name="beam", agent="a:A", paths=(EXAMPLE,)),
    )
    made = SandboxedReplayer(builds, Confinement())
    yield made
    made.close()


def case(**more: Any) -> Case:
    return Case([EvidenceFile(Role.EVENT_LOG, "events.log", first_run())], key=b"ada", **more)


def test_the_build_that_was_live_reproduces_and_another_is_held_against_it(replayer: SandboxedReplayer) -> None:
    report = replayer.replay("v1", case(), NEVER)
    assert report.verdict.outcome == "reproduced"
    assert report.verdict.attempt is not None
    assert report.verdict.attempt.entity_key == b"ada"
    assert [entry.kind for entry in report.ledger] == ["model", "tool", "model", "tool"]
    assert all(entry.ordinal is not None for entry in report.ledger)
    other = replayer.replay("v3", case(), NEVER)
    assert other.verdict.reason is not None
    assert other.verdict.reason.code == "model_request"
    assert "generous" in other.verdict.headline


def test_supplied_tool_answers_are_used_before_a_stand_in(replayer: SandboxedReplayer) -> None:
    answers = ({"tool": "issue_refund", "arguments": {"order_id": "order-3", "cents": 3300}, "value": "bounced"},)
    report = replayer.replay("v1", case(inputs=RunInputs(answers)), NEVER)
    assert report.verdict.outcome == "irreproducible"  # it differs, and nothing recorded proves that answer
    assert any("bounced" in str(entry.body.get("value")) for entry in report.ledger)


def test_only_a_what_if_has_the_network_that_workers_are_given(flink_python: Path) -> None:
    """And of its builds only the one that is tried: the others are answered from the record."""
    asking = {"chat_model_connection": "allow"}
    builds = (
        build("v1", flink_python, live_from="2026-11-01T00:00:00Z"),
        build("v3", flink_python, resources=asking),
    )
    for network in (False, True):
        replayer = SandboxedReplayer(builds, Confinement(allow_network=network))
        try:
            replayed = replayer.replay("v1", case(), NEVER).verdict
            tried = replayer.replay("v3", case(inputs=RunInputs(what_if=True)), NEVER).verdict
            opened = set(replayer._sandboxes)
        finally:
            replayer.close()
        assert (replayed.outcome, replayed.confinement["network"]) == ("reproduced", "off")
        assert (tried.outcome, tried.confinement["network"]) == ("what-if", "allowed" if network else "off")
        assert opened == {("v1", False), ("v3", network)}


def test_builds_and_evidence_of_different_frameworks_are_told_apart(replayer: SandboxedReplayer) -> None:
    with pytest.raises(BuildProblem, match="evidence is an event log of Flink Agents, and build 'beam'"):
        replayer.replay("beam", case(), NEVER)
    with pytest.raises(BuildProblem, match="'v1' is of Flink Agents, and the evidence is of a Beam agent"):
        replayer.replay("v1", Case(recording("a01_fraud_completed")), NEVER)


def test_several_runs_in_one_log_are_not_one_incident(replayer: SandboxedReplayer) -> None:
    report = replayer.replay("v1", Case([EvidenceFile(Role.EVENT_LOG, "events.log", example_log())]), NEVER)
    assert report.verdict.exit_code == 2
    assert "exactly one run" in report.verdict.headline
