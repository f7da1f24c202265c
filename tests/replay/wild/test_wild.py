"""Random lives, delivered at random: never called diverged, and never reproduced as something that did not happen."""

import random
import re

import pytest

from app.replay.engine import replay
from app.replay.inprocess import InProcessRunner
from app.replay.verdict import Outcome, Verdict
from app.wire.records import Continuation, parse
from tests.replay.wild.world import Attempt, Delivery, Maker, code

KINDS = {
    "memory": "get ring keys size set keep append delete ask tell act do if double",
    "own events": "nest nest ask set get do",
    "at one time": "race gather ask do set keep append",
    "served": "tally blob staged ask tell do set get",
    "facade": "facade ask do set get if",
    "framework": "checkpoint checkpoint pause ask set do append if",
    "clock": "clock checkpoint pause stamp ask set do keep",
    "chance": "noisy double do ask tell set",
}


def wrong(verdict: Verdict, target: Attempt) -> str | None:
    """What a verdict on honest evidence and unchanged code says that is not so."""
    if verdict.outcome is Outcome.DIVERGED:
        return f"diverged: {verdict.headline}"
    if verdict.outcome is not Outcome.REPRODUCED:
        return None
    made = verdict.replayed
    if not target.committed:
        return None if made["error"]["detail"] == target.details[0] else "another error"
    if {i["intent_id"]: i["args_json"] for i in made["intents"]} != {i.intent_id: i.args_json for i in target.intents}:
        return "other intents"
    if [output["text"] for output in made["outputs"]] != [output.decode() for output in target.outputs]:
        return "another output"
    left = target.after.continuation
    if left is not None and _but_ids(made["continuation"]["text"]) != _but_ids(
        parse(Continuation, left).snapshot.decode()
    ):
        return "another continuation"
    return None


def _but_ids(text: str) -> str:
    """What `do_pause` hands to the resume, without the id that it draws."""
    return re.sub(r"\b[0-9a-f]{32}\b", "id", text)


def check(kinds: str, seeds: range, runner: InProcessRunner, *, batch: bool = False, deliveries: int = 3) -> int:
    """Replay every attempt of some worlds; returns how many were reproduced."""
    reproduced = 0
    for seed in seeds:
        world = Maker(random.Random(seed), kinds.split()).live(batch=batch)
        for at, target in enumerate(world.attempts):
            for number in range(deliveries):
                files = Delivery(random.Random(f"{seed} {at} {number}")).files(world, target)
                verdict = replay(files, runner, code(batch=batch)).verdict
                assert wrong(verdict, target) is None, (seed, at, number)
                reproduced += verdict.outcome is Outcome.REPRODUCED
    return reproduced


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_honest_evidence_is_never_wronged(kinds: str, runner: InProcessRunner) -> None:
    assert check(kinds, range(12), runner, deliveries=2) > 50


def test_batches_are_never_wronged(runner: InProcessRunner) -> None:
    assert check("ask set get do append keep", range(40), runner, batch=True, deliveries=2) > 20


@pytest.mark.parametrize("kinds", [KINDS["memory"], KINDS["own events"], KINDS["facade"]])
def test_all_of_the_evidence_reproduces_nearly_everything(kinds: str, runner: InProcessRunner) -> None:
    """With every export and every stream, what is left are attempts whose answers nobody kept."""
    total = told = 0
    for seed in range(6):
        world = Maker(random.Random(seed), kinds.split()).live(exports=1.0)
        for target in world.attempts:
            report = replay(Delivery(random.Random(0)).whole(world, target), runner, code(batch=False))
            verdict = report.verdict
            assert wrong(verdict, target) is None, seed
            total += 1
            told += verdict.outcome is Outcome.REPRODUCED
            if verdict.outcome is not Outcome.REPRODUCED:
                assert verdict.reason is not None
                assert verdict.reason.code in ("uncommitted", "no_responses", "withheld"), verdict.headline
    assert told > 0.8 * total
