"""Agents of a framework, which draws ids and times anew in every run: told apart from what the agent decided."""

import random
import re
from pathlib import Path

import pytest

from app.pipeline.keyed import Stream
from app.replay.drawn import found
from app.replay.evidence import Role
from app.replay.inprocess import InProcessRunner
from app.replay.rerun_pb2 import AgentCode
from app.replay.verdict import Outcome
from app.wire.records import MemoryBlob, StateSnapshot, parse, serialize
from tests.replay.wild.test_stories import judged, told, verdict_on
from tests.replay.wild.world import FOLDER, Life, World, code

STATE, RING = "__graph__/state", "__graph__/entries"
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


def tampered(world: World, number: int, chance: random.Random) -> bool:
    """Change, add or take away one byte of a captured framework state; whether a single id or time hides it."""
    snapshot = parse(StateSnapshot, world.streams[Stream.SNAPSHOTS][number])
    (entry,) = (entry for entry in snapshot.memory.entries if entry.key == STATE)
    wait = snapshot.continuation
    in_wait = wait.adapter != "" and chance.random() < 0.3
    value = wait.snapshot if in_wait else entry.value
    at, how = chance.randrange(len(value)), chance.choice(("change", "change", "change", "add", "take"))
    new = chance.choice((chance.randbytes(1), chance.choice(b"0123456789abcdef-:.").to_bytes(1)))
    changed = {
        "change": value[:at] + new + value[at + 1 :],
        "add": value[:at] + new + value[at:],
        "take": value[:at] + value[at + 1 :],
    }[how]
    whole = entry.value + b"|" + wait.snapshot
    names = [name for name in found(snapshot.memory, wait) if whole.count(name) == 1]
    places = [value.index(name) for name in names if name in value]
    hidden = any(place <= at <= place + 36 for place in places)
    if in_wait:
        wait.snapshot = changed
    else:
        snapshot.memory.total_value_bytes += len(changed) - len(value)
        entry.value = changed
    world.streams[Stream.SNAPSHOTS][number] = serialize(snapshot)
    return hidden or changed == value


def test_no_byte_of_its_state_may_change_but_in_a_name_that_stands_once(runner: InProcessRunner) -> None:
    chance, world, refused = random.Random(1), conversation(), 0
    honest = list(world.streams[Stream.SNAPSHOTS])
    for number, attempt in enumerate(world.attempts):
        for _ in range(60):
            world.streams[Stream.SNAPSHOTS] = list(honest)
            hidden = tampered(world, number, chance)
            outcome = verdict_on(world, attempt, runner).outcome
            assert hidden or outcome is not Outcome.REPRODUCED, world.streams[Stream.SNAPSHOTS][number]
            refused += outcome is not Outcome.REPRODUCED
    assert refused > 120


def changed_code(folder: Path, old: str, new: str) -> AgentCode:
    """The agent with one line of it changed."""
    text = (FOLDER / "agent.py").read_text()
    assert text.count(old) == 1
    (folder / "agent.py").write_text(text.replace(old, new))
    agent = code(batch=False)
    agent.paths[:] = [str(folder)]
    return agent


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("event", FIXED),
        ("event", "2026-11-30T10:00:00.123456+00:00"),
        ("model", FIXED),
        ("memory", "a"),
        ("tool", 7),
    ],
)
def test_what_the_attempt_was_given_is_no_name_that_it_drew(
    runner: InProcessRunner, tmp_path: Path, source: str, value: object
) -> None:
    life = Life()
    life.start([["set", "a", FIXED], ["end"]], 0)
    life.export(10)
    life.start([["note", source, value], ["end"]], 20)
    life.export(30)
    world = life.close()
    assert told(judged(world, world.attempts[1], runner)) == "reproduced"
    drawing = "datetime.now(UTC).isoformat()" if "T" in str(value) else "uuid.uuid4()"
    kept = 'f"order {value}\\n"'
    agent = changed_code(tmp_path, kept, kept.replace("value", drawing) if source != "model" else _redrawn(kept))
    assert verdict_on(world, world.attempts[1], runner, agent=agent).outcome is Outcome.DIVERGED


def _redrawn(kept: str) -> str:
    """A model's answer kept with another id in it."""
    return kept.replace("value", "value.replace(value[2:], str(uuid.uuid4()))")


@pytest.mark.parametrize("grain", ["microseconds", "milliseconds", "seconds", "epoch"])
def test_a_clock_of_any_grain_is_not_the_codes_doing(runner: InProcessRunner, grain: str) -> None:
    life = Life()
    life.start([["clock", grain], ["end"]], 0)
    life.export(10)
    world = life.close()
    target = world.attempts[0]
    assert judged(world, target, runner).outcome is not Outcome.DIVERGED
    at = rb"\d{10}\.\d+" if grain == "epoch" else rb"[-\d]{10}T[^,\n]+"
    held = parse(StateSnapshot, world.streams[Stream.SNAPSHOTS][0])
    first = re.findall(at, held.memory.entries[0].value)[0]
    old = {"microseconds": b".123456+", "milliseconds": b".123+", "seconds": b"+"}
    older = b"1700000000.2534" if grain == "epoch" else b"2026-01-02T03:04:05" + old[grain] + b"00:00"
    honest = list(world.streams[Stream.SNAPSHOTS])
    # All three readings an older one, as if both had come at one time; then one of the two that are one reading.
    for entry in held.memory.entries:
        before = len(entry.value)
        entry.value = re.sub(at, older, entry.value)
        held.memory.total_value_bytes += len(entry.value) - before
    world.streams[Stream.SNAPSHOTS] = [serialize(held)]
    want = {"milliseconds": ("reproduced", "unclear_times"), "seconds": ("unclear_times", "unsteady")}
    assert told(verdict_on(world, target, runner)) in want.get(grain, ("reproduced",))
    world.streams[Stream.SNAPSHOTS] = honest
    change(world, 0, re.escape(first), older)
    assert verdict_on(world, target, runner).outcome is not Outcome.REPRODUCED


def test_what_a_state_that_was_re_run_drew_is_known(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["checkpoint", f"order {FIXED}"], ["approve"], ["pause", [["checkpoint", "on"], ["end"]]]], 0)
    life.answer(10)
    life.export(20)
    world = life.close()
    target = world.attempts[1]
    verdict = judged(world, target, runner)
    assert verdict.plan["memory"]["fit"] == "forward"
    assert told(verdict) == "reproduced"
    change(world, 0, FIXED.encode(), FIXED.replace("6f", "7f").encode())
    assert verdict_on(world, target, runner).outcome is not Outcome.REPRODUCED


def test_code_that_only_a_framework_makes_vary_is_run_twice(runner: InProcessRunner, tmp_path: Path) -> None:
    """The looks of its modules say that it is steady; what it keeps says that a framework is at work."""
    (tmp_path / "steady.py").write_text(
        "from beam_agents import AgentConfig\n"
        "from beam_agents.core.agent import Complete\n"
        "import pydantic\n"
        "draw = pydantic.BaseModel.__repr_args__.__globals__['__builtins__']['__import__']\n"
        "NAME = ['uu' + 'id', 'uu' + 'id4']\n"
        "async def agent(ctx):\n"
        "    name = str(getattr(draw(NAME[0]), NAME[1])())\n"
        "    ctx.memory.set('__graph__/state', name.encode())\n"
        "    return Complete(name.encode())\n"
    )
    life = Life()
    life.start([["checkpoint", "x"], ["end"]], 0)
    world = life.close()
    agent = AgentCode(agent="steady:agent", paths=[str(tmp_path)])
    verdict = verdict_on(world, world.attempts[0], runner, agent=agent, without=[Role.OUTPUTS])
    assert told(verdict) == "unsteady"


def test_a_framework_that_is_imported_where_it_is_used_is_seen(
    runner: InProcessRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "library" / "wildframe.py").write_text("import uuid\ndef name():\n    return str(uuid.uuid4())\n")
    (tmp_path / "own" / "lazy.py").write_text(
        "from beam_agents.core.agent import Complete\n"
        "async def agent(ctx):\n"
        "    import wildframe\n"
        "    return Complete(wildframe.name().encode())\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "library")
    life = Life()
    life.start([["end"]], 0)
    world = life.close()
    agent = AgentCode(agent="lazy:agent", paths=[str(tmp_path / "own")])
    verdict = verdict_on(world, world.attempts[0], runner, agent=agent, without=[Role.OUTPUTS])
    assert told(verdict) == "unsteady"


def test_an_unclear_time_and_a_varying_memory_are_not_the_codes_doing_together(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["stamp", "seen"], ["clock", "seconds"], ["approve"], ["pause", []]], 0)
    life.export(10)
    world = life.close()
    assert told(judged(world, world.attempts[0], runner)) == "unsteady"


def test_an_id_of_an_earlier_step_that_comes_back_with_an_event_is_still_a_name(runner: InProcessRunner) -> None:
    life = Life()
    life.start([["entry"], ["end"]], 0)
    ring = next(entry for entry in parse(MemoryBlob, life.state.memory or b"").entries if entry.key == RING)
    (name,) = UUID.findall(ring.value)
    life.start([["entry"], ["fact", name.decode()], ["end"]], 10)
    life.export(20)
    world = life.close()
    verdict = judged(world, world.attempts[1], runner)
    assert verdict.plan["memory"]["fit"] == "forward"
    assert told(verdict) == "reproduced"


def test_code_that_varies_is_run_more_than_once_more(runner: InProcessRunner, tmp_path: Path) -> None:
    """One that tosses a coin comes out equal now and then."""
    (tmp_path / "coin.py").write_text(
        "import random\n"
        "from beam_agents.core.agent import Complete\n"
        "RUNS = []\n"
        "async def agent(ctx):\n"
        "    RUNS.append(1)\n"
        "    return Complete(b'tails' if len(RUNS) % 3 == 0 else b'heads')\n"
    )
    life = Life()
    life.start([["out"]], 0)
    world = life.close()
    for without in ([], [Role.OUTPUTS]):
        agent = AgentCode(agent="coin:agent", paths=[str(tmp_path)])
        verdict = verdict_on(world, world.attempts[0], runner, agent=agent, without=without)
        assert told(verdict) == "unsteady"
