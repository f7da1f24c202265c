"""No tool body runs: shown without any sandbox, by what a body would leave behind."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from app.flink.inside.messages import Handling, Input, Outcome, Policy, Request, Result, ToolAnswer, tool_digest

ROOT = Path(__file__).resolve().parents[3]
AGENTS = Path(__file__).with_name("agents")

_FEED = """
import sys
sys.path.insert(0, {root!r})
from app.flink.inside import driver
from app.flink.inside.messages import Request
result = driver.feed(Request.model_validate_json(sys.stdin.read()), {agent!r}, "", [{agents!r}])
sys.stdout.write("\\n" + result.model_dump_json())
"""


def feed(python: Path, agent: str, request: Request, **environment: str) -> Result:
    """Run the engine with nothing around it."""
    code = _FEED.format(root=str(ROOT), agent=agent, agents=str(AGENTS))
    done = subprocess.run(
        [python, "-c", code],
        input=request.model_dump_json(),
        env={"PATH": "/usr/bin", **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Result.model_validate_json(done.stdout.splitlines()[-1])


@pytest.fixture
def listener() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield server


def knocked(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("policy", list(Policy))
def test_only_allow_runs_a_tool(flink_python: Path, tmp_path: Path, listener: socket.socket, policy: Policy) -> None:
    canary = tmp_path / "canary"
    answer = ToolAnswer(tool="sing", digest=tool_digest("sing", {"song": "la"}), value="recorded")
    request = Request(handling={"tool:sing": Handling(policy=policy)},
                      inputs=[Input(key="k", seq=0, value="la", tools=[answer])])  # fmt: skip
    port = listener.getsockname()[1]
    result = feed(flink_python, "canary:Canary", request, CANARY=str(canary), CANARY_PORT=str(port))
    (done,) = result.inputs
    (call,) = [one for one in done.calls if one.kind == "tool"]
    assert call.request == {"song": "la"}
    ran = policy is Policy.ALLOW
    assert canary.exists() is ran
    assert knocked(listener) is ran
    if policy is Policy.BLOCK:
        assert (done.ending, call.outcome) == ("refused", Outcome.REFUSED)
        assert "block" in done.detail
        return
    assert call.outcome is (Outcome.EXECUTED if ran else Outcome.ANSWERED)
    assert json.loads(done.events[-1].attributes["output"]) == ({"heard": "sung"} if ran else {"heard": "recorded"})


def test_without_an_answer_the_run_ends_at_the_call(flink_python: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    request = Request(inputs=[Input(key="k", seq=0, value="la")])
    result = feed(flink_python, "canary:Canary", request, CANARY=str(canary), CANARY_PORT="9")
    (done,) = result.inputs
    assert done.ending == "missed"
    assert done.calls[-1].outcome is Outcome.MISSED
    assert not canary.exists()
    assert [event.type for event in done.events] == ["_input_event"]


def test_the_rehearsal_goes_through(flink_python: Path) -> None:
    """What runs once in every pre-loaded process, where a failure would pass in silence."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from app.flink.inside import rehearsal;"
        " print(rehearsal.rehearsed().model_dump_json())"
    )
    done = subprocess.run([flink_python, "-c", code], capture_output=True, text=True, timeout=110, check=True)
    (rehearsed,) = Result.model_validate_json(done.stdout.splitlines()[-1]).inputs
    assert rehearsed.ending == "finished"
    assert rehearsed.events[-1].attributes["output"] == {"said": "done", "seen": "rehearse é"}
