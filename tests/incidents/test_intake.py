"""Every golden recording can be looked at: it is refused by name, or its attempt is the one that the envelope names."""

import itertools
import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.incidents import intake
from app.incidents.service import EvidenceFile, Role
from app.wire.records import AgentEnvelope, parse
from tests.golden import corpus

OPTIONS = {"--snapshot": Role.SNAPSHOT, "--traces": Role.TRACES, "--event": Role.EVENT}
SCENARIOS = sorted(folder.name for folder in (corpus() / "corpus").iterdir() if folder.is_dir())


def handed_in(folder: Path, argv: list[str]) -> list[EvidenceFile]:
    """The files of a scenario's command line that are there."""
    files = []
    for option, value in itertools.pairwise(argv):
        if option in OPTIONS and (folder / value).is_file():
            files.append(EvidenceFile(OPTIONS[option], value, (folder / value).read_bytes()))
    return files


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_recording_is_refused_by_name_or_its_attempt_is_the_one_that_the_envelope_names(scenario: str) -> None:
    folder = corpus() / "corpus" / scenario
    expected = json.loads((folder / "expected.json").read_text())
    argv = expected["argv"] if isinstance(expected["argv"], list) else shlex.split(expected["argv"])
    files = handed_in(folder, argv)
    summaries, problems = intake.check(files)
    for problem in problems:
        assert problem.name in {file.name for file in files}
        assert problem.expected
        assert problem.remedy
    if problems or not files:
        return
    assert all(summary is not None and summary.describes for summary in summaries)
    seq = int(argv[argv.index("--seq") + 1]) if "--seq" in argv and argv[argv.index("--seq") + 1].isdecimal() else None
    facts = intake.facts_of(files, seq)
    assert (facts.attempt is None) or (facts.problem is None)
    if facts.attempt is not None and facts.attempt["batch_size"] is None:
        (envelope,) = (parse(AgentEnvelope, file.data) for file in files if file.role is Role.EVENT)
        assert (facts.entity_key, facts.clock_ms) == (envelope.entity_key, envelope.event_time_ms)
        assert facts.kind == ("resume" if envelope.WhichOneof("payload") in ("tool_result", "approval") else "start")


@given(st.sampled_from(Role), st.binary(max_size=200))
def test_any_bytes_are_kept_or_refused(role: Role, data: bytes) -> None:
    file = EvidenceFile(role, "x", data)
    summaries, problems = intake.check([file])
    assert (summaries[0] is None) == bool(problems)
    if not problems:
        intake.facts_of([file], None)
    packed = intake.pack(file)
    assert intake.unpack(packed.codec, packed.data) == data
