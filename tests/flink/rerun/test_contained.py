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


@pytest.mark.parametrize(("pot", "told"), [("red", {"pot": "red"}), ("waiting", {"pot": "waiting", "most": 9})])
@pytest.mark.parametrize("policy", list(Policy))
def test_only_allow_runs_a_durable_function(
    flink_python: Path, tmp_path: Path, policy: Policy, pot: str, told: dict[str, object]
) -> None:
    """Its result is in no event log: it is handed in, or the run ends there by name, and nothing is drawn again."""
    trace = tmp_path / "canary"
    kept = ToolAnswer(tool="canary.draw", digest=tool_digest("canary.draw", told), value=4, supplied=True)
    handling = {"function:canary.draw": Handling(policy=policy)}
    given = [Input(key="k", seq=0, value=pot), Input(key="k", seq=1, value=pot, tools=[kept])]
    without, handed_in = feed(
        flink_python, "canary:Drawing", Request(handling=handling, inputs=given), CANARY=str(trace)
    ).inputs
    assert trace.exists() is (policy is Policy.ALLOW)
    ended = {
        Policy.ALLOW: ("finished", "finished"),
        Policy.BLOCK: ("refused", "refused"),
        Policy.RECORD: ("missed", "finished"),
        Policy.RECORDED: ("missed", "finished"),
    }[policy]
    assert (without.ending, handed_in.ending) == ended
    assert [call.request for call in (*without.calls, *handed_in.calls)] == [told] * 2
    if "missed" in ended:
        assert without.detail == "no event log holds what the durable function canary.draw gave"
        assert handed_in.events[-1].attributes["output"] == {"drawn": 4}
        assert handed_in.calls[-1].outcome is Outcome.ANSWERED


def test_a_stand_in_answers_a_durable_function_where_one_is_configured(flink_python: Path, tmp_path: Path) -> None:
    handling = {"function:canary.draw": Handling(answer=5, has_answer=True)}
    request = Request(live=True, handling=handling, inputs=[Input(key="k", seq=0, value="red")])
    (done,) = feed(flink_python, "canary:Drawing", request, CANARY=str(tmp_path / "canary")).inputs
    assert done.events[-1].attributes["output"] == {"drawn": 5}
    assert done.calls[-1].outcome is Outcome.STAND_IN
    assert not (tmp_path / "canary").exists()


def test_the_rehearsal_goes_through(flink_python: Path) -> None:
    """What runs once in every pre-loaded process, where a failure would pass in silence."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from app.flink.inside import rehearsal;"
        " print(rehearsal.rehearsed().model_dump_json())"
    )
    done = subprocess.run([flink_python, "-c", code], capture_output=True, text=True, check=True)
    (rehearsed,) = Result.model_validate_json(done.stdout.splitlines()[-1]).inputs
    assert rehearsed.ending == "finished"
    assert rehearsed.events[-1].attributes["output"] == {"said": "done", "seen": "rehearse é"}
