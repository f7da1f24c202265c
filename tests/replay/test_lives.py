"""A wiped key starts again at seq 0; where clocks do not tell its lives apart, nothing is guessed."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app.replay.attempts import Attempt, Category
from app.replay.evidence import Snapshot
from app.replay.images import Counters, Images
from app.replay.lives import assign_lives, unsettle_backwards
from app.replay.select import Unanswerable
from app.wire.records import MemoryBlob, StateSnapshot


def attempts(*given: tuple[str, int, int]) -> list[Attempt]:
    """Committed attempts of (kind, seq, clock), with lives assigned."""
    found = [
        Attempt(b"k", seq, clock, Category.ACTIVATION, kind=kind, entry_step=0 if kind == "start" else 1)
        for kind, seq, clock in given
    ]
    assign_lives(found)
    return found


@pytest.mark.parametrize(
    ("given", "lives", "ambiguous"),
    [
        ([("start", 0, 10), ("start", 1, 20)], [0, 0], False),
        ([("start", 0, 30), ("start", 1, 10)], [0, 0], False),  # one life may run backwards
        ([("start", 0, 10), ("start", 1, 20), ("start", 0, 90), ("start", 1, 95)], [0, 0, 1, 1], False),
        ([("start", 0, 10), ("resume", 0, 20), ("start", 0, 90), ("resume", 0, 95)], [0, 0, 1, 1], False),
        # It lies near the first start of its own life, which came a time to live after the other life's last.
        ([("start", 0, 10), ("resume", 0, 20), ("start", 0, 90), ("resume", 0, 80)], [0, 0, 1, 1], False),
        ([("start", 0, 10), ("start", 1, 50), ("start", 0, 90)], None, True),  # it lies in the middle
        ([("start", 0, 10), ("start", 1, 50), ("start", 0, 90), ("start", 1, 40)], None, True),
        ([("start", 1, 10), ("resume", 0, 20), ("resume", 0, 80)], None, True),
    ],
)
def test_lives(given: Sequence[tuple[str, int, int]], lives: list[int] | None, ambiguous: bool) -> None:
    found = attempts(*given)
    if lives is not None:
        assert [attempt.life for attempt in found] == lives
    assert any(attempt.unsettled for attempt in found) == ambiguous


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_states_of_one_counter_are_a_conflict_in_any_order(order: tuple[int, int]) -> None:
    snapshots = []
    for value in (b"\x00a", b"\x00b"):
        memory = MemoryBlob()
        memory.entries.add(key="x", value=value, last_access_ms=10)
        snapshots.append(Snapshot(StateSnapshot(seq=1, memory=memory), f"{value[1:].decode()}.pb"))
    images = Images([snapshots[at] for at in order], attempts(("start", 0, 10)), 0)
    with pytest.raises(Unanswerable, match="one life of a key has one state"):
        images.exact(1, first_start=False)


class Read(Attempt):
    """An attempt that counts how often anything of it is read."""

    times = 0

    def __getattribute__(self, name: str) -> Any:
        Read.times += 1
        return super().__getattribute__(name)


def reads_of(seqs: int, ask: Callable[[list[Attempt]], object]) -> int:
    """How often attempts are read to answer a question about a key whose every seq waited once and was resumed."""
    made: list[Attempt] = [
        Read(b"k", seq, 10 * seq + step, Category.ACTIVATION, kind=kind, entry_step=step)
        for seq in range(seqs)
        for step, kind in enumerate(("start", "resume"))
    ]
    Read.times = 0
    ask(made)
    return Read.times


@pytest.mark.parametrize(
    "ask",
    [
        assign_lives,
        lambda made: unsettle_backwards(made, []),
        lambda made: Images([], made, 0),
        lambda made: Counters(made).by_identity(),
    ],
)
def test_a_long_history_costs_no_more_for_each_attempt_than_a_short_one(
    ask: Callable[[list[Attempt]], object],
) -> None:
    assert reads_of(400, ask) <= 11 * reads_of(40, ask)
