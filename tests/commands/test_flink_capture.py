"""`hindcast flink replay --capture`: captured inputs are fed, whole and in their order, or what is wrong is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.flink.capture import About, Captured, CaptureWriter, Typed
from app.flink.logs import read_log
from app.flink.records import INPUT
from app.flink.rerun.captured import matched
from app.flink.rerun.recorded import numbered
from tests.fixtures.flink import KEY_PATH, LOG, example_log, example_log_without, example_runs
from tests.flink.lines import traced_run

ABOUT = About("desk", Typed("STRING", "StringSerializer"), Typed("ROW", "PickledRow"), 128, "0" * 64)
Write = Callable[..., Path]


def recorded() -> list[Captured]:
    """What a gate before the desk would have captured on that morning."""
    counts: dict[str, int] = {}
    inputs = []
    for run in sorted(example_runs(), key=lambda one: one.first_ns):
        key = str(run.key)
        seq = counts.get(key, 0)
        counts[key] = seq + 1
        (given,) = [record for record in run.records if record.type == INPUT]
        inputs.append(Captured(key, seq, given.time_ms, None, given.attributes["input"]))
    return inputs


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(inputs: list[Captured]) -> Path:
        folder = tmp_path / "capture"
        with CaptureWriter(folder, ABOUT, part_bytes=500) as writer:
            for one in inputs:
                writer.append(one)
        return folder

    return written


def run(config: Path, capture: Path, *words: str, logs: tuple[Path, ...] = (LOG,)) -> int:
    told = ("--config", str(config), "--key-path", KEY_PATH, "--begins-empty", "--capture", str(capture))
    return main(["flink", "replay", *map(str, logs), *told, *words])


def cut(tmp_path: Path) -> Path:
    """The log as STANDARD level would have written it: no input is whole."""
    lines = []
    for line in example_log().splitlines():
        told = json.loads(line)
        event = told.get("event", told)
        attributes = event["attributes" if "event" in told else "eventAttributes"]
        if told.get("eventType", event.get("eventType")) == INPUT:
            given = attributes["input"]
            name = next(name for name, value in given.items() if name != "customer" and isinstance(value, str))
            given[name] = {"truncatedString": given[name][:2], "omittedChars": max(1, len(given[name]) - 2)}
        lines.append(json.dumps(told, separators=(",", ":")).encode())
    file = tmp_path / LOG.name
    file.write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    return file


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_a_captured_stretch_is_fed_in_the_order_of_the_capture(
    desk_config: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = sorted(recorded(), key=lambda one: one.key)  # key by key, as parts of subtasks come
    capture = write(inputs)
    assert run(desk_config, capture, "--build", "desk-v2", "--format", "json") == 1
    found = told(capsys)
    assert [(one["key"], one["seq"]) for one in found["inputs"]] == [(one.key, one.seq) for one in inputs]
    assert found["sum"]["verdicts"] == {"diverged": 14, "reproduced": 36}
    assert found["capture"] == {"inputs": 50, "fed": 50, "log": True, "without_run": [], "without_input": []}


def test_what_the_log_cut_short_is_fed_whole(
    desk_config: Path, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, log = write(recorded()), cut(tmp_path)
    asked = ("--build", "desk-v1", "--key", "chen", "--format", "json")
    assert run(desk_config, capture, *asked, logs=(log,)) == 0
    assert set(told(capsys)["sum"]["verdicts"]) == {"reproduced"}
    without = ["--config", str(desk_config), "--key-path", KEY_PATH, "--begins-empty"]
    assert main(["flink", "replay", str(log), *without, *asked]) == 3
    assert {one["reason"] for one in told(capsys)["sum"]["unknown"]} == {"truncated"}


def test_what_has_no_counterpart_is_named_and_not_fed(
    desk_config: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = recorded()
    chen = [one for one in inputs if one.key == "chen"]
    more = Captured("chen", len(chen), None, None, chen[0].payload)
    ada = [one for one in inputs if one.key == "ada"][1:]  # the gate was set up after ada's first input
    capture = write([*chen, more, *ada])
    assert run(desk_config, capture, "--build", "desk-v1") == 3
    text = capsys.readouterr().out
    assert f"captured, but not in the log, and not fed (1): chen #{len(chen)}" in text
    assert "in the log, but not captured, and not fed (" in text
    assert "ada #0" in text.partition("in the log, but not captured")[2]
    # What ada's first input left in memory nobody knows, so nothing that reads it is called a difference.
    assert run(desk_config, capture, "--build", "desk-v1", "--format", "json") == 3
    found = told(capsys)
    by_key = {key: {one["verdict"] for one in found["inputs"] if one["key"] == key} for key in ("ada", "chen")}
    assert by_key["chen"] == {"reproduced"}
    assert "diverged" not in by_key["ada"]
    assert {one["reason"] for one in found["sum"]["unknown"]} == {"memory_unknown"}
    assert run(desk_config, capture, "--build", "desk-v1", "--key", "ada", "--seq", "0") == 2
    assert "it holds no input of what was asked for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lost", "sure", "said"),
    [
        ((3,), 3, "captured input 3"),
        ((0,), 0, "captured input 0"),
        ((2, 3, 5), 2, "some of the captured inputs 1 to 3"),  # 1 and 2 are equal: either may be the one that is there
    ],
)
def test_an_input_that_the_log_lacks_is_named_and_the_others_are_judged(
    desk_config: Path,
    write: Write,
    tmp_path: Path,
    lost: tuple[int, ...],
    sure: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The capture counts: which input has no run is known, and what it left in memory is not."""
    log = tmp_path / LOG.stem
    log.write_bytes(example_log_without("ada", *lost))
    capture = write(recorded())
    assert run(desk_config, capture, "--build", "desk-v2", "--format", "json", logs=(log,)) == 1
    found = told(capsys)
    assert found["capture"]["without_run"] == [{"key": "ada", "seq": seq} for seq in lost]
    assert found["capture"]["fed"] == 50 - len(lost)
    ada = [one for one in found["inputs"] if one["key"] == "ada"]
    after = ada[sure:]
    assert {(one["verdict"], one["reason"]["code"]) for one in after} == {("irreproducible", "run_missing")}
    assert said in after[0 if len(lost) == 1 else -1]["headline"]
    assert {one["verdict"] for one in ada[:sure]} <= {"reproduced", "diverged"}
    others = [one["verdict"] for one in found["inputs"] if one["key"] != "ada"]
    assert set(others) == {"reproduced", "diverged"}
    assert len(others) == len([one for one in recorded() if one.key != "ada"])
    assert run(desk_config, capture, "--build", "desk-v1", "--key", "chen", logs=(log,)) == 0
    assert f"captured, but not in the log, and not fed ({len(lost)}): ada #{lost[0]}" in capsys.readouterr().out


def test_where_equal_inputs_leave_it_open_which_is_missing_that_is_said() -> None:
    runs = read_log(b"\n".join([*traced_run("r1", "7", 1, "a"), *traced_run("r2", "7", 100, "b"),
                                *traced_run("r3", "7", 200, "c")]) + b"\n", "events.log").runs  # fmt: skip
    inputs = [Captured(7, seq, None, None, {"k": "7", "text": text}) for seq, text in enumerate("abbc")]
    fed = matched(runs, inputs)
    assert len(fed.without_run) == 1
    assert (fed.gaps, fed.unsure) == ({"r3": ("some of the captured inputs 1 to 2",)}, {"r2"})
    assert [one.value for one in numbered(fed.runs)] == [{"k": "7", "text": text} for text in "abc"]


def test_equal_inputs_do_not_hide_that_one_is_missing() -> None:
    """Two of three: whether the first, or the last, or the one between is lost, the runs look alike."""
    runs = read_log(
        b"\n".join([*traced_run("r1", "7", 1, "a"), *traced_run("r2", "7", 100, "a")]) + b"\n", "events.log"
    )
    inputs = [Captured(7, seq, None, None, {"k": "7", "text": "a"}) for seq in range(3)]
    fed = matched(runs.runs, inputs)
    assert (fed.gaps, fed.unsure) == ({}, {"r1", "r2"})
    assert matched(runs.runs, inputs[:2]).unsure == frozenset()


def test_an_input_whose_place_is_open_is_not_guessed() -> None:
    """It was cut short, and either of two captured inputs may be it: it is fed with neither."""
    lines = [*traced_run("r1", "7", 1, "a"), *traced_run("r2", "7", 100, "?")[1:], *traced_run("r3", "7", 200, "d")]
    runs = read_log(b"\n".join(lines) + b"\n", "events.log").runs
    inputs = [Captured(7, seq, None, None, {"k": "7", "text": text}) for seq, text in enumerate("abcd")]
    fed = matched(runs, inputs)
    assert [one.input_missing for one in fed.runs] == [False, True, False]


def test_a_gate_may_count_from_anywhere(desk_config: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = [Captured(one.key, one.seq + 7, None, None, one.payload) for one in recorded()]
    assert run(desk_config, write(inputs), "--build", "desk-v1", "--key", "ada") == 0
    assert "capture: 50 inputs, 50 of them with a run" in capsys.readouterr().out


def test_without_a_log_it_is_a_what_if(desk_config: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    capture = write(recorded()[:3])
    assert run(desk_config, capture, "--build", "desk-v3", "--format", "json", logs=()) == 4
    found = told(capsys)
    assert (found["verdict"], found["recorded_by"], found["capture"]["log"]) == ("what-if", None, False)
    assert {one["verdict"] for one in found["inputs"]} == {"what-if"}
    assert found["inputs"][0]["served"]["mode"] == "what-if"
    # A build whose model may not be asked has nothing to answer with: it ended before anything could be said of it.
    assert run(desk_config, capture, "--build", "desk-v1", logs=()) == 3
    assert '"chat_model_connection:desk_service" = "allow"' in capsys.readouterr().out


def damaged(capture: Path) -> None:
    part = capture / "part-00001.jsonl"
    part.write_bytes(part.read_bytes().replace(b"order", b"0rder", 1))


def unfinished(capture: Path) -> None:
    (capture / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("harm", "said"),
    [(damaged, "part-00001.jsonl: has the sha256"), (unfinished, "manifest.json: there is none")],
)
def test_a_capture_that_is_not_whole_is_refused_with_the_place(
    desk_config: Path, write: Write, harm: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = write(recorded())
    harm(capture)
    assert run(desk_config, capture, "--build", "desk-v1") == 2
    captured = capsys.readouterr()
    assert (captured.out, said in captured.err) == ("", True), captured.err


def test_what_contradicts_the_log_is_refused(
    desk_config: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = recorded()
    chen = [one for one in inputs if one.key == "chen"]
    swapped = [Captured("chen", at, None, None, one.payload) for at, one in enumerate((chen[1], chen[0], *chen[2:]))]
    assert run(desk_config, write(swapped), "--build", "desk-v1") == 2
    assert "key chen, number 0: the capture holds" in capsys.readouterr().err


def test_an_input_that_the_log_lacks_is_taken_from_the_capture() -> None:
    lines = [*traced_run("r1", "7", 1, "a")[1:], *traced_run("r2", "7", 100, "b")]
    runs = read_log(b"\n".join(lines) + b"\n", "events.log").runs
    assert [one.input_missing for one in runs] == [True, False]
    inputs = [Captured(7, seq, None, None, {"k": "7", "text": text}) for seq, text in enumerate("ab")]
    fed = matched(runs, inputs)
    assert (fed.order, fed.without_run, fed.without_input) == (("r1", "r2"), (), ())
    assert [one.value for one in numbered(fed.runs)] == [one.payload for one in inputs]
    assert not any(one.input_missing for one in fed.runs)
