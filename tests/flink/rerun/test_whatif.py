"""A what-if whose model cannot be reached says nothing of what the build would have done, and is none."""

from pathlib import Path

import pytest

from app.flink.capture import Captured
from app.flink.inside.messages import Handling
from app.flink.rerun.captured import alone
from app.flink.rerun.case import Options
from app.flink.rerun.stretch import Stretch
from tests.fixtures.flink import Runners

AGENTS = Path(__file__).with_name("agents")


@pytest.mark.parametrize("config", [None, "odd:IGNORE"])
def test_a_model_that_the_sandbox_kept_out_of_reach_makes_no_what_if(flink_build: Runners, config: str | None) -> None:
    """Whether the agent fails over it or goes on without an answer, this is the sandbox's doing and not the build's."""
    fed = alone([Captured("k", 0, None, None, "hello")])
    options = Options(live=True, handling={"chat_model_connection:far": Handling(policy="allow")})
    build = flink_build("caller", "odd:Caller", AGENTS, config=config)
    (report,) = Stretch(fed.runs, build, None, options, captured=fed.order).replay().reports
    verdict = report.verdict
    assert verdict.reason is not None
    assert (verdict.exit_code, verdict.reason.code) == (3, "confined")
    assert "models.example" in verdict.headline
    assert "allow_network" in verdict.reason.remedy
    assert verdict.served["executed"] == {"model far": 1}
    (call,) = [entry.body for entry in report.ledger if entry.kind == "model"]
    assert "executed: " in call["outcome"]
