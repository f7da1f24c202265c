"""The four real logs, and what goes wrong in logs: every record is somewhere, and says what it is."""

from __future__ import annotations

import json

import pytest

from app.flink.assemble import assemble
from app.flink.keys import find_key, parse_path, parse_paths
from app.flink.logs import Log, read_log
from app.flink.model import Ended, How, Run, RunStatus, Twice
from app.flink.neutral import neutral_events
from app.flink.placing import Placer
from app.flink.records import Garbage, Record, read_line, stream_of_name
from tests.flink.lines import event_id, flat, nested, real, traced_run

PATHS = parse_paths(["$.input.k"])


def read(lines: list[bytes], name: str = "") -> Log:
    return read_log(b"\n".join(lines) + b"\n", name, PATHS)


def only(lines: list[bytes]) -> Run:
    (run,) = read(lines).runs
    return run


def record(line: bytes) -> Record:
    found = read_line(line)
    assert isinstance(found, Record), found
    return found


def test_a_nested_log_with_interleaved_keys_is_parted_into_its_runs() -> None:
    log = read(real("eventlog-0.3.1-file.jsonl"))
    assert [(run.key, run.status, len(run.entries)) for run in log.runs] == [
        ("c1", RunStatus.COMPLETED, 6),
        ("c2", RunStatus.COMPLETED, 4),
        ("c1", RunStatus.COMPLETED, 6),
    ]
    assert log.unattributed == log.garbage == ()
    first = [event.title for event in neutral_events(log.runs[0])]
    assert first == [
        "INPUT",
        "CHAT_REQUEST llm",
        "TOOL_REQUEST issue_refund",
        "TOOL_RESPONSE",
        "CHAT_RESPONSE",
        "OUTPUT",
    ]
    # What rests on a conclusion says so, what is named does not.
    assert [str(entry.how) for entry in log.runs[0].entries] == [
        "input", "content", "content", "request id", "request id", "content",
    ]  # fmt: skip
    assert not any(run.verbose for run in log.runs)


def test_a_job_that_came_back_is_two_streams_and_its_last_runs_are_unfinished() -> None:
    log = read(real("eventlog-0.3.1-slf4j.jsonl"))
    assert [(run.key, run.stream.job[:4], str(run.status)) for run in log.runs] == [
        ("c1", "296e", "completed"),
        ("c2", "296e", "completed"),
        ("c1", "296e", "completed"),
        ("c1", "e79d", "completed"),
        ("c2", "e79d", "unfinished"),
        ("c1", "e79d", "unfinished"),
    ]
    assert log.unattributed == ()
    waiting = log.runs[-1].executions
    assert [(one.type, one.name, str(one.status)) for one in waiting] == [
        ("llm", "llm", "unfinished"),
        ("tool", "issue_refund", "unfinished"),
    ]
    assert all(one.concluded for one in waiting)


def test_a_traced_log_tells_what_failed_and_what_led_to_it() -> None:
    run = read(real("eventlog-head-failed-tool.jsonl")).runs[-1]
    assert run.verbose
    assert run.problem_categories == ("tool_call_failed",)
    failed = next(one for one in run.executions if one.status is Ended.FAILED)
    assert (failed.name, failed.error_type, failed.error) == (
        "issue_refund", "builtins.RuntimeError", "payment gateway said no",
    )  # fmt: skip
    by_id = {one.id: one for one in run.executions}
    chain = [failed]
    while chain[-1].parent is not None:
        chain.append(by_id[chain[-1].parent])
    assert [one.name for one in chain] == ["issue_refund", "tool_call_action", "chat_model_action", "on_input"]


def test_an_execution_that_never_ended_is_unfinished() -> None:
    run = only(traced_run("r1", "k", 5, "hello", ends=False))
    assert run.status is RunStatus.UNFINISHED
    assert run.unfinished == 2


def test_the_same_event_again_is_kept_once_counted_and_named() -> None:
    lines = traced_run("r1", "k", 5, "hello")
    again = json.loads(lines[-1])
    relined = json.dumps({**again, "timestamp": "2026-11-29T19:01:00Z", "executionId": "r1-b"}).encode()
    other = json.dumps({**again, "timestamp": "2026-11-29T19:02:00Z", "eventAttributes": {"output": "else"}}).encode()
    run = only([*lines, lines[0], relined, other])
    assert [str(entry.twice) for entry in run.entries if entry.twice] == [
        "again", "again, with new lineage", "same id, other content",
    ]  # fmt: skip
    assert run.duplicates == 3
    # An event that contradicts an earlier one is shown beside it, never instead of it.
    assert [event.payload["output"] for event in neutral_events(run) if event.type == "OUTPUT"] == ["hello", "else"]


def test_equal_events_of_two_keys_share_an_id_in_a_nested_log_and_stay_apart() -> None:
    known = "68b3166e-8149-317e-b810-e50332d13f54"
    asked = {"model": "llm", "messages": [{"role": "user", "content": "hi there"}]}
    lines = [
        nested(1, "_input_event", {"input": {"k": "a", "text": "hi there"}}),
        nested(2, "_input_event", {"input": {"k": "b", "text": "hi there"}}),
        nested(3, "_chat_request_event", asked, known),
        nested(4, "_chat_request_event", asked, known),
        nested(5, "_chat_response_event", {"request_id": known, "response": {"content": "hello"}}),
    ]
    log = read(lines)
    assert [len(run.entries) for run in log.runs] == [1, 1]
    # Either run may have sent them: none gets them.
    assert len(log.unattributed) == 3


def test_a_run_at_rest_gets_what_only_it_has_said() -> None:
    def said(ns: int, request: str, answer: str) -> bytes:
        return nested(ns, "_chat_response_event", {"request_id": request, "response": {"content": answer}})

    def asked(ns: int, known: str, text: str) -> bytes:
        attributes = {"model": "llm", "messages": [{"role": "user", "content": text}]}
        return nested(ns, "_chat_request_event", attributes, event_id(known))

    lines = [
        nested(1, "_input_event", {"input": {"k": "a", "text": "first"}}),
        asked(2, "r1", "first"),
        said(3, event_id("r1"), "answer of a"),
        nested(4, "_output_event", {"output": "answer of a"}),
        nested(5, "_input_event", {"input": {"k": "b", "text": "second"}}),
        nested(6, "_output_event", {"output": "once more: answer of a"}),
        nested(7, "_output_event", {"output": "nobody has said this"}),
    ]
    one, two = read(lines).runs
    assert [entry.record.time_ns % 100 for entry in one.entries] == [1, 2, 3, 4, 6]
    assert [str(entry.how) for entry in two.entries] == ["input", "alone"]


def test_what_comes_before_the_first_input_is_kept_without_a_run() -> None:
    late = nested(1, "_output_event", {"output": "of a run that began in another file"})
    log = read([late, nested(2, "_input_event", {"input": {"k": "a"}})])
    assert [one.type for one in log.unattributed] == ["_output_event"]
    assert len(log.runs) == 1


def test_without_tracing_lineage_leads_to_the_run() -> None:
    given = flat(1, None, None, "_input_event", {"input": {"k": "a"}})
    asked = flat(2, None, None, "_x", {}, upstreamEventId=json.loads(given)["eventId"], upstreamActionName="act")
    then = flat(3, None, None, "_y", {}, upstreamEventId=json.loads(asked)["eventId"], upstreamActionName="act")
    lost = flat(4, None, None, "_y", {}, upstreamEventId=event_id("nowhere"), upstreamActionName="act")
    log = read([given, asked, then, lost])
    (run,) = log.runs
    assert run.key == "a"
    assert [str(entry.how) for entry in run.entries] == ["input", "lineage", "lineage"]
    assert [one.time_ns % 10 for one in log.unattributed] == [4]


def test_a_run_whose_input_is_missing_says_so() -> None:
    run = only(traced_run("r1", "k", 5, "hello")[1:])
    assert run.input_missing
    assert run.key == "k"


def test_what_was_cut_short_is_found_wherever_it_stands() -> None:
    payload = {
        "input": {"truncatedString": "abc...", "omittedChars": 12},
        "list": {"truncatedList": [{"a": {"truncatedObject": {}, "omittedFields": 3}}], "omittedElements": 4},
    }
    found = record(flat(1, "r", "k", "_input_event", payload))
    assert [tuple(cut) for cut in found.truncations] == [
        ("input", 12, "characters"),
        ("list", 4, "elements"),
        ("list[0].a", 3, "fields"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"timestamp":"2026-', "not JSON: cut short"),
        (b"{", "pretty-printed"),
        (b"", "not JSON"),
        (b"INFO something else", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"a": 1}', "without a timestamp"),
        (b'{"timestamp": 5}', "without a timestamp"),
        (b'{"timestamp": "2026-11-29T19:00:00Z"}', "no type or no id"),
        (b'{"timestamp": "2026-13-29T19:00:00Z", "eventType": "x", "eventId": "y"}', "without a timestamp"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_is_no_record_says_why(line: bytes, reason: str) -> None:
    found = read_line(line)
    assert isinstance(found, Garbage)
    assert reason in found.reason


def test_times_are_nanoseconds_in_utc() -> None:
    told = b'{"timestamp": "2026-11-29T20:38:21.354925619+01:00", "eventType": "x", "eventId": "y"}'
    assert record(told).time_ns == 1_795_981_101_354_925_619


def test_a_logger_may_write_something_before_the_record() -> None:
    line = traced_run("r", "k", 5, "x")[0]
    assert record(b"2026-11-29 19:00:00,000 INFO  EventLog [] - " + line).run_id == "r"


def test_a_files_name_tells_its_writer() -> None:
    job = "296eb6d9a38437b2b6df303a45c35cee"
    told = stream_of_name(f"/logs/events-{job}-action-execute-operator -> Map-12.log.3.gz")
    assert told == (job, "action-execute-operator -> Map", 12)
    assert stream_of_name("flink-taskmanager.event-log.log").job == ""


def test_a_key_is_found_inside_text_that_is_json() -> None:
    assert find_key({"output": '{"customer": {"id": 7}}'}, parse_paths(["$.input.id", "output.customer.id"])) == "7"
    assert find_key({"input": [{"k": "x"}]}, parse_paths(["$.input[0].k"])) == "x"
    assert find_key({"input": "no JSON"}, parse_paths(["$.input.k"])) is None
    with pytest.raises(ValueError, match="no path to a key"):
        parse_path("$..k")


def test_placing_goes_on_after_a_restart_as_if_there_had_been_none() -> None:
    lines = real("eventlog-0.3.1-slf4j.jsonl")
    whole = Placer(PATHS)
    expected = [whole.place(record(line)) for line in lines]
    for cut in range(0, len(lines), 7):
        before, after = Placer(PATHS), Placer(PATHS)
        placed = [before.place(record(line)) for line in lines[:cut]]
        after.resume(json.loads(json.dumps(before.state())))
        placed += [after.place(record(line)) for line in lines[cut:]]
        assert placed == expected


def test_records_of_two_runs_are_no_run() -> None:
    placer = Placer()
    placed = [placer.place(record(line)) for run in ("a", "b") for line in traced_run(run, "k", 5, "x")]
    with pytest.raises(ValueError, match="one run, not of 2"):
        assemble(placed)


def test_how_a_record_was_placed_tells_conclusions_from_proofs() -> None:
    assert [how for how in How if how.concluded] == [How.CONTENT, How.ALONE]
    assert not Twice.NO
