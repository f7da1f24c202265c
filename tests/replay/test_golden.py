"""Every recording gets the right verdict, at both levels of evidence."""

import pytest

from app.replay.engine import replay
from app.replay.inprocess import InProcessRunner
from tests.golden.scenarios import has_valid_command, names, scenario

ALL = [*names("corpus"), *names("corpus_multi")]
REPLAYABLE = [name for name in ALL if has_valid_command(scenario(name))]


@pytest.mark.parametrize("level", ["bundle", "full"])
@pytest.mark.parametrize("name", REPLAYABLE)
def test_verdict(name: str, level: str, runner: InProcessRunner) -> None:
    one = scenario(name)
    verdict = replay(one.files(level), runner, one.code(), seq=one.seq).verdict
    assert verdict.exit_code in one.right(level), verdict.headline
    assert verdict.headline
    assert (verdict.reason is None) == (verdict.exit_code in (0, 1, 4)), verdict


def test_the_rest_are_broken_command_lines() -> None:
    assert sorted(set(ALL) - set(REPLAYABLE)) == ["b19_file_missing", "b20_flag_missing", "b21_seq_not_int"]


@pytest.mark.parametrize("name", [name for name in REPLAYABLE if scenario(name).right("bundle") == {0}])
def test_input_blobs_are_left_as_they_are(name: str, runner: InProcessRunner) -> None:
    # complaint 15
    one = scenario(name)
    files = one.full()
    before = [(file.name, bytes(file.data)) for file in files]
    replay(files, runner, one.code(), seq=one.seq)
    assert [(file.name, file.data) for file in files] == before
