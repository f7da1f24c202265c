"""The command as a person and as a script meet it: exit codes, text, JSON, and how it fails."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.replay.whatif import waiting
from tests.golden.scenarios import names, scenario


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run where no configuration file is."""
    monkeypatch.chdir(tmp_path)


def run(argv: list[str]) -> int:
    try:
        return main(["replay", *argv])
    except SystemExit as stop:  # argparse
        return int(stop.code or 0)


def in_folder(name: str, *more: str) -> list[str]:
    """The scenario's own command line, with its files named from here."""
    one = scenario(name)
    argv = one.command()
    for option in ("--snapshot", "--traces", "--event"):
        if option in argv:
            at = argv.index(option) + 1
            argv[at] = str(one.folder / argv[at])
    return [*argv, *more]


# Bad input of every kind, and one scenario of each verdict; all the others run in one sandbox elsewhere.
CHOSEN = [
    name for name in names("corpus") if name[0] in "bct" or name[:3] in ("a01", "a21", "d01", "d28", "i10", "u06")
]


@pytest.mark.parametrize("name", CHOSEN)
def test_exit_code(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(in_folder(name))
    out, err = capsys.readouterr()
    assert code in scenario(name).right("bundle"), out + err
    assert out or err
    assert "Traceback" not in err


def verdict(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = run([*argv, "--format", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == code
    return found


def test_json_holds_the_whole_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    # complaint 1
    found = verdict(in_folder("u01_changed_tool_args"), capsys)
    assert found["verdict"] == "diverged"
    assert found["attempt"]["entity_key"] == {"hex": "636172642d34323432", "text": "card-4242"}
    (difference,) = found["differences"]
    assert difference == {
        "ordinal": 4,
        "surface": "intents with arguments",
        "event_type": "INTENT_EMITTED",
        "label": "TOOL",
        "span_id": "5bbe48d5d8085024",
        "step_index": 2,
        "field": "args.amount",
        "recorded": "991",
        "replayed": "991000",
        "class": "changed",
        "cause": None,
    }
    assert found["first_divergence"] == 4
    assert {(n["field"], n["recorded"], n["replayed"]) for n in found["normalised"]} == {
        ("beam_agents.cache_hit", "false", "true"),
        ("beam_agents.billed", "true", "false"),
    }
    assert found["served"]["mode"] == "cache-first"
    assert (found["served"]["cache_hits"], found["served"]["provider_calls"]) == (2, 0)
    assert found["served"]["tools_reexecuted"] == 1
    surfaces = {surface["name"]: surface for surface in found["surfaces"]}
    assert surfaces["outputs"]["compared"] is False
    assert surfaces["outputs"]["detail"]
    assert surfaces["memory after"]["state"] == "equal"
    assert found["confinement"]["tier"] in ("namespaces", "baseline")
    assert found["driver"]["name"] == "hindcast"
    files = {file["role"]: file for file in found["digests"]["files"]}
    assert len(files["snapshot"]["sha256"]) == 64


def test_text_names_the_first_divergence_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(in_folder("d01_intent_order")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("diverged: ")
    assert "First divergence at event 4, INTENT_EMITTED TOOL hold_txn" in lines[1]
    assert "recorded" in lines[1]
    assert "\x1b[" not in "".join(lines)
    assert any("follows from event 4" in line for line in lines)


def test_a_decision_that_is_tried_lists_what_would_be_emitted(capsys: pytest.CaptureFixture[str]) -> None:
    name = "d28_pending_resume_what_if"
    pay, approval = waiting(scenario(name).bundle())
    assert run(in_folder(name, "--approve", approval.intent)) == 4
    out = capsys.readouterr().out
    assert "would be emitted (nothing was sent)" in out
    assert re.search(r"^  intent pay  \S", out, re.MULTILINE), out
    assert re.search(r"^  output \S", out, re.MULTILINE), out
    assert f"id {pay.intent}" not in out  # the one that waits has been sent long since


def test_a_miss_names_the_key_and_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict(in_folder("i10_prompt_changed"), capsys)
    assert found["verdict"] == "irreproducible"
    assert found["reason"]["code"] == "request_changed"
    assert found["reason"]["details"]["request"]["model"] == "risk-large-1"
    assert found["served"]["provider_calls"] == 1


def test_every_stream_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    raw = scenario("u02_changed_output").folder / "raw"
    streams = [f"--{role}={raw / role}.bin" for role in ("snapshots", "events", "intents", "outputs", "errors")]
    assert run(in_folder("u02_changed_output")) == 0
    assert "? outputs" in capsys.readouterr().out
    found = verdict(in_folder("u02_changed_output", *streams), capsys)
    assert found["verdict"] == "diverged"
    assert found["differences"][0]["surface"] == "outputs"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--agent", "agent"], "--agent 'agent' is not of the form module:attribute"),
        (["--registry", ":TOOLS"], "--registry ':TOOLS' is not of the form module:attribute"),
        (["--agent-path", "nowhere"], "--agent-path nowhere: no such folder"),
        (["--agent-path", "/"], "/"),
        (["--snapshot", "nope.pb"], "nope.pb: No such file or directory"),
        (["--build", "v1"], "exclude each other"),
        (["--driver", "other"], "--driver: there is no driver 'other'; there are runtime"),
        (["--interpreter", "/bin/true"], "/bin/true does not answer as Python does; name the python of an environment"),
    ],
)
def test_a_bad_invocation_names_the_option(change: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(in_folder("a01_fraud_completed", *change)) == 2
    assert message in capsys.readouterr().err


def test_a_missing_agent_says_how_to_name_one(capsys: pytest.CaptureFixture[str]) -> None:
    one = scenario("a01_fraud_completed").folder
    assert run(["--traces", str(one / "traces.pb"), "--event", str(one / "event.pb")]) == 2
    assert "--agent module:attribute" in capsys.readouterr().err


def test_a_broken_bundle_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.zip").write_bytes(b"not a zip")
    assert run(["--bundle", "b.zip", "--agent", "agent:AGENT"]) == 2
    assert "b.zip" in capsys.readouterr().err


def test_a_fault_of_ours_is_no_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("app.replay.engine.replay", broken)
    assert run(in_folder("a01_fraud_completed")) == 70
    err = capsys.readouterr().err
    assert "not a verdict" in err
    assert "a bug" in err


def test_an_agent_that_refers_to_what_we_do_not_serve_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.py").write_text("from beam_agents.nothing_of_the_kind import X\n")
    argv = in_folder("a01_fraud_completed", "--agent-path", str(tmp_path))
    argv[argv.index("--agent") + 1] = "other:X"
    assert run(argv) == 2
    assert "beam_agents.nothing_of_the_kind" in capsys.readouterr().out
