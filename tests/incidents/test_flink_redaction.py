"""What a share link shows of a re-run of Flink Agents: shapes, counts and words of ours, and nothing that was said."""

import json
from collections.abc import Callable

import pytest

from app.flink.inside.messages import Handling
from app.flink.rerun.case import Options
from app.flink.rerun.stretch import Stretch
from app.incidents import redacted_verdict
from app.incidents.redaction import Redactor
from app.jobs.flink_runs import SandboxedBuild
from tests.fixtures.flink import example_runs

KEY = b"k" * 32
# A key, an order, words of prompts and answers, names of tools, models and actions, an amount.
SAID = ("ada", "chen", "order-", "generous", "strict", "refund", "desk", "look_up", "on_answer", "5000", "visits")


@pytest.mark.parametrize(("version", "outcome"), [("v2", "diverged"), ("v3", "irreproducible")])
def test_nothing_that_was_said_passes(
    desk: Callable[[str], SandboxedBuild], version: str, outcome: str
) -> None:  # row 23
    handling = {"tool:issue_refund": Handling(answer="accepted", has_answer=True)}
    runs = [run for run in example_runs() if run.key == "chen"][:2]
    replayed = Stretch(runs, desk(version), desk("v1"), Options(begins_empty=True, handling=handling)).replay()
    report = replayed.reports[1]
    assert report.verdict.outcome == outcome
    told = report.verdict.as_json()
    assert all(word in json.dumps(told) for word in ("chen", "desk"))
    hidden = redacted_verdict.verdict(Redactor(KEY), told)
    text = json.dumps(hidden)
    assert [word for word in SAID if word in text] == []
    assert hidden["verdict"] == outcome
    assert hidden["attempt"]["kind"] == "input"
    assert hidden["served"]["mode"] == "replay"
    assert hidden["driver"]["name"] == "hindcast-flink"
    assert {"events", "model requests", "tool calls", "outputs"} <= {one["name"] for one in hidden["surfaces"]}
    if outcome == "irreproducible":
        assert hidden["reason"]["code"] == "model_request"
