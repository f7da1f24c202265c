"""Whatever happens to a log, no run is lost, none is invented, and every line is in exactly one place."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from app.flink.keys import parse_paths
from app.flink.logs import Log, read_log
from app.flink.neutral import neutral_events
from tests.flink.lines import nested, real, traced_run

PATHS = parse_paths(["$.input.k"])
QUICK = settings(max_examples=60, deadline=None)


def read(lines: list[bytes]) -> Log:
    return read_log(b"".join(line + b"\n" for line in lines), paths=PATHS)


def lines_held(log: Log) -> int:
    return sum(len(run.entries) for run in log.runs) + len(log.unattributed) + len(log.garbage)


@st.composite
def traced_logs(draw: st.DrawFn) -> list[bytes]:
    """Some runs of 0.4, finished or not, interleaved."""
    ends = draw(st.lists(st.booleans(), min_size=1, max_size=6))
    lines = []
    for number, end in enumerate(ends):
        start = draw(st.integers(0, 50)) * 10
        lines += traced_run(f"run-{number}", draw(st.sampled_from("abc")), start, f"text {number}", ends=end)
    return lines


# No newline inside: that would be two lines.
garbage = st.binary(max_size=40).map(lambda data: b"x" + data.replace(b"\n", b" "))


@QUICK
@given(traced_logs(), st.randoms(use_true_random=False), st.lists(garbage, max_size=5), st.integers(0, 10))
def test_order_copies_and_garbage_change_no_run(lines: list[bytes], random: object, noise: list[bytes], n: int) -> None:
    clean = read(lines)
    copies = [lines[random.randrange(len(lines))] for _ in range(n)]  # type: ignore[attr-defined]
    mixed = [*lines, *copies, *noise]
    random.shuffle(mixed)  # type: ignore[attr-defined]
    log = read(mixed)
    assert [run.ref for run in log.runs] == [run.ref for run in clean.runs]
    assert [neutral_events(run) for run in log.runs] == [neutral_events(run) for run in clean.runs]
    assert [run.executions for run in log.runs] == [run.executions for run in clean.runs]
    assert sum(run.duplicates for run in log.runs) == n
    assert lines_held(log) == len(mixed)


@QUICK
@given(traced_logs(), st.data())
def test_a_log_cut_anywhere_holds_the_runs_of_its_whole_lines(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    cut = data.draw(st.integers(0, len(whole)))
    log = read_log(whole[:cut])
    kept = whole[:cut].split(b"\n")
    expected = read([line for line in kept if line in lines])
    assert [run.ref for run in log.runs] == [run.ref for run in expected.runs]
    # A line cut in two is kept as what it is; cut exactly at its end it is whole.
    assert len(log.garbage) == bool(kept[-1] and kept[-1] not in lines)


@QUICK
@given(st.randoms(use_true_random=False), st.sampled_from(["eventlog-0.3.1-file.jsonl", "eventlog-0.3.1-slf4j.jsonl"]))
def test_a_shuffled_nested_log_keeps_its_runs_and_every_record(random: object, name: str) -> None:
    lines = real(name)
    in_order = read(lines)
    random.shuffle(lines)  # type: ignore[attr-defined]
    log = read(lines)
    assert {run.ref for run in log.runs} == {run.ref for run in in_order.runs}
    assert lines_held(log) == len(lines)


@QUICK
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), min_size=1, max_size=12))
def test_every_input_of_a_nested_log_is_one_run_of_its_key(inputs: list[tuple[str, bool]]) -> None:
    lines = []
    for number, (key, answered) in enumerate(inputs):
        lines.append(nested(number * 10, "_input_event", {"input": {"k": key, "text": f"question {number} of {key}"}}))
        if answered:
            lines.append(nested(number * 10 + 1, "_output_event", {"output": f"no {number}"}))
    log = read(lines)
    assert Counter(run.key for run in log.runs) == Counter(key for key, _ in inputs)
    assert lines_held(log) == len(lines)


@QUICK
@given(st.binary(max_size=300))
def test_no_bytes_at_all_are_too_much(data: bytes) -> None:
    log = read_log(data)
    assert log.runs == ()
