"""Verdicts over one real run of the desk, its record altered in every way that must be seen, and some that must not."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.flink.inside.messages import Handling, Request
from app.flink.model import Entry, Run
from app.flink.records import Truncation
from app.flink.rerun.case import Options, Ran
from app.flink.rerun.stretch import Stretch
from app.jobs.flink_runs import SandboxedBuild
from app.replay.verdict import Report
from tests.fixtures.flink import example_runs

OPTIONS = Options(begins_empty=True, handling={"tool:issue_refund": Handling(answer="accepted", has_answer=True)})
# Random, or of the provider's weather: never compared.
IDS = {"id", "request_id", "external_ids", "total_retry_wait_sec", "type"}


class Canned:
    """Gives the same answer to whatever it is asked."""

    build = "desk-v1"

    def __init__(self, ran: Ran) -> None:
        self._ran = ran

    def run(self, request: Request) -> Ran:
        return self._ran


@pytest.fixture(scope="module")
def run() -> Run:
    """A run with a tool that the model called, a refund and an output."""
    return next(one for one in example_runs() if any(record.type == "refund_issued" for record in one.records))


@pytest.fixture(scope="module")
def ran(run: Run, desk: Callable[[str], SandboxedBuild]) -> Ran:
    kept: list[Ran] = []

    class Keeping:
        build = "desk-v1"

        def run(self, request: Request) -> Ran:
            kept.append(desk("v1").run(request))
            return kept[-1]

    keeping = Keeping()
    (report,) = Stretch([run], keeping, keeping, OPTIONS).replay().reports
    assert report.verdict.exit_code == 0
    return kept[0]


def judged(run: Run, ran: Ran, options: Options = OPTIONS) -> Report:
    canned = Canned(ran)
    (report,) = Stretch([run], canned, canned, options).replay().reports
    return report


def altered(run: Run, number: int, attributes: dict[str, Any]) -> Run:
    entries = list(run.entries)
    record = entries[number].record._replace(attributes=attributes)
    entries[number] = Entry(record, entries[number].how)
    return dataclasses.replace(run, entries=tuple(entries))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))
    else:
        yield path


def changed(attributes: Any, path: tuple[Any, ...]) -> Any:
    told = copy.deepcopy(attributes)
    here = told
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = {"another": "value"}
    return told


def test_any_changed_field_of_any_event_is_seen(run: Run, ran: Ran) -> None:
    """Row 3: nothing recorded can be another without the verdict being another."""
    seen = 0
    for number, entry in enumerate(run.entries):
        for path in leaves(dict(entry.record.attributes)):
            if IDS & {step for step in path if isinstance(step, str)}:
                continue
            other = altered(run, number, changed(dict(entry.record.attributes), path))
            assert judged(other, ran).verdict.exit_code != 0, (entry.record.type, path)
            seen += 1
    assert seen > 20


def test_any_missing_event_is_seen(run: Run, ran: Ran) -> None:
    for number in range(1, len(run.entries)):
        less = dataclasses.replace(run, entries=run.entries[:number] + run.entries[number + 1 :])
        assert judged(less, ran).verdict.exit_code != 0, run.entries[number].record.type


def test_ids_are_never_compared(run: Run, ran: Ran) -> None:
    """Another recording of the same: other ids everywhere, consistently."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {renamed(name): renamed(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [renamed(inner) for inner in value]
        return f"call-x{value[4:]}" if isinstance(value, str) and value.startswith("call-") else value

    other = run
    for number, entry in enumerate(run.entries):
        other = altered(other, number, renamed(dict(entry.record.attributes)))
    assert renamed(dict(run.entries[2].record.attributes)) != dict(run.entries[2].record.attributes)
    assert judged(other, ran).verdict.exit_code == 0


def test_the_order_of_events_of_different_types_is_not_compared(run: Run, ran: Ran) -> None:
    """Row 7: actions that wait finish in any order; a refund's notice may be logged before the answer it came with."""
    entries = list(run.entries)
    entries[-1], entries[-2] = entries[-2], entries[-1]
    assert judged(dataclasses.replace(run, entries=tuple(entries)), ran).verdict.exit_code == 0


def test_one_event_for_another_is_a_removal_and_an_insertion(run: Run, ran: Ran) -> None:
    """Row 4."""
    entries = list(run.entries)
    at = next(n for n, entry in enumerate(entries) if entry.record.type == "refund_issued")
    entries[at] = Entry(entries[at].record._replace(type="something_else"), entries[at].how)
    rows = judged(dataclasses.replace(run, entries=tuple(entries)), ran).rows
    assert [(row.event.type, str(row.state)) for row in rows if row.differs] == [
        ("something_else", "recorded-only"),
        ("refund_issued", "replayed-only"),
    ]


def test_a_record_that_breaks_off_is_no_difference(run: Run, ran: Ran) -> None:
    """The re-run did the same as far as the log goes; nobody knows the rest."""
    asked = run.entries[:2]
    report = judged(dataclasses.replace(run, entries=asked), ran)
    assert report.verdict.exit_code == 3
    assert report.verdict.reason is not None
    assert report.verdict.reason.code == "unfinished"


def test_values_that_the_log_cut_short_cannot_be_fed(run: Run, ran: Ran) -> None:
    entries = list(run.entries)
    cut = entries[1].record._replace(truncations=(Truncation("messages[0].content", 40, "characters"),))
    entries[1] = Entry(cut, entries[1].how)
    report = judged(dataclasses.replace(run, entries=tuple(entries)), ran)
    assert report.verdict.reason is not None
    assert report.verdict.reason.code == "truncated"
    assert "40 characters of _chat_request_event at messages[0].content" in report.verdict.headline
    assert "VERBOSE" in report.verdict.reason.remedy


def test_a_run_without_its_input_cannot_be_fed(run: Run, ran: Ran) -> None:
    headless = dataclasses.replace(run, entries=run.entries[1:], input_missing=True)
    report = judged(headless, ran)
    assert report.verdict.exit_code == 2
    assert report.verdict.reason is not None
    assert report.verdict.reason.code == "no_input"


def test_a_difference_after_a_stand_in_is_not_called_diverged(run: Run, ran: Ran) -> None:
    """Nobody knows what the tool gave, so what came of its answer proves nothing."""
    at = next(n for n, entry in enumerate(run.entries) if entry.record.type == "refund_issued")
    other = altered(run, at, {**run.entries[at].record.attributes, "receipt": "refused"})
    report = judged(other, ran)
    assert report.verdict.reason is not None
    assert report.verdict.reason.code == "stand_in"


@pytest.mark.parametrize(
    ("ending", "code"), [("refused_confinement", 2), ("time_limit", 3), ("memory_limit", 3), ("garbled_result", 2)]
)
def test_a_child_that_gave_no_answer_is_told_as_what_it_was(run: Run, ending: str, code: int) -> None:
    report = judged(run, Ran(None, ending, "it ran for more than 60 s"))
    assert report.verdict.exit_code == code
    assert report.verdict.reason is not None
    assert report.verdict.reason.code == ending
