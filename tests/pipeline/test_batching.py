"""Adaptive batching: what waits, what lets it through, and what becomes of it when that fails."""

from collections.abc import Callable
from typing import Any

import pytest

from app.pipeline.keyed import Stream, Timer, TimerSetting
from app.pipeline.loop import TurnLoop
from app.runtime.batching import BatchPolicy
from app.runtime.hitl import Drop, Escalate, HitlPolicy
from app.wire import identity
from app.wire.records import TraceEvent
from tests.pipeline.scripted import KEY, NOW, TTL, WALL, Life, approval, dead_letters, errors, order, start, values

FIRST = identity.intent_id(KEY, 0, 0)
Make = Callable[..., Life]


@pytest.fixture
def make(loop: TurnLoop) -> Make:
    """A life under batches of two, four at most in the buffer."""

    def life(**options: Any) -> Life:
        numbers = {"max_batch_size": 2, "max_buffered_events": 4, **options}
        return Life(loop, batch_policy=BatchPolicy.ADAPTIVE, **numbers)

    return life


def suspend(life: Life) -> None:
    """Bring a key to wait at seq 0 for an approval, 1000 ms long."""
    life.take(start(("approve", 9_000), ("suspend", 1000)))
    life.fire(Timer.FLUSH)
    assert life.state.continuation is not None


def batch_of(step: Any) -> tuple[str, str]:
    event = values(step, Stream.TRACES)[0]
    return event.attributes["beam_agents.batch.size"], event.attributes["beam_agents.batch.trigger"]


def test_the_first_event_waits(make: Make) -> None:
    life = make()
    step = life.take(start(("out", "x"), at=NOW + 3))
    assert step.emissions == ()
    assert step.timers == (TimerSetting(Timer.FLUSH, WALL + 500), TimerSetting(Timer.TTL, NOW + 3 + TTL))
    assert len(life.state.batch) == 1
    assert life.state.seq == 0


def test_the_size_lets_through(make: Make) -> None:
    life = make()
    life.take(start(("set", "a", "1"), at=NOW + 9))
    step = life.take(start(("set", "b", "2"), at=NOW + 3))
    assert batch_of(step) == ("2", "size")
    assert {event.start_ms for event in values(step, Stream.TRACES)} == {NOW + 9}, "the latest member's time"
    assert (life.state.seq, life.state.batch) == (1, ())
    assert life.state.marks.flush is None
    assert life.state.marks.ttl == NOW + 9 + TTL


def test_the_timer_lets_through(make: Make) -> None:
    life = make()
    life.take(start(("set", "a", "1")))
    step = life.fire(Timer.FLUSH)
    assert batch_of(step) == ("1", "timer")
    assert life.state.batch == ()


def test_only_the_first_event_sets_the_timer(make: Make) -> None:
    life = make(max_batch_size=3)
    life.take(start())
    life.wall_ms += 400
    step = life.take(start())
    assert step.timers == (TimerSetting(Timer.TTL, NOW + TTL),)
    assert life.state.marks.flush == WALL + 500


def test_a_suspension_holds_the_buffer(make: Make) -> None:
    life = make()
    suspend(life)
    for _ in range(3):
        assert life.take(start(at=NOW + 50)).emissions == ()
    held = life.state
    assert life.state.marks.ttl == NOW + 50 + TTL, "buffering pulls the wipe before the suspension's own"
    assert life.fire(Timer.FLUSH) == (held.marked(Timer.FLUSH, None), (), ())


def test_a_resume_that_completes_lets_all_through(make: Make) -> None:
    life = make()
    suspend(life)
    for _ in range(3):
        life.take(start(at=NOW + 50))
    life.wall_ms += 7_000
    step = life.take(approval(FIRST, at=NOW + 60))
    assert step.timers[-1] == TimerSetting(Timer.FLUSH, WALL + 7_000)
    assert batch_of(life.fire(Timer.FLUSH)) == ("3", "timer"), "more than max_batch_size"
    assert life.state.seq == 3


def test_a_resume_that_suspends_again_does_not(make: Make) -> None:
    life = make()
    life.take(start(("approve", 9_000), ("suspend", 1000, [("approve",), ("suspend", 1000)])))
    life.fire(Timer.FLUSH)
    life.take(start())
    life.fire(Timer.FLUSH)
    step = life.take(approval(FIRST))
    assert Timer.FLUSH not in {setting.timer for setting in step.timers}


@pytest.mark.parametrize(
    ("policy", "released"),
    [(HitlPolicy(), True), (HitlPolicy(on_timeout=lambda _: Drop()), True),
     (HitlPolicy(on_timeout=lambda _: 1 / 0), True),  # type: ignore[arg-type,return-value]
     (HitlPolicy(on_timeout=lambda _: Escalate("boss"), max_escalations=1), False)],
    ids=["deny", "drop", "raises", "escalate"],
)  # fmt: skip
def test_giving_up_lets_through(make: Make, policy: HitlPolicy, released: bool) -> None:
    life = make(hitl_policy=policy)
    suspend(life)
    life.take(start())
    life.fire(Timer.FLUSH)
    step = life.fire(Timer.HITL)
    assert (TimerSetting(Timer.FLUSH, WALL) in step.timers) is released


def test_giving_up_with_nothing_waiting_sets_no_timer(make: Make) -> None:
    life = make()
    suspend(life)
    assert life.fire(Timer.HITL).timers == ()


def test_a_full_buffer_refuses(make: Make) -> None:
    life = make()
    suspend(life)
    for _ in range(4):
        life.take(start())
    before = life.state
    step = life.take(start(at=NOW + 99))
    assert order(step) == ["errors"], "no trace event"
    assert dead_letters(step) == [("batch_buffer_overflow", "buffered=4,cap=4", NOW + 99)]
    assert (life.state, step.timers) == (before, ())


def test_a_failed_flush_uses_its_buffer_up(make: Make) -> None:
    life = make()
    life.take(start(at=NOW + 9))
    step = life.take(start(("fail", "no"), at=NOW + 3))
    assert order(step) == ["errors", "errors", "ERROR"]
    detail = "ValueError('no') failed_at_step=0 after=ACTIVATION_START batch_size=2,trigger=size"
    assert dead_letters(step) == [("activation_error", detail, NOW + 9)] * 2
    assert not [name for name in errors(step)[0] if "batch" in name]
    assert (life.state.seq, life.state.batch) == (0, ())
    assert life.state.marks.ttl == NOW + 3 + TTL, "the last buffered event's"


def test_a_flush_that_times_out(make: Make) -> None:
    life = make(activation_timeout_s=0.02)
    life.take(start())
    step = life.take(start(("sleep", 5.0)))
    assert dead_letters(step) == [("activation_timeout", "batch_size=2,trigger=size", NOW)] * 2


def test_a_spent_budget_is_an_activation_error_here(make: Make) -> None:
    life = make(max_tokens_per_activation=10)
    life.take(start(("ask", "a")))
    step = life.take(start(("ask", "b")))
    assert {reason for reason, _, _ in dead_letters(step)} == {"activation_error"}
    assert errors(step)[0]["error.type"] == "BudgetExceeded"


def test_a_wipe_takes_the_buffer(make: Make) -> None:
    life = make()
    suspend(life)
    for _ in range(2):
        life.take(start(at=NOW + 50))
    step = life.fire(Timer.TTL)
    mark = NOW + 50 + TTL
    assert dead_letters(step) == [
        ("ttl_wiped_suspension", f"seq=0,deadline_ms={NOW + 1000}", mark),
        ("ttl_wiped_batch", "buffered=2,index=0", mark),
        ("ttl_wiped_batch", "buffered=2,index=1", mark),
    ]
    assert order(step) == ["errors", "ERROR", "errors", "errors"]
    assert step.timers == (TimerSetting(Timer.FLUSH, None),)
    assert (life.state.batch, life.state.continuation, life.state.memory) == ((), None, None)


def test_a_resume_is_no_batch(make: Make) -> None:
    life = make()
    suspend(life)
    step = life.take(approval(FIRST))
    event = values(step, Stream.TRACES)[0]
    assert event.event_type == TraceEvent.ACTIVATION_START
    assert dict(event.attributes) == {"beam_agents.activation.kind": "resume"}
