"""A plan told before anything runs is the plan that the run then has."""

import pytest

from app.replay.engine import replay
from app.replay.evidence import EvidenceFile, Role
from app.replay.inprocess import InProcessRunner
from app.replay.preview import preview
from app.replay.select import Unanswerable
from app.replay.verdict import Outcome
from tests.golden.scenarios import has_valid_command, names, scenario

REPLAYABLE = [name for name in (*names("corpus"), *names("corpus_multi")) if has_valid_command(scenario(name))]
# The runs of these end before they have a plan, for a hook that the build lacks: a preview asks no build.
HOOKS = ("d17_missing_decode", "d18_missing_registry")
# One clock, two attempts: the preview tells of the first and says that there are two.
SHARED = ("m41_same_clock_failed", "m42_same_clock_success")


@pytest.mark.parametrize("level", ["bundle", "full"])
@pytest.mark.parametrize("name", [name for name in REPLAYABLE if name not in (*HOOKS, *SHARED)])
def test_what_is_told_is_what_is_run(name: str, level: str, runner: InProcessRunner) -> None:
    one = scenario(name)
    verdict = replay(one.files(level), runner, one.code(), seq=one.seq).verdict
    if not verdict.plan:
        assert verdict.reason is not None
        with pytest.raises(Unanswerable) as caught:
            preview(one.files(level), one.seq)
        assert (caught.value.outcome, caught.value.reason.code) == (verdict.outcome, verdict.reason.code)
        return
    told = preview(one.files(level), one.seq)
    for part in ("counter", "envelopes"):
        assert told[part] == verdict.plan[part]
    if told["forward"] is None or verdict.plan["memory"]["fit"] == "forward":
        for part in ("memory", "continuation", "row", "exact_would_need"):
            assert told[part] == verdict.plan[part]
    else:  # a step on the way did not come out as recorded, and the preview had said what happens then
        assert verdict.plan["memory"]["fit"] == told["forward"]["else"]["fit"]
    if told["forward"] is None:
        assert told["answers"]["available"] == verdict.plan["answers"]["available"]
    if verdict.outcome is Outcome.REPRODUCED:
        found = {s.name: s.compared for s in verdict.surfaces if s.name != "outputs"}
        assert {s["name"]: s["compared"] for s in told["surfaces"] if s["name"] != "outputs"} == found


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_that_a_build_needs_are_named(name: str) -> None:
    assert name.partition("missing_")[2] in preview(scenario(name).bundle())["hooks"]


@pytest.mark.parametrize("name", SHARED)
def test_attempts_of_one_clock_are_counted(name: str) -> None:
    assert preview(scenario(name).full())["candidates"] == 2


def test_it_says_where_everything_comes_from_and_what_would_be_better() -> None:
    alone = preview(scenario("m01_drift_pre_post").bundle())
    assert (alone["memory"]["fit"], alone["exact_would_need"] is None) == ("after", False)
    memory = next(s for s in alone["surfaces"] if s["name"] == "memory after")
    assert memory["detail"].startswith(f"no snapshot with counter {alone['counter']}")
    fused = preview(scenario("m09_union_of_two_caches").full())
    assert len(fused["answers"]["by_source"]) > 1
    assert fused["responses"] == {"obtained": 64, "captured": 64}
    assert preview(scenario("m09_union_of_two_caches").bundle())["responses"] == {"obtained": 64, "captured": 0}


def test_running_forward_is_told_with_its_steps() -> None:
    told = preview(scenario("m22_chain3_forward").full())
    assert told["forward"]["steps"]
    assert told["memory"]["source"] == f"re-run from {told['forward']['from']}"


def test_a_pending_resume_is_told_as_what_it_is() -> None:
    told = preview(scenario("d28_pending_resume_what_if").bundle())
    assert (told["attempt"], told["surfaces"]) == (None, [])
    assert told["row"].startswith("pending resume")


def test_damaged_files_are_named() -> None:
    with pytest.raises(Unanswerable, match=r"bad\.pb: ") as caught:
        preview([EvidenceFile(Role.SNAPSHOT, "bad.pb", b"\xff\xff")])
    assert caught.value.reason.code == "unusable_file"
