"""Agents of frameworks in the installed package's adapters, as real pipelines recorded them, model clients and all.

`adapters/record.py` made the recordings. What they leave in memory depends on the versions below, so the environment
that `HINDCAST_PEER_PATH` names has to hold just these beside `beam-agents`; elsewhere these tests are skipped, aloud.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.replay import peer
from app.replay.engine import Options, replay
from app.replay.evidence import EvidenceFile, Role
from app.replay.rerun_pb2 import AgentCode
from app.replay.verdict import Outcome, Report
from app.sandbox.runner import Sandbox

RECORDED = Path(__file__).parent / "adapters"
OPENAI = {"openai": "2.54.0"}
VERSIONS = {
    "langgraph": {"langgraph": "1.2.24", "langchain-core": "1.8.3", "langchain-openai": "1.1.16", **OPENAI},
    "pydantic_ai": {"pydantic-ai-slim": "2.21.0", **OPENAI},
}
PRELOAD = {
    "langgraph": ("langchain_openai", "langgraph.prebuilt", "beam_agents.adapters.langgraph"),
    "pydantic_ai": ("pydantic_ai.models.openai", "beam_agents.adapters.pydantic_ai"),
}


@pytest.fixture(scope="module", params=list(VERSIONS))
def adapter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def sandbox(adapter: str) -> Iterator[Sandbox]:
    told = os.environ.get("HINDCAST_PEER_PATH", "/nowhere")
    python = next((path for path in (Path(told, end) for end in ("python", "bin/python")) if path.is_file()), None)
    if python is None:
        pytest.skip("HINDCAST_PEER_PATH names no environment: the adapters of the second driver are not tested here")
    versions = VERSIONS[adapter]
    ask = f"import importlib.metadata as held; print({{name: held.version(name) for name in {list(versions)}}})"
    held = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    if held.stdout.strip() != str(versions):
        told = held.stdout.strip() or held.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"the environment does not hold {versions}: the adapter is not tested here ({told})")
    with Sandbox(interpreter=python, driver=peer.DRIVER, libraries=PRELOAD[adapter]) as sandbox:
        yield sandbox


def run(sandbox: Sandbox, folder: Path, trigger: str) -> Report:
    """Replay one of the two attempts from all that was recorded in a folder, with the agent in it."""
    roles = {Role.EVENT: trigger} | {
        role: f"{role}.bin" for role in (Role.TRACES, Role.SNAPSHOTS, Role.INTENTS, Role.OUTPUTS)
    }
    files = [EvidenceFile(role, name, (folder / name).read_bytes()) for role, name in roles.items()]
    code = AgentCode(
        agent="desk:AGENT", registry="desk:TOOLS", decode="beam_agents.model:openai_compat_decode", paths=[str(folder)]
    )
    return replay(files, sandbox, code, options=Options(ledger_bytes=1 << 20))


@pytest.mark.parametrize("trigger", ["event.pb", "result.pb"])
def test_its_agent_is_reproduced(sandbox: Sandbox, adapter: str, trigger: str) -> None:
    report = run(sandbox, RECORDED / adapter, trigger)
    assert report.verdict.outcome is Outcome.REPRODUCED, report.verdict.headline
    compared = {surface.name for surface in report.verdict.surfaces if surface.compared}
    assert compared >= {"status", "trace events", "intents with arguments", "memory after"}
    assert any("drawn anew in every run" in note for note in report.verdict.notes)
    assert not any("refused" in note for note in report.verdict.notes)
    asked = [entry for entry in report.ledger if entry.kind == "model"]
    assert len(asked) == (2 if trigger == "event.pb" else 1)
    assert "Refund order 7, please." in str(asked[0])


def test_one_that_asks_something_else_is_not(sandbox: Sandbox, adapter: str, tmp_path: Path) -> None:
    report = run(sandbox, changed(adapter, tmp_path, "48.00 EUR", "84.00 EUR"), "event.pb")
    assert report.verdict.outcome is Outcome.IRREPRODUCIBLE, report.verdict.headline
    assert "84.00 EUR" in str(report.verdict.as_json())


def test_one_that_says_something_else_diverges(sandbox: Sandbox, adapter: str, tmp_path: Path) -> None:
    folder = changed(
        adapter, tmp_path, "return await _agent(ctx)", "outcome = await _agent(ctx)\n    return other(outcome)"
    )
    with (folder / "desk.py").open("a") as file:
        file.write("\n\ndef other(outcome):\n    return type(outcome)(b'Never.')\n")
    report = run(sandbox, folder, "result.pb")
    assert report.verdict.outcome is Outcome.DIVERGED, report.verdict.headline
    assert report.verdict.headline == "First divergence at outputs: only in the re-run: Never."


def changed(adapter: str, folder: Path, old: str, new: str) -> Path:
    """A copy of a recording, its agent changed."""
    shutil.copytree(RECORDED / adapter, folder / "changed")
    source = (RECORDED / adapter / "desk.py").read_text()
    assert old in source
    (folder / "changed" / "desk.py").write_text(source.replace(old, new))
    return folder / "changed"
