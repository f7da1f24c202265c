"""A folder of bundles as a regression suite: exit code, summary, JUnit."""

import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from app.cli import main
from app.incidents.bundle import Bundle, write
from tests.golden.scenarios import Scenario, has_valid_command, names, scenario


def same_agent() -> list[Scenario]:
    """Scenarios that one and the same agent file recorded and replays, so that one build serves them all."""
    every = [scenario(name) for name in names("corpus") if has_valid_command(scenario(name))]
    plain = [one for one in every if len(one.argv) >= 12 and not one.has_config]
    common, _ = Counter((one.folder / "agent.py").read_bytes() for one in plain).most_common(1)[0]
    return [one for one in plain if (one.folder / "agent.py").read_bytes() == common]


def fill(folder: Path, scenarios: list[Scenario]) -> None:
    folder.mkdir(parents=True)
    for one in scenarios:
        files = tuple(one.bundle())
        bundle = Bundle(files=files, sources=tuple({"kind": "file"} for _ in files), seq=one.seq)
        (folder / f"{one.name}.zip").write_bytes(write(bundle))


def run(folder: Path, agent: Path, *more: str) -> int:
    hooks = ["--agent", "agent:AGENT", "--registry", "agent:TOOLS", "--decode", "agent:decode"]
    return main(["replay", "--bundles", str(folder), *hooks, "--agent-path", str(agent), *more])


def test_every_bundle_gets_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenarios = [one for one in same_agent() if one.name[0] in "ai" or one.name[:3] in ("d28", "d36")]
    fill(tmp_path / "bundles", scenarios)
    code = run(tmp_path / "bundles", scenarios[0].folder, "--format", "json", "--junit", str(tmp_path / "junit.xml"))
    summary = json.loads(capsys.readouterr().out)
    assert summary["bundles"] == len(scenarios) > 20
    for result in summary["results"]:
        assert result["exit_code"] in scenario(result["bundle"].removesuffix(".zip")).right("bundle"), result
        assert result["report"]["verdict"] == result["verdict"]
    assert sum(summary["counts"].values()) == len(scenarios)
    assert code == 2  # d36 is unusable, and nothing diverged
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert int(suite.get("tests", "")) == len(scenarios)
    assert int(suite.get("errors", "")) == summary["counts"]["unusable"] == 1
    assert int(suite.get("skipped", "")) == summary["counts"]["irreproducible"] + summary["counts"]["what-if"]
    assert int(suite.get("failures", "")) == 0


def test_a_divergence_is_the_exit_code_and_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = scenario("d01_intent_order")
    fill(tmp_path / "bundles", [changed])
    (tmp_path / "bundles" / "broken.zip").write_bytes(b"PK nothing")
    junit = tmp_path / "junit.xml"
    assert run(tmp_path / "bundles", changed.folder, "--junit", str(junit), "--jobs", "1") == 1
    out = capsys.readouterr().out
    assert "d01_intent_order.zip  diverged: First divergence at event 4" in out
    assert "broken.zip" in out
    assert "1 diverged, 1 unusable" in out
    kinds = {case.get("name"): [child.tag for child in case] for case in ElementTree.parse(junit).getroot()}
    assert kinds == {"broken.zip": ["error"], "d01_intent_order.zip": ["failure"]}


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, tmp_path) == 2
    assert "holds no *.zip" in capsys.readouterr().err
    assert run(tmp_path / "nowhere", tmp_path) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_terminal_sees_how_far_it_has_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scenario("a01_fraud_completed")
    fill(tmp_path / "bundles", [one])
    assert run(tmp_path / "bundles", one.folder) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run(tmp_path / "bundles", one.folder) == 0
    out, err = capsys.readouterr()
    assert "1 of 1 bundles" in err
    assert out.endswith(": 1 reproduced\n")
