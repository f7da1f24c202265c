"""Agents of a framework, which draws ids and times anew in every run: told apart from what the agent decided."""

import re

import pytest

from app.pipeline.keyed import Stream
from app.replay.inprocess import InProcessRunner
from app.replay.verdict import Outcome
from app.wire.records import StateSnapshot, parse, serialize
from tests.replay.wild.test_stories import judged, told, verdict_on
from tests.replay.wild.world import Life, World

STATE = "__graph__/state"
FIXED = "6f9619ff-8b86-4011-b42d-00c04fc964ff"
UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def conversation() -> World:
    """A start that waits for an approval, its resume, and a second start; exported after each."""
    life = Life()
    then = [["checkpoint", "answered"], ["do", "tell"], ["out"]]
    life.start([["checkpoint", "asked"], ["ask", "x"], ["approve"], ["pause", then]], 0)
    life.export(10)
    life.answer(20)
    life.export(30)
    life.start([["checkpoint", f"order {FIXED}"], ["ask", "y"], ["out"]], 40)
    life.export(50)
    return life.close()


def change(world: World, number: int, old: bytes | re.Pattern[bytes], new: bytes, *, last: bool = False) -> None:
    """Change what a captured state holds of the framework's, once."""
    snapshot = parse(StateSnapshot, world.streams[Stream.SNAPSHOTS][number])
    (entry,) = (entry for entry in snapshot.memory.entries if entry.key == STATE)
    places = list(re.finditer(old, entry.value))
    place = places[-1 if last else 0]
    entry.value = entry.value[: place.start()] + new + entry.value[place.end() :]
    world.streams[Stream.SNAPSHOTS][number] = serialize(snapshot)


def test_what_a_framework_draws_anew_is_no_difference(runner: InProcessRunner) -> None:
    world = conversation()
    for attempt in world.attempts:
        verdict = judged(world, attempt, runner)
        assert told(verdict) == "reproduced"
        assert any("drawn anew in every run" in note for note in verdict.notes)
        assert {surface.name for surface in verdict.surfaces if surface.compared} >= {"memory after"}


def test_without_a_captured_wait_it_is_no_difference_either(runner: InProcessRunner) -> None:
    world = conversation()
    assert told(judged(world, world.attempts[0], runner, snapshots=[1, 2])) == "reproduced"
    # The resume runs from a state that was itself re-run, with the ids of that run.
    verdict = judged(world, world.attempts[1], runner, snapshots=[1, 2])
    assert verdict.plan["memory"]["fit"] == "forward"
    assert told(verdict) == "unproven_read"  # the output hangs on what was read; no stream says whose it is
    assert verdict.differences == ()


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        (0, b"asked", b"asket"),
        (1, b"answered", b"answerer"),
        (2, FIXED.encode(), FIXED.replace("6f", "7f").encode()),  # an id that every run has alike
        (2, b"; last", b": last"),
    ],
)
def test_anything_else_of_its_state_is(runner: InProcessRunner, number: int, old: bytes, new: bytes) -> None:
    world = conversation()
    change(world, number, old, new)
    assert verdict_on(world, world.attempts[number], runner, snapshots=[number]).outcome is not Outcome.REPRODUCED
    assert verdict_on(world, world.attempts[number], runner).outcome is not Outcome.REPRODUCED


def test_two_places_of_one_id_have_one_in_the_record_too(runner: InProcessRunner) -> None:
    world = conversation()
    change(world, 0, UUID, FIXED.encode(), last=True)
    assert verdict_on(world, world.attempts[0], runner).outcome is Outcome.DIVERGED


def test_the_same_outside_of_its_state_is_told_as_unsteady(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["stamp", "seen"], ["ask", "x"], ["out"]], 0)
    life.export(10)
    world = life.close()
    verdict = judged(world, world.attempts[0], runner)
    assert told(verdict) == "unsteady"
    assert {surface.name for surface in verdict.surfaces if surface.state == "different"} == {"memory after"}


def test_a_clock_in_memory_excuses_no_other_difference(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["stamp", "seen"], ["set", "a", "x"], ["do", "pay"], ["end"]], 0)
    life.export(10)
    world = life.close()
    intents = world.streams[Stream.INTENTS]
    assert b"pay" in intents[0]
    world.streams[Stream.INTENTS] = [one.replace(b'{"', b'{ "', 1) for one in intents]
    verdict = verdict_on(world, world.attempts[0], runner)
    assert verdict.outcome is not Outcome.REPRODUCED
