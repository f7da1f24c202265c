"""A missed request has one reason, and each kind of reason its own recording."""

# complaints 8 and 9

import json
from collections.abc import Callable

import pytest

from app.replay.engine import replay
from app.replay.evidence import EvidenceFile, Role
from app.replay.inprocess import InProcessRunner
from app.replay.verdict import Outcome, Reason
from app.wire import identity
from app.wire.records import StateSnapshot, parse, serialize
from tests.golden.scenarios import scenario


def miss(name: str, runner: InProcessRunner, change: Callable[[StateSnapshot], None] | None = None) -> Reason:
    one = scenario(name)
    files = one.bundle()
    if change is not None:
        snapshot = parse(StateSnapshot, files[0].data)
        change(snapshot)
        files[0] = EvidenceFile(Role.SNAPSHOT, "snapshot.pb", serialize(snapshot))
    verdict = replay(files, runner, one.code(), seq=one.seq).verdict
    assert verdict.outcome is Outcome.IRREPRODUCIBLE
    assert verdict.reason is not None
    assert verdict.reason.remedy
    assert len(verdict.reason.details["cache_key"]) == 64
    return verdict.reason


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("i18_no_cache_in_snapshot", "no_responses"),
        ("i03_evicted_by_later_seq", "evicted"),
        ("i06_byte_eviction", "evicted"),
        ("i07_ttl_expired", "evicted"),
        ("i05_digest_only", "digest_only"),
        ("s17_failed_then_cached", "withheld"),
        ("i01_failed_after_llm", "uncommitted"),
        ("i08_memory_drift", "memory_drift"),
        ("i10_prompt_changed", "request_changed"),
        ("i14_tool_answer_in_prompt", "request_changed"),
    ],
)
def test_reason(name: str, code: str, runner: InProcessRunner) -> None:
    assert miss(name, runner).code == code


@pytest.mark.parametrize(("name", "part"), [("i09_model_changed", "model"), ("i11_sampling_changed", "sampling")])
def test_the_part_that_differs_is_searched_for(name: str, part: str, runner: InProcessRunner) -> None:
    reason = miss(name, runner)
    assert reason.code == "request_changed"
    assert reason.details["differs"] == part
    assert part in reason.text
    assert reason.details["nearest"]["source"] == "snapshot.pb"
    name = {"sampling": "params"}.get(part, part)
    assert json.dumps(reason.details["recorded"]) != json.dumps(reason.details["request"][name])


def test_a_tool_that_ran_again_is_named_as_another_suspect(runner: InProcessRunner) -> None:
    assert "lookup" in miss("i14_tool_answer_in_prompt", runner).text


def rekeyed(entity_key: bytes, seq: int) -> Callable[[StateSnapshot], None]:
    """The only cached answer of a01's first call, as if it had been recorded for another key or seq."""

    def change(snapshot: StateSnapshot) -> None:
        material = identity.request_material(
            entity_key=entity_key,
            seq=seq,
            model="risk-large-1",
            messages=[{"role": "user", "content": "score t-1 hist(4242,5)"}],
            tools=None,
            params={"temperature": 0},
        )
        snapshot.llm_cache.entries[0].cache_key = identity.cache_key(material)

    return change


def test_an_answer_of_another_seq(runner: InProcessRunner) -> None:
    reason = miss("a01_fraud_completed", runner, rekeyed(b"card-4242", 1))
    assert (reason.code, reason.details["differs"]) == ("wrong_seq", "seq")


def test_an_expired_answer(runner: InProcessRunner) -> None:
    def age(snapshot: StateSnapshot) -> None:
        for entry in snapshot.llm_cache.entries:
            entry.created_at_ms -= 7 * 60 * 60 * 1000

    assert miss("a26_resume_cached_call", runner, age).code == "expired"


def test_the_nearest_entry_of_a_changed_prompt_is_the_answer_nobody_asked_for(runner: InProcessRunner) -> None:
    reason = miss("i10_prompt_changed", runner)
    assert "differs" not in reason.details
    recorded = parse(StateSnapshot, scenario("i10_prompt_changed").bundle()[0].data)
    assert reason.details["nearest"]["cache_key"] == recorded.llm_cache.entries[0].cache_key
