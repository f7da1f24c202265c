"""Short lives with one twist each, delivered so that it matters."""

import random
from collections.abc import Iterable
from typing import Any

import pytest

from app.pipeline.keyed import Stream, Timer
from app.replay.engine import replay
from app.replay.evidence import EvidenceFile, Role
from app.replay.inprocess import InProcessRunner
from app.replay.rerun_pb2 import AgentCode
from app.replay.verdict import Outcome, Verdict
from app.wire.framing import write_frames
from app.wire.records import StateSnapshot, parse, serialize
from tests.replay.wild.test_wild import wrong
from tests.replay.wild.world import KEY, TTL, Attempt, Delivery, Life, World, code


def judged(world: World, target: Attempt, runner: InProcessRunner, **choice: Any) -> Verdict:
    """The verdict on honest evidence, chosen as in `verdict_on`; fails where it says something that is not so."""
    verdict = verdict_on(world, target, runner, **choice)
    assert wrong(verdict, target) is None
    return verdict


def verdict_on(
    world: World,
    target: Attempt,
    runner: InProcessRunner,
    *,
    without: Iterable[Role] = (),
    snapshots: Iterable[int] | None = None,
    untraced: Iterable[Attempt] = (),
    agent: AgentCode | None = None,
) -> Verdict:
    """The verdict on all evidence of an attempt but some streams, some snapshots, or the traces of some attempts."""
    gone = {serialize(event) for attempt in untraced for event in attempt.traces}
    files = []
    for file in Delivery(random.Random(0)).whole(world, target):
        if file.role is Role.TRACES:
            kept = [frame for frame in world.streams[Stream.TRACES] if frame not in gone]
            files.append(EvidenceFile(Role.TRACES, "traces.bin", write_frames(kept)))
        elif file.role is Role.SNAPSHOT and snapshots is not None:
            files += [file] if int(file.name.removesuffix(".pb")) in snapshots else []
        elif file.role not in without:
            files.append(file)
    return replay(files, runner, agent or code(batch=world.batch)).verdict


def told(verdict: Verdict) -> str:
    return verdict.reason.code if verdict.reason is not None else str(verdict.outcome)


@pytest.mark.parametrize("trace", ["", "t", "k"])
def test_spans_of_its_own_are_the_attempts(trace: str, runner: InProcessRunner) -> None:
    life = Life()
    for at in (0, 10):
        life.start([["nest", 3, trace], ["ask", "x"], ["end"]], at)
    life.export(20)
    world = life.close()
    assert [told(judged(world, one, runner)) for one in world.attempts] == ["reproduced", "reproduced"]


@pytest.mark.parametrize("look", ["tally", "blob", "staged"])
def test_code_that_looks_at_how_it_is_served_sees_what_it_saw(look: str, runner: InProcessRunner) -> None:
    life = Life()
    life.start([["ask", "x"], ["ask", "x"], ["ask", "yy"], [look], ["do", "pay"], ["out"]], 0)
    life.export(10)
    world = life.close()
    verdict = judged(world, world.attempts[0], runner)
    assert told(verdict) == "reproduced"
    assert verdict.served["mode"] == "provider-side"
    assert verdict.normalised == ()


def test_answers_that_came_in_another_order_are_no_divergence(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["race", "x", "yy", "zzz", "w"], ["do", "pay"], ["out"]], 0)
    life.export(10)
    world = life.close()
    assert told(judged(world, world.attempts[0], runner)) == "reproduced"
    blind = judged(world, world.attempts[0], runner, without=[Role.INTENTS, Role.OUTPUTS], snapshots=[0])
    assert told(blind) in ("answer_order", "reproduced")


def test_failed_tries_of_the_provider_are_run_again(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["facade", "shaky x", 0], ["facade", "yy", 0], ["facade", "shaky zzz", 1], ["do", "pay"], ["out"]], 0)
    life.export(10)
    world = life.close()
    verdict = judged(world, world.attempts[0], runner)
    assert told(verdict) == "reproduced"
    calls = [event.attributes for event in world.attempts[0].traces if "beam_agents.attempts" in event.attributes]
    assert sorted(call["beam_agents.attempts"] for call in calls) == ["1", "3", "3"]


def test_a_facade_has_a_decode_hook_of_its_own(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["facade", "x", 0], ["out"]], 0)
    life.export(10)
    world = life.close()
    agent = code(batch=False)
    agent.decode = ""
    assert told(judged(world, world.attempts[0], runner, agent=agent)) == "reproduced"


def test_a_failed_flush_is_run_from_what_its_dead_letters_tell(runner: InProcessRunner) -> None:
    life = Life(batch=True)
    for at, script in enumerate(([["set", "a", "x"]], [["get", "a"]], [["fail"]])):
        life.start(script, at)
    world = life.close()
    assert told(judged(world, world.attempts[0], runner)) == "reproduced"
    assert told(judged(world, world.attempts[0], runner, without=[Role.ERRORS])) in ("batch_unknown", "no_attempt")


def test_an_envelope_of_a_flush_clock_may_have_waited_for_the_next(runner: InProcessRunner) -> None:
    life = Life(batch=True)
    life.start([["ask", "x"], ["end"]], 0)
    life.fire(Timer.FLUSH)
    life.start([["act", "pay"]], 0)
    life.start([["act", "hold"]], 10)
    life.start([["out"]], 20)
    world = life.close()
    assert [len(one.envelopes) for one in world.attempts] == [1, 3]
    for without in ([], [Role.EVENTS]):
        for one in world.attempts:
            assert judged(world, one, runner, without=without).outcome is not Outcome.DIVERGED


def test_a_failed_answer_is_tried_before_the_escalation_and_after_it(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["approve"], ["suspend", [["do", "pay"], ["fail"]]]], 0)
    life.answer(10)
    life.fire(Timer.HITL)
    life.answer(1_000, 1)
    life.export(1_001)
    world = life.close()
    _, before, after = world.attempts
    assert {told(judged(world, one, runner)) for one in (before, after)} == {"reproduced"}


def two_lives(script: list[object]) -> Life:
    life = Life()
    life.start([["set", "a", "x"], ["do", "pay"]], 0)
    life.start([["set", "b", "x"]], 50)
    life.export(60)
    life.fire(Timer.TTL)
    life.start(script, 60 + 2 * TTL)
    return life


def test_an_answer_stamped_before_its_wait_is_of_its_own_life(runner: InProcessRunner) -> None:
    life = two_lives([["set", "c", "x"], ["approve"], ["suspend", [["get", "c"], ["out"]]]])
    life.export(61 + 2 * TTL)
    life.answer(55 + 2 * TTL)
    life.export(62 + 2 * TTL)
    world = life.close()
    assert [one.life for one in world.attempts] == [0, 0, 1, 1]
    assert told(judged(world, world.attempts[3], runner)) == "reproduced"


def test_a_state_of_a_life_that_is_not_traced_is_never_taken_for_exact(runner: InProcessRunner) -> None:
    life = two_lives([["set", "a", "yy"]])
    life.export(61 + 2 * TTL)
    life.start([["set", "b", "yy"]], 62 + 2 * TTL)
    life.start([["get", "a"], ["keys"], ["do", "pay"], ["out"]], 70 + 2 * TTL)
    world = life.close()
    old, target = world.attempts[:2], world.attempts[4]
    for without in ([], [Role.EVENTS], [Role.EVENTS, Role.INTENTS, Role.OUTPUTS]):
        verdict = judged(world, target, runner, untraced=old, snapshots=[0], without=without)
        assert not verdict.plan or verdict.plan["memory"]["fit"] != "exact"


BUNDLE_ALONE = [Role.EVENTS, Role.INTENTS, Role.OUTPUTS, Role.ERRORS]


def test_a_later_life_that_lacks_its_first_start_is_not_run_from_the_one_before(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["set", "a", "x"]], 0)
    life.export(10)
    life.fire(Timer.TTL)
    life.start([["set", "a", "yy"]], 2 * TTL)
    life.start([["get", "a"], ["do", "pay"], ["out"]], 10 + 2 * TTL)
    life.start([["get", "b"], ["set", "b", "x"]], 500 + 2 * TTL)
    world = life.close()
    assert [one.life for one in world.attempts] == [0, 1, 1, 1]
    lost, target, later = world.attempts[1:]
    for untraced in ([lost], [lost, later]):
        verdict = judged(world, target, runner, untraced=untraced, without=BUNDLE_ALONE)
        assert told(verdict) == "unproven_read"
        assert verdict.plan["memory"]["fit"] == "open"
    everything = judged(world, target, runner, untraced=[lost])
    assert told(everything) in ("memory_drift", "ambiguous_life")


def test_an_answer_of_a_later_life_does_not_end_a_wait_of_the_one_before(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["ask", "x"], ["approve"], ["wait", [["out"]]]], 0)
    life.export(10)
    life.fire(Timer.TTL)
    life.start([["ask", "yy"], ["approve"], ["wait", [["out"]]]], 3 * TTL)
    life.answer(10 + 3 * TTL)
    world = life.close()
    assert [one.life for one in world.attempts] == [0, 1, 1]
    verdict = judged(world, world.attempts[2], runner, untraced=world.attempts[1:2], without=BUNDLE_ALONE)
    assert verdict.outcome is Outcome.IRREPRODUCIBLE


def test_a_life_as_even_as_it_was_or_held_by_one_state_is_exact(runner: InProcessRunner) -> None:
    life = Life()
    for at, script in enumerate(
        ([["set", "a", "x"], ["set", "b", "x"]], [["get", "a"], ["do", "pay"]], [["get", "a"]])
    ):
        life.start(script, 100 * at)
        life.export(100 * at + 10)
    world = life.close()
    target, last = world.attempts[1:]
    for snapshots, untraced in (([0], []), ([0, 1], [last]), ([0, 2], [])):
        verdict = judged(world, target, runner, snapshots=snapshots, untraced=untraced, without=BUNDLE_ALONE)
        assert told(verdict) == "reproduced"
        assert verdict.plan["memory"]["fit"] == "exact"
    alone = judged(world, target, runner, snapshots=[0], untraced=[last], without=BUNDLE_ALONE)
    assert told(alone) == "unproven_read"


def test_a_second_answer_finds_its_wait_though_the_first_was_not_traced(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["approve"], ["suspend", [["set", "a", "x"], ["approve"], ["suspend", [["get", "a"], ["out"]]]]]], 0)
    life.answer(10)
    life.export(20)
    life.answer(30)
    world = life.close()
    verdict = judged(world, world.attempts[2], runner, untraced=world.attempts[1:2], without=[Role.EVENTS])
    assert verdict.plan["counter"] == 2
    assert told(verdict) in ("reproduced", "unproven_read")
    assert parse(StateSnapshot, world.streams[Stream.SNAPSHOTS][0]).entity_key == KEY


def test_an_append_that_may_have_found_a_scalar_is_no_divergence(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["set", "a", "x"]], 0)
    life.start([["append", "a", "yy"], ["do", "pay"], ["delete", "a"], ["out"]], 10)
    life.export(20)
    world = life.close()
    verdict = judged(world, world.attempts[1], runner, untraced=world.attempts[:1], without=[Role.EVENTS])
    assert verdict.outcome is Outcome.IRREPRODUCIBLE
    assert told(judged(world, world.attempts[1], runner)) == "reproduced"


def test_a_stream_that_begins_later_does_not_refuse_an_envelope(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["set", "a", "x"], ["end"]], 0)
    life.start([["set", "b", "x"], ["out"]], 0)
    life.export(10)
    world = life.close()
    world.events = world.events[1:]
    assert told(judged(world, world.attempts[0], runner)) in ("reproduced", "ambiguous_attempt")


def test_code_that_comes_out_differently_every_time_is_told_so(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["noisy", 1], ["do", "pay"], ["out"]], 0)
    world = life.close()
    assert told(judged(world, world.attempts[0], runner)) == "unsteady"
    assert told(judged(world, world.attempts[0], runner, without=[Role.INTENTS, Role.OUTPUTS])) == "unsteady"
