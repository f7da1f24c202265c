"""The promise as properties: no changed event passes, and no honest delivery is called diverged."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.replay.engine import replay
from app.replay.events import Event
from app.replay.evidence import EvidenceFile, Role, UnusableEvidence, UnusableFile, load
from app.replay.inprocess import InProcessRunner
from app.replay.inspection import check_file
from app.replay.mapping import NORMALISED, neutral
from app.replay.verdict import Outcome
from app.wire.framing import read_frames, write_frames
from app.wire.records import TraceEvent, parse, serialize
from tests.golden.scenarios import Scenario, has_valid_command, names, scenario

REPRODUCING = [
    name for name in names("corpus") if has_valid_command(scenario(name)) and scenario(name).right("bundle") == {0}
]


def _traces(one: Scenario) -> list[bytes]:
    return read_frames((one.folder / one.options()["--traces"]).read_bytes()).payloads


def _with_traces(one: Scenario, payloads: list[bytes]) -> list[EvidenceFile]:
    traces = EvidenceFile(Role.TRACES, "traces.pb", write_frames(payloads))
    return [traces if file.role is Role.TRACES else file for file in one.bundle()]


def _of_attempt(one: Scenario, runner: InProcessRunner) -> set[int]:
    """Indexes of the frames that the verdict compared."""
    report = replay(one.bundle(), runner, one.code(), seq=one.seq)
    assert report.verdict.outcome is Outcome.REPRODUCED
    compared = {_where(row.recorded) for row in report.rows if row.recorded}
    found = set()
    for index, payload in enumerate(_traces(one)):
        if _where(neutral(parse(TraceEvent, payload))) in compared:
            found.add(index)
    return found


def _where(event: Event) -> tuple[str, str, str]:
    return event.type, event.span_id, event.identity["parent_span_id"] + event.identity["start_ms"]


def _mutations(event: TraceEvent) -> Iterator[tuple[str, TraceEvent]]:
    """Every compared field of an event, changed one at a time."""

    def changed(name: str, value: object) -> tuple[str, TraceEvent]:
        copy = TraceEvent()
        copy.CopyFrom(event)
        setattr(copy, name, value)
        return name, copy

    yield changed("trace_id", bytes(16))
    yield changed("span_id", bytes(8))
    yield changed("parent_span_id", b"\x01" * 8)
    yield changed("entity_key", event.entity_key + b"x")
    yield changed("seq", event.seq + 1)
    yield changed("step_index", event.step_index + 1)
    yield changed("start_ms", event.start_ms + 1)
    yield changed("end_ms", event.end_ms + 1)
    for number in TraceEvent.EventType.values():
        if number != event.event_type:
            yield changed("event_type", number)
    for name, value in event.attributes.items():
        copy = TraceEvent()
        copy.CopyFrom(event)
        del copy.attributes[name]
        yield f"without {name}", copy
        if name not in NORMALISED:
            copy = TraceEvent()
            copy.CopyFrom(event)
            copy.attributes[name] = value + "1"
            yield name, copy
    copy = TraceEvent()
    copy.CopyFrom(event)
    copy.attributes["beam_agents.added"] = "1"
    yield "an added attribute", copy


@pytest.mark.parametrize("name", REPRODUCING)
def test_no_changed_event_is_reproduced(name: str, runner: InProcessRunner) -> None:
    # complaint 3
    one = scenario(name)
    payloads = _traces(one)
    chosen = sorted(_of_attempt(one, runner))
    if len(chosen) > 8:
        chosen = random.Random(name).sample(chosen, 8)
    for index in chosen:
        original = payloads[index]
        for field, mutated in _mutations(parse(TraceEvent, original)):
            # Every copy of a frame is the same event, so all of them change.
            changed = [serialize(mutated) if payload == original else payload for payload in payloads]
            verdict = replay(_with_traces(one, changed), runner, one.code(), seq=one.seq).verdict
            assert verdict.outcome is not Outcome.REPRODUCED, (index, field)


@pytest.mark.parametrize("name", REPRODUCING)
def test_no_removed_event_is_reproduced(name: str, runner: InProcessRunner) -> None:
    one = scenario(name)
    payloads = _traces(one)
    for index in sorted(_of_attempt(one, runner))[:6]:
        left = [payload for payload in payloads if payload != payloads[index]]
        verdict = replay(_with_traces(one, left), runner, one.code(), seq=one.seq).verdict
        assert verdict.outcome is not Outcome.REPRODUCED, index


EVERY = [name for name in names("corpus") if has_valid_command(scenario(name))]


@pytest.mark.parametrize("name", EVERY)
def test_delivery_never_changes_the_verdict(name: str, runner: InProcessRunner) -> None:
    # complaint 7
    one = scenario(name)
    files = one.bundle()
    try:
        load(files)
        payloads = _traces(one)
    except UnusableEvidence:
        return
    if any(load([file]).torn for file in files):
        return
    expected = replay(files, runner, one.code(), seq=one.seq)
    order = random.Random(name)
    for _ in range(3):
        delivered = payloads + order.choices(payloads, k=len(payloads)) if payloads else []
        order.shuffle(delivered)
        report = replay(_with_traces(one, delivered), runner, one.code(), seq=one.seq)
        assert report.verdict.outcome == expected.verdict.outcome
        assert report.verdict.differences == expected.verdict.differences
        assert report.rows == expected.rows


ROLES = st.sampled_from(list(Role))


@given(ROLES, st.binary(max_size=400))
def test_any_bytes_load_or_are_refused_by_name(role: Role, data: bytes) -> None:
    file = EvidenceFile(role, "some.pb", data)
    try:
        told = [check_file(file).describes]
    except UnusableFile as error:
        problem = error.problem
        told = [problem.name, problem.problem, problem.expected, problem.remedy]
    assert all(told)


@settings(max_examples=300)
@given(st.data())
def test_damaged_files_are_verdicts_not_crashes(data: st.DataObject) -> None:
    one = scenario(data.draw(st.sampled_from(["a01_fraud_completed", "a25_second_resume", "d22_batch_flush"])))
    files = one.bundle()
    victim = data.draw(st.integers(0, len(files) - 1))
    content = bytearray(files[victim].data)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    files[victim] = EvidenceFile(files[victim].role, files[victim].name, bytes(content))
    runner = InProcessRunner()
    try:
        verdict = replay(files, runner, one.code(), seq=one.seq).verdict
    finally:
        runner.close()
    assert verdict.exit_code in range(5)
    assert verdict.headline
