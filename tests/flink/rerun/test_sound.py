"""A child's answer that does not hang together is no answer."""

from typing import Any

import pytest

from app.flink.inside.messages import Call, Ending, Input, InputResult, Outcome, Request, Result, Sent
from app.flink.rerun.sound import problem
from app.jobs.flink_runs import SandboxedBuild
from app.replay.rerun_pb2 import RerunRequest, RerunResult
from app.sandbox.model import Ending as Ended
from app.sandbox.model import Finished
from tests.fixtures.flink import Code

REQUEST = Request(inputs=[Input(key="k", seq=0, value=1)])


def result(**more: Any) -> Result:
    return Result(inputs=[InputResult(**({"key": "k", "seq": 0, "ending": Ending.FINISHED} | more))])


def sent(parent: int | None) -> Sent:
    return Sent(type="t", attributes={}, parent=parent)


def call(**more: Any) -> Call:
    return Call(**({"kind": "tool", "name": "n", "outcome": Outcome.ANSWERED} | more))


def deep(levels: int) -> list[Any]:
    wire: list[Any] = ["v", 1]
    for _ in range(levels):
        wire = ["o", {"x": wire}]
    return wire


@pytest.mark.parametrize(
    "wrong",
    [
        result(key="other"),
        Result(inputs=[]),
        result(events=[sent(0)]),
        result(events=[sent(None), sent(7)]),
        result(events=[sent(None)], calls=[call(event=3)]),
        result(events=[sent(None)], calls=[call(event=0, sent=9)]),
        result(calls=[call(kind="model", request=None)]),
        result(ending=Ending.MISSED),
        result(memory=["o"]),
        result(memory=["o", ["x"]]),
        result(memory=["?", {}]),
        result(memory=deep(300)),
        Result(refusal="no", inputs=[InputResult(key="k", seq=0, ending=Ending.FINISHED)]),
    ],
)
def test_what_does_not_hang_together(wrong: Result) -> None:
    assert problem(REQUEST, wrong)


def test_what_does() -> None:
    good = result(
        events=[sent(None), sent(0)],
        calls=[call(event=0, sent=1), call(kind="model", request={"messages": []}, event=1, sent=2)],
        memory=deep(5),
    )
    assert problem(REQUEST, good) is None


@pytest.mark.parametrize("payload", [b"", b"no JSON", b'{"inputs": 7}', b'{"inputs": [], "else": 1}', b"[" * 100_000])
def test_an_answer_that_is_none_is_garbled(payload: bytes) -> None:
    def confined(request: RerunRequest) -> Finished:
        return Finished(RerunResult(payload=payload), Ended.FINISHED)

    ran = SandboxedBuild(Code("x", "a:A", ()), confined).run(REQUEST)
    assert (ran.result, ran.ending) == (None, "garbled_result")
