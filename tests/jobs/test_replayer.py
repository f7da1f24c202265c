"""From a queued run to a real verdict: the golden agent, forked in the sandbox, on evidence out of the database."""

import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.incidents import service
from app.incidents.inputs import InputRefused
from app.incidents.service import Report, RunInputs, Store, Voucher
from app.jobs.replayer import BuildProblem, Case, Confinement, SandboxedReplayer
from app.jobs.tasks import ReplayTask
from app.replay.verdict import Outcome, Verdict
from app.replay.whatif import waiting
from app.settings import Build
from tests.golden import corpus
from tests.golden.scenarios import scenario
from tests.incidents.evidence import recording
from tests.sandbox.environments import environment, install
from tests.waiting import PATIENCE_S

NEVER = threading.Event()


def golden_build(name: str, folder: Path, **changes: Any) -> Build:
    values = {"agent": "agent:AGENT", "registry": "agent:TOOLS", "decode": "agent:decode", "paths": (folder,)}
    return Build(name=name, **(values | changes))


@dataclass
class Here:
    """A golden scenario's folder, copied where a test may change it."""

    folder: Path
    replayers: list[SandboxedReplayer] = field(default_factory=list)

    def replayer(self, *builds: Build, **confinement: Any) -> SandboxedReplayer:
        self.replayers.append(SandboxedReplayer(builds, Confinement(**confinement)))
        return self.replayers[-1]


@pytest.fixture
def here(tmp_path: Path) -> Any:
    folder = tmp_path / "fraud"
    folder.mkdir()
    source = (corpus() / "corpus" / "a01_fraud_completed" / "agent.py").read_text()
    (folder / "agent.py").write_text(source)
    made = Here(folder)
    yield made
    for replayer in made.replayers:
        replayer.close()


def test_a_golden_run_reproduces_in_the_sandbox(here: Here) -> None:
    replayer = here.replayer(golden_build("v1", here.folder))
    replayer.warm()
    for _ in range(2):  # the second one from the same warm process
        report = replayer.replay("v1", Case(recording("a01_fraud_completed")), NEVER)
        assert report.verdict.outcome == "reproduced"
        assert report.rows


def test_a_changed_file_changes_the_digest_and_a_wrong_digest_is_refused(here: Here) -> None:
    build = golden_build("v1", here.folder)
    digest = build.files_digest()
    pinned = here.replayer(build.model_copy(update={"digest": digest}))
    assert pinned.digest_of("v1") == digest
    (here.folder / "__pycache__").mkdir()
    (here.folder / "__pycache__" / "agent.cpython-311.pyc").write_bytes(b"compiled")
    assert pinned.digest_of("v1") == digest  # what Python leaves behind is not part of a build
    (here.folder / "agent.py").write_text((here.folder / "agent.py").read_text() + "\n# changed\n")
    with pytest.raises(BuildProblem, match=r"are not those that hindcast\.toml names"):
        pinned.digest_of("v1")


def test_a_changed_file_is_seen_by_the_next_replay(here: Here) -> None:
    replayer = here.replayer(golden_build("v1", here.folder))
    files = recording("a01_fraud_completed")
    assert replayer.replay("v1", Case(files), NEVER).verdict.outcome == "reproduced"
    source = (here.folder / "agent.py").read_text()
    assert "hold_txn" in source
    (here.folder / "agent.py").write_text(source.replace("hold_txn", "free_txn"))
    assert replayer.replay("v1", Case(files), NEVER).verdict.outcome == "diverged"


def test_a_build_runs_in_its_own_environment(here: Here, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    install(tmp_path / "venv", "vendored", "1.0", "")
    source = (here.folder / "agent.py").read_text()
    (here.folder / "agent.py").write_text(f"{source}\nimport vendored\n")
    own = golden_build("own", here.folder, interpreter=python, preload=("vendored",))
    replayer = here.replayer(own, golden_build("ours", here.folder))
    replayer.warm()
    files = recording("a01_fraud_completed")
    ran = replayer.replay("own", Case(files), NEVER).verdict
    assert ran.outcome == "reproduced", ran.headline
    told = replayer.replay("ours", Case(files), NEVER).verdict
    assert told.outcome == "unusable"
    assert "No module named 'vendored'" in told.headline


def test_a_run_says_what_ran_and_suspects_what_is_not_as_in_production(here: Here, tmp_path: Path) -> None:
    # row 16
    python = environment(tmp_path / "venv")
    install(tmp_path / "venv", "vendored", "2.0", "")
    (tmp_path / "lock.txt").write_text("vendored==1.0\nnot-installed==3\n")
    build = golden_build(
        "own", here.folder, interpreter=python, lock=tmp_path / "lock.txt", live_from="2001-01-01T00:00:00Z"
    )
    source = (here.folder / "agent.py").read_text()
    (here.folder / "agent.py").write_text(source.replace("hold_txn", "free_txn"))
    replayer = here.replayer(build, golden_build("ours", here.folder))
    assert replayer.digest_of("own") == build.files_digest()
    told = replayer.replay("own", Case(recording("a01_fraud_completed")), NEVER).verdict
    assert told.outcome == "diverged"
    assert told.code["files"] == build.files_digest()
    assert told.code["packages"]["vendored"] == "2.0"
    assert "sqlalchemy" not in told.code["packages"]
    assert [(one["what"], one["name"]) for one in told.code["suspects"]] == [("package", "vendored")]
    ours = replayer.replay("ours", Case(recording("a01_fraud_completed")), NEVER).verdict
    assert ours.code["suspects"] == []
    assert {"sqlalchemy", "protobuf"} <= set(ours.code["packages"])


def test_an_environment_that_cannot_run_replays_fails_its_own_build(here: Here, tmp_path: Path) -> None:
    bare = golden_build("bare", here.folder, interpreter=environment(tmp_path / "venv", packages=()))
    replayer = here.replayer(bare, golden_build("v1", here.folder))
    replayer.warm()
    files = recording("a01_fraud_completed")
    with pytest.raises(BuildProblem, match=r"build 'bare' cannot be run: .*protobuf>=6\.31,<7 \(not installed\)"):
        replayer.replay("bare", Case(files), NEVER)
    assert replayer.replay("v1", Case(files), NEVER).verdict.outcome == "reproduced"


def test_a_build_that_is_not_configured_is_named(here: Here) -> None:
    with pytest.raises(BuildProblem, match="names no build 'v9'; add it there"):
        here.replayer().replay("v9", Case(recording("a01_fraud_completed")), NEVER)


def test_a_folder_that_must_not_be_opened_is_named(here: Here) -> None:
    replayer = here.replayer(golden_build("v1", Path("/etc")))
    with pytest.raises(BuildProblem, match=r"build 'v1' cannot be run: agent path '/etc'"):
        replayer.replay("v1", Case(recording("a01_fraud_completed")), NEVER)


async def test_from_the_queue_to_the_verdict(
    here: Here, working: Any, request_run: Any, until: Any, store: Store
) -> None:
    replayer = here.replayer(
        golden_build("v1", here.folder), golden_build("v2", here.folder, digest="sha256:" + "0" * 64)
    )
    replayer.warm()
    async with working(replayer):
        done = await until(await request_run("v1"), "done", "failed")
        assert (done.error, done.outcome, done.exit_code) == (None, "reproduced", 0)
        assert done.build_digest == golden_build("v1", here.folder).files_digest()
        assert done.verdict is not None
        assert done.verdict["served"]["provider_calls"] == 0
        refused = await until(await request_run("v2"), "done", "failed")
        assert "bring the files back, or correct the digest" in (refused.error or "")
        took = []
        for _ in range(10):
            run = await until(await request_run("v1"), "done", "failed")
            took.append(run.finished_at - run.created_at)
    print(f"asked to verdict, warm: p50 {sorted(took)[5]} ms, max {max(took)} ms")
    async with store.read() as session:
        window = await service.rows_of(session, done, bodies=True)
    assert window.total == len(window.rows) == 7
    assert all(row.state in ("equal", "normalised") for row in window.rows)


def test_evidence_is_untouched_by_a_replay(here: Here) -> None:  # complaint 15
    files = recording("a01_fraud_completed")
    before = [file.data for file in files]
    here.replayer(golden_build("v1", here.folder)).replay("v1", Case(files), NEVER)
    assert [file.data for file in files] == before == [file.data for file in recording("a01_fraud_completed")]


@pytest.fixture
def golden_replayer() -> Any:
    """A replayer whose builds are golden scenarios' agents, by scenario."""
    made: list[SandboxedReplayer] = []

    def of(*names: str) -> SandboxedReplayer:
        builds = []
        for name in names:
            one = scenario(name)
            code = one.code()
            hooks = {"registry": code.registry or None, "decode": code.decode or None, "config": code.config or None}
            builds.append(golden_build(name, one.folder, agent=code.agent, **hooks))
        made.append(SandboxedReplayer(builds))
        return made[-1]

    yield of
    for replayer in made:
        replayer.close()


def test_a_report_brings_its_ledger(here: Here) -> None:
    report = here.replayer(golden_build("v1", here.folder)).replay("v1", Case(recording("a01_fraud_completed")), NEVER)
    assert {entry.kind for entry in report.ledger} == {"tool", "model", "intent", "memory"}


def test_supplied_answers_stand_in_for_a_tool(golden_replayer: Any) -> None:
    name = "i14_tool_answer_in_prompt"
    files = scenario(name).bundle()
    asked = files[2].data.decode("latin-1").partition("tool-prompt ")[2]
    answer = {"tool": "lookup", "arguments": {"name": asked}, "value": asked.upper()}
    replayer = golden_replayer(name)
    assert replayer.replay(name, Case(files), NEVER).verdict.outcome == "irreproducible"
    verdict = replayer.replay(name, Case(files, inputs=RunInputs((answer,))), NEVER).verdict
    assert verdict.outcome == "reproduced"
    assert [proof["proven"] for proof in verdict.served["supplied"]] == [True]


def test_a_decision_is_tried_and_nothing_compared(golden_replayer: Any) -> None:
    name = "d28_pending_resume_what_if"
    files = scenario(name).bundle()
    intent = waiting(files)[0].intent
    case = Case(files, inputs=RunInputs(decision={"intent": intent, "approved": False}))
    verdict = golden_replayer(name).replay(name, case, NEVER).verdict
    assert (verdict.outcome, verdict.exit_code) == ("what-if", 4)
    with pytest.raises(InputRefused, match="no snapshot waits"):
        golden_replayer(name).replay(
            name, Case(files, inputs=RunInputs(decision={"intent": "x", "approved": True})), NEVER
        )


async def test_a_second_build_is_judged_by_what_the_first_has_vouched_for(
    store: Store, working: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for at once; the second is done first, and waits."""
    monkeypatch.setattr("app.jobs.worker.ReplayTask", partial(ReplayTask, patience_s=PATIENCE_S))
    doubt = {"read": "get('tier')", "why": "written later", "vindicated": False, "proven": True}
    vouched = threading.Event()

    class Two:
        def __init__(self) -> None:
            self.seen: list[tuple[str, frozenset[str]]] = []

        def digest_of(self, build: str) -> str:
            return "sha256:" + "0" * 64

        def replay(self, build: str, case: Case, stop: threading.Event) -> Report:
            self.seen.append((build, case.vindicated))
            if build == "old":
                assert vouched.wait(PATIENCE_S)
                return Report(Verdict(Outcome.REPRODUCED, "", reads=(doubt,)))
            vouched.set()
            known = "get('tier')" in case.vindicated
            outcome = Outcome.DIVERGED if known else Outcome.IRREPRODUCIBLE
            return Report(Verdict(outcome, "", reads=({**doubt, "vindicated": known},)))

    replayer = Two()
    async with store.write() as session:
        incident = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
        ask = [
            await service.request_replay(session, incident, build, who="ada", known=["old", "new"])
            for build in ("old", "new")
        ]
    async with working(replayer, jobs=2):
        first, second = [await until(run, "done", "failed") for run in ask]
    assert (first.outcome, second.outcome) == ("reproduced", "diverged")
    assert replayer.seen[-1] == ("new", frozenset({"get('tier')"}))
    async with store.read() as session:
        found = await service.vouchers(session, second)
    assert found == {"get('tier')": Voucher(1, "old")}
