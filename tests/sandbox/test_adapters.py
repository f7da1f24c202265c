"""An agent of a framework in the installed package's adapter, as a real pipeline recorded it: LangGraph and a client.

`langgraph/record.py` made the recording. Its state depends on the versions below, so the environment that
`HINDCAST_PEER_PATH` names has to hold just these beside `beam-agents`; elsewhere these tests are skipped, aloud.
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

RECORDED = Path(__file__).parent / "langgraph"
VERSIONS = {"langgraph": "1.2.24", "langchain-core": "1.8.3", "langchain-openai": "1.1.16", "openai": "2.54.0"}
PRELOAD = ("langchain_openai", "langgraph.prebuilt", "beam_agents.adapters.langgraph")
ASK = "; ".join(
    ["import importlib.metadata as held", f"print([held.version(name) for name in {list(VERSIONS)}])"],
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    told = os.environ.get("HINDCAST_PEER_PATH", "/nowhere")
    python = next((path for path in (Path(told, end) for end in ("python", "bin/python")) if path.is_file()), None)
    if python is None:
        pytest.skip("HINDCAST_PEER_PATH names no environment: the adapters of the second driver are not tested here")
    held = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
    if held.stdout.strip() != str(list(VERSIONS.values())):
        pytest.skip(
            f"the environment does not hold {VERSIONS}: the adapters are not tested here ({held.stdout.strip()})"
        )
    with Sandbox(interpreter=python, driver=peer.DRIVER, libraries=PRELOAD) as sandbox:
        yield sandbox


def run(sandbox: Sandbox, trigger: str, folder: Path = RECORDED) -> Report:
    """Replay one of the two attempts from all that was recorded, with the agent in a folder."""
    roles = {Role.EVENT: trigger} | {
        role: f"{role}.bin" for role in (Role.TRACES, Role.SNAPSHOTS, Role.INTENTS, Role.OUTPUTS)
    }
    files = [EvidenceFile(role, name, (RECORDED / name).read_bytes()) for role, name in roles.items()]
    code = AgentCode(
        agent="desk:AGENT", registry="desk:TOOLS", decode="beam_agents.model:openai_compat_decode", paths=[str(folder)]
    )
    return replay(files, sandbox, code, options=Options(ledger_bytes=1 << 20))


@pytest.mark.parametrize("trigger", ["event.pb", "result.pb"])
def test_a_graph_is_reproduced(sandbox: Sandbox, trigger: str) -> None:
    report = run(sandbox, trigger)
    assert report.verdict.outcome is Outcome.REPRODUCED, report.verdict.headline
    compared = {surface.name for surface in report.verdict.surfaces if surface.compared}
    assert compared >= {"status", "trace events", "intents with arguments", "memory after"}
    assert any("drawn anew in every run" in note for note in report.verdict.notes)
    assert not any("refused" in note for note in report.verdict.notes)
    asked = [entry for entry in report.ledger if entry.kind == "model"]
    assert len(asked) == (2 if trigger == "event.pb" else 1)
    assert "Refund order 7, please." in str(asked[0])


@pytest.mark.parametrize(
    ("old", "new", "outcome", "told"),
    [
        ("48.00 EUR", "84.00 EUR", Outcome.IRREPRODUCIBLE, "84.00 EUR"),  # the model was never asked about that
        ('["messages"][-1].content.encode()', '["messages"][0].content.encode()', Outcome.DIVERGED, "output"),
    ],
)
def test_a_changed_graph_is_not(
    sandbox: Sandbox, tmp_path: Path, old: str, new: str, outcome: Outcome, told: str
) -> None:
    source = (RECORDED / "desk.py").read_text()
    assert old in source
    shutil.copytree(RECORDED, tmp_path / "changed")
    (tmp_path / "changed" / "desk.py").write_text(source.replace(old, new))
    report = run(sandbox, "event.pb" if outcome is Outcome.IRREPRODUCIBLE else "result.pb", tmp_path / "changed")
    assert report.verdict.outcome is outcome, report.verdict.headline
    assert told in str(report.verdict.as_json())
