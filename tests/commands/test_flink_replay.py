"""`hindcast flink replay` as its users call it: exit codes, text, JSON, and what is said of a bad call."""

import gzip
import json
from pathlib import Path

import pytest

from app.cli import main
from tests.fixtures.flink import KEY_PATH, LOG, example_log


@pytest.fixture
def config(desk_config: Path) -> Path:
    return desk_config


def replay(config: Path, *words: str, logs: tuple[Path, ...] = (LOG,)) -> int:
    told = ("--config", str(config), "--key-path", KEY_PATH, "--begins-empty")
    return main(["flink", "replay", *map(str, logs), *told, *words])


def test_one_input_in_full(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(config, "--build", "desk-v2", "--key", "chen", "--seq", "1") == 1
    text = capsys.readouterr().out
    assert text.startswith("diverged: this code does something else\n")
    assert "differs: arguments.cents: recorded 7500, replayed 5000" in text
    assert "recorded by     desk-v1" in text  # found by when it was live
    assert "only recorded            tool issue_refund × 1" in text
    assert "answered from the record model desk_service × 2, tool look_up_order × 1" in text


def test_a_stretch_summed_up_for_a_script(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(config, "--build", "desk-v2", "--format", "json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["exit_code"], told["recorded_by"]) == ("diverged", 1, "desk-v1")
    assert told["sum"]["verdicts"] == {"diverged": 14, "reproduced": 36}
    assert len(told["inputs"]) == 50
    assert {one["verdict"] for one in told["inputs"]} == {"reproduced", "diverged"}
    assert told["inputs"][0]["served"]["executed"] == {}


def test_every_verdict_has_its_exit_code(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = tmp_path / "events.log.gz"
    lines = example_log().splitlines(keepends=True)
    short.write_bytes(gzip.compress(b"".join(lines[:7])))
    assert replay(config, "--build", "desk-v1", logs=(short,)) == 0
    assert replay(config, "--build", "desk-v3", logs=(short,)) == 3
    assert "[-strict.] [+generous.]" in capsys.readouterr().out
    assert replay(config, "--build", "desk-v3", "--what-if", logs=(short,)) == 4
    assert capsys.readouterr().out.startswith("what-if: models were asked anew")
    headless = tmp_path / "headless.log"
    headless.write_bytes(lines[6])
    assert replay(config, "--build", "desk-v1", "--format", "json", logs=(headless,)) == 2


def test_answers_and_memory_from_files(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers, memory = tmp_path / "answers.jsonl", tmp_path / "memory.json"
    refund = {"tool": "issue_refund", "arguments": {"order_id": "order-3", "cents": 3300}, "value": "accepted"}
    answers.write_text(json.dumps(refund) + "\n\n")
    memory.write_text(json.dumps({"ada": {"visits": 0}}))
    given = ("--tool-answers", str(answers), "--memory", str(memory))
    assert replay(config, "--build", "desk-v1", "--key", "ada", "--seq", "0", *given) == 0
    assert "answered from the record model desk_service × 2, tool look_up_order × 1, tool issue_refund × 1" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--build", "nope"), "of Flink Agents it names: desk-v1, desk-v2, desk-v3"),
        (("--build", "beam"), "runs with the driver 'runtime'"),
        (("--build", "desk-v1", "--recorded-by", "nope"), "--recorded-by nope: no such build"),
        (("--build", "desk-v1", "--key", "zoe"), "of the keys: ada, bela, chen, dora, emil"),
        (("--build", "desk-v1", "--seq", "1"), "name it with --key"),
        (("--build", "desk-v1", "--allow-network"), "goes with --what-if"),
        (("--build", "desk-v1", "--key-path", "$..x"), "--key-path"),
        (("--build", "desk-v1", "--memory", "/nowhere"), "/nowhere"),
        (("--build", "desk-v1", "--bundle", "x.zip"), "--bundle holds one run"),
    ],
)
def test_a_bad_call_is_told_in_one_line(
    config: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(config, *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hindcast flink replay: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_file_that_is_no_log(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello\n")
    assert replay(config, "--build", "desk-v1", logs=(other,)) == 2
    assert "no run of Flink Agents in it" in capsys.readouterr().err


def test_beam_s_command_points_to_this_one(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HINDCAST_CONFIG", str(config))
    assert main(["replay", "--build", "desk-v1", "--traces", str(LOG), "--event", str(LOG)]) == 2
    assert "hindcast flink replay" in capsys.readouterr().err
    assert main(["replay", "--agent", "a:A", "--driver", "flink", "--traces", str(LOG), "--event", str(LOG)]) == 2
    assert "hindcast flink replay" in capsys.readouterr().err
