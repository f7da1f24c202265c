"""A key that was wiped and used again, where the first start of its second life is in no trace."""

import random

from app.pipeline.keyed import Stream, Timer
from app.replay.engine import replay
from app.replay.evidence import EvidenceFile, Role
from app.replay.inprocess import InProcessRunner
from app.replay.verdict import Outcome
from app.wire.framing import write_frames
from app.wire.records import serialize
from tests.replay.wild.test_wild import wrong
from tests.replay.wild.world import TTL, Attempt, Life, Maker, World, code

KINDS = ["get", "get", "ring", "keys", "set", "set", "append", "delete", "ask", "do", "do", "if", "keep"]


def two_lives(chance: random.Random) -> World:
    life, maker, at = Life(), Maker(chance, KINDS), 0
    for _ in range(2):
        for _ in range(chance.randrange(1, 5)):
            at += chance.randrange(10, 1_500)
            opening = [["set", "a", chance.choice(("x", "yy"))]] if chance.random() < 0.6 else []
            life.start([*opening, ["get", "a"], ["do", "pay"], *maker.script()], max(0, at - chance.randrange(200)))
            if chance.random() < 0.5:
                life.export(at)
            if chance.random() < 0.4:
                at += chance.randrange(1_000)
                life.answer(at)
        life.fire(Timer.TTL)
        at += TTL + 900 + chance.randrange(4_000)
    return life.close()


def delivered(world: World, target: Attempt, untraced: list[Attempt], chance: random.Random) -> list[EvidenceFile]:
    gone = {serialize(event) for attempt in untraced for event in attempt.traces}
    traces = [frame for frame in world.streams[Stream.TRACES] if frame not in gone]
    files = [
        EvidenceFile(Role.EVENT, "event.pb", serialize(target.envelopes[0])),
        EvidenceFile(Role.TRACES, "traces.bin", write_frames(traces)),
    ]
    if chance.random() < 0.3:
        events = write_frames([serialize(event) for event in world.events])
        files.append(EvidenceFile(Role.EVENTS, "events.bin", events))
    kept = [one for one in world.streams[Stream.SNAPSHOTS] if chance.random() < 0.7]
    return files + [EvidenceFile(Role.SNAPSHOT, f"{at}.pb", data) for at, data in enumerate(kept)]


def test_what_carries_on_the_counter_of_a_life_before_is_never_wronged(runner: InProcessRunner) -> None:
    reproduced = 0
    for seed in range(50):
        world = two_lives(random.Random(seed))
        later = [one for one in world.attempts if one.life == 1]
        for at, target in enumerate(later[1:]):
            for share in (0.0, 0.5):
                chance = random.Random(f"{seed} {at} {share}")
                others = [one for one in world.attempts if one is not target and chance.random() < share]
                verdict = replay(
                    delivered(world, target, [later[0], *others], chance), runner, code(batch=False)
                ).verdict
                assert wrong(verdict, target) is None, (seed, at, share)
                reproduced += verdict.outcome is Outcome.REPRODUCED
    assert reproduced > 20
