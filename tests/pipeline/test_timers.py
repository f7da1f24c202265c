"""What happens when nobody answers, and when a key has been quiet for too long."""

from collections.abc import Callable
from typing import Any

import pytest

from app.pipeline.keyed import EMPTY, Stream, Timer, TimerSetting
from app.pipeline.loop import TurnLoop
from app.runtime.compaction import ExpiringMemory, FlushToLongterm
from app.runtime.hitl import Deny, Drop, Escalate, HitlPolicy
from app.runtime.outcome import FallbackContext
from app.runtime.stores.base import MemoryStore
from app.wire import identity
from app.wire.records import Continuation, MemoryBlob, ToolIntent, parse, serialize
from tests.pipeline.scripted import KEY, NOW, TTL, WALL, Life, approval, dead_letters, errors, order, start, values

FIRST = identity.intent_id(KEY, 0, 0)
DEADLINE = NOW + 1000
SUSPEND = start(("approve", 9_000), ("suspend", 1000, [("out", "resumed")]))

Suspended = Callable[..., Life]


@pytest.fixture
def suspended(loop: TurnLoop) -> Suspended:
    """A life that waits for an approval at seq 0 until DEADLINE, under a policy."""

    def make(on_timeout: Any = None, **options: Any) -> Life:
        if on_timeout is not None:
            options["hitl_policy"] = HitlPolicy(on_timeout=on_timeout, max_escalations=options.pop("escalations", 0))
        life = Life(loop, **options)
        life.take(SUSPEND)
        return life

    return make


def gave_up(life: Life) -> bool:
    state = life.state
    return (state.continuation, state.pending, state.seq) == (None, (), 1)


class TestDeadline:
    def test_denied_by_default(self, suspended: Suspended) -> None:
        life = suspended()
        ttl = life.state.marks.ttl
        step = life.fire(Timer.HITL)
        assert order(step) == ["outputs", "ERROR"]
        assert values(step, Stream.OUTPUTS) == [b"__hitl_timeout__"]
        event = values(step, Stream.TRACES)[0]
        assert (event.seq, event.start_ms, event.end_ms, event.step_index) == (0, DEADLINE, DEADLINE, 0)
        assert event.span_id == identity.span_id(KEY, 0, "timer", 0)
        assert event.parent_span_id == identity.span_id(KEY, 0, "activation", 0)
        assert errors(step) == [{"beam_agents.reason": "hitl_timeout"}]
        assert gave_up(life)
        assert life.state.marks.ttl == ttl, "giving up does not move the wipe"

    def test_an_empty_denial_is_an_output(self, suspended: Suspended) -> None:
        step = suspended(lambda _: Deny(b"")).fire(Timer.HITL)
        assert values(step, Stream.OUTPUTS) == [b""]

    def test_dropped_under_its_own_reason(self, suspended: Suspended) -> None:
        life = suspended(lambda _: Drop("nobody_home"))
        step = life.fire(Timer.HITL)
        assert order(step) == ["errors", "ERROR"]
        assert dead_letters(step) == [("nobody_home", "seq=0", DEADLINE)]
        assert errors(step) == [{"beam_agents.reason": "hitl_timeout"}]
        assert gave_up(life)

    def test_the_policy_sees_the_suspension(self, suspended: Suspended) -> None:
        seen: list[FallbackContext] = []

        def policy(*arguments: FallbackContext) -> Drop:
            seen.extend(arguments)
            return Drop()

        suspended(policy).fire(Timer.HITL)
        snapshot = b'[["out", "resumed"]]'
        assert seen == [FallbackContext(KEY, 0, snapshot, "timer", DEADLINE, DEADLINE, (FIRST,))]

    @pytest.mark.parametrize("at", [DEADLINE - 1, 0])
    def test_an_older_timer_does_nothing(self, suspended: Suspended, at: int) -> None:
        life = suspended()
        cells = life.state.marked(Timer.HITL, None)
        assert life.fire(Timer.HITL, at) == (cells, (), ())

    def test_nothing_waits_any_more(self, suspended: Suspended) -> None:
        life = suspended()
        life.take(approval(FIRST))
        before = life.state
        assert life.fire(Timer.HITL, DEADLINE) == (before, (), ())

    @pytest.mark.parametrize(
        ("policy", "problem"),
        [
            (lambda _: 1 / 0, "ZeroDivisionError('division by zero')"),
            (lambda _: None, "TypeError('on_timeout returns Deny, Drop or Escalate, not NoneType')"),
            (lambda _: Drop(3), "TypeError("),  # type: ignore[arg-type]
            (lambda _: Escalate("desk", timeout_ms=2**70), "ValueError("),
            (lambda _: Escalate("\ud800"), "UnicodeEncodeError("),
        ],
    )
    def test_a_policy_that_fails(self, suspended: Suspended, policy: Any, problem: str) -> None:
        life = suspended(policy, escalations=1)
        step = life.fire(Timer.HITL)
        assert order(step) == ["errors", "ERROR"]
        ((reason, detail, at_ms),) = dead_letters(step)
        assert (reason, at_ms) == ("hitl_timeout", DEADLINE)
        assert detail.startswith(f"seq=0 policy_error={problem}")
        assert errors(step) == [{"beam_agents.reason": "hitl_timeout"}]
        assert gave_up(life)

    def test_a_failure_that_cannot_be_told(self, suspended: Suspended) -> None:
        class Mute(Exception):
            def __repr__(self) -> str:
                raise RuntimeError

        def policy(_: FallbackContext) -> Deny:
            raise Mute

        ((_, detail, _),) = dead_letters(suspended(policy).fire(Timer.HITL))
        assert detail == "seq=0 policy_error=<Mute, whose repr raises RuntimeError>"


class TestEscalation:
    def escalate(self, _: FallbackContext) -> Escalate:
        return Escalate("boss", '{"why": 1}', timeout_ms=500)

    def test_asks_again(self, suspended: Suspended) -> None:
        life = suspended(self.escalate, escalations=1)
        before = life.state
        step = life.fire(Timer.HITL)
        assert order(step) == ["intents", "INTENT_EMITTED"]
        intent = values(step, Stream.INTENTS)[0]
        assert intent == ToolIntent(
            intent_id=identity.intent_id(KEY, 0, 1),
            entity_key=KEY,
            seq=0,
            step_index=1,
            tool_name="boss",
            args_json='{"why": 1}',
            created_at_ms=DEADLINE,
            expires_at_ms=DEADLINE + 500,
            kind=ToolIntent.APPROVAL,
            trace_id=identity.trace_id(KEY, 0),
        )
        event = values(step, Stream.TRACES)[0]
        assert (event.step_index, event.start_ms) == (1, DEADLINE)
        assert event.parent_span_id == identity.span_id(KEY, 0, "activation", 1)
        assert life.state.pending == (*before.pending, serialize(intent))
        assert life.state.seq == before.seq
        assert life.state.continuation is not None
        waiting = parse(Continuation, life.state.continuation)
        assert (waiting.step_index, waiting.escalations, waiting.deadline_ms) == (2, 1, DEADLINE + 500)
        assert list(waiting.pending_intent_ids) == [FIRST, intent.intent_id]
        assert step.timers == (
            TimerSetting(Timer.HITL, DEADLINE + 500),
            TimerSetting(Timer.TTL, DEADLINE + 500 + TTL),
        )

    def test_the_first_intent_stays_answerable(self, suspended: Suspended) -> None:
        life = suspended(self.escalate, escalations=1)
        life.fire(Timer.HITL)
        step = life.take(approval(FIRST, at=DEADLINE + 1))
        assert values(step, Stream.OUTPUTS) == [b"resumed"]

    def test_past_the_bound_it_is_denied(self, suspended: Suspended) -> None:
        life = suspended(self.escalate, escalations=1)
        life.fire(Timer.HITL)
        step = life.fire(Timer.HITL)
        assert values(step, Stream.OUTPUTS) == [b"__hitl_timeout__"]
        assert gave_up(life)

    def test_the_default_bound_is_none_at_all(self, suspended: Suspended) -> None:
        assert order(suspended(self.escalate).fire(Timer.HITL)) == ["outputs", "ERROR"]


class TestTtl:
    def test_the_latest_setting_holds(self, loop: TurnLoop) -> None:
        life = Life(loop, ttl_ms=1000)
        life.take(start(at=10_000))
        life.take(start(at=0))
        assert life.state.marks.ttl == 1000, "a late event pulls the wipe back"

    def test_nothing_else_moves_it(self, suspended: Suspended) -> None:
        life = suspended()
        mark = life.state.marks.ttl
        assert mark == DEADLINE + TTL
        life.take(start(("fail", "no"), at=NOW + 77))
        life.take(approval("nobody", at=NOW + 77))
        assert life.state.marks.ttl == mark

    def test_wipes_everything(self, suspended: Suspended) -> None:
        life = suspended()
        step = life.fire(Timer.TTL)
        assert order(step) == ["errors", "ERROR"]
        mark = DEADLINE + TTL
        assert dead_letters(step) == [("ttl_wiped_suspension", f"seq=0,deadline_ms={DEADLINE}", mark)]
        event = values(step, Stream.TRACES)[0]
        assert (event.seq, event.start_ms) == (0, mark)
        assert event.span_id == identity.span_id(KEY, 0, "timer", 0)
        assert life.state == EMPTY.marked(Timer.HITL, DEADLINE), "the HITL timer is left to find nothing"
        assert life.fire(Timer.HITL) == (EMPTY, (), ())

    def test_a_quiet_key_goes_without_a_word(self, loop: TurnLoop) -> None:
        life = Life(loop)
        life.take(start(("set", "a", "1")))
        assert life.fire(Timer.TTL) == (EMPTY, (), ())
        assert {event.seq for event in values(life.take(start()), Stream.TRACES)} == {0}, "the counter starts again"

    def test_a_time_beyond_all_times(self, loop: TurnLoop) -> None:
        life = Life(loop)
        life.take(start(at=2**63 - 1))
        assert life.state.marks.ttl == 2**63 - 1


class TestExpireHook:
    """The hook runs after the suspension was told of, on the blob that is about to go."""

    def store(self, life: Life) -> MemoryStore:
        store = life.settings.hooks.config.longterm_store
        assert store is not None
        return store

    def test_memory_is_saved(self, loop: TurnLoop) -> None:
        life = Life(loop, longterm_memory="memory://", on_expire=FlushToLongterm())
        life.take(start(("set", "a", "1"), ("save", "note", "kept")))
        memory = life.state.memory
        life.fire(Timer.TTL)
        saved = loop.run(self.store(life).load(KEY, "working_memory"))
        assert saved is not None
        assert (saved.value, saved.seq, saved.updated_at_ms) == (memory, 1, NOW + TTL)
        note = loop.run(self.store(life).load(KEY, "note"))
        assert note is not None
        assert (note.value, note.seq) == (b"kept", 0)

    def test_not_called_for_nothing(self, loop: TurnLoop) -> None:
        seen: list[ExpiringMemory] = []

        async def hook(_: MemoryStore, expiring: ExpiringMemory) -> None:
            seen.append(expiring)

        life = Life(loop, longterm_memory="memory://", on_expire=hook)
        life.take(start())
        life.fire(Timer.TTL)
        assert seen == []
        life.take(start(("set", "a", "1")))
        life.fire(Timer.TTL)
        assert [(one.entity_key, one.seq, one.expired_at_ms) for one in seen] == [(KEY, 1, NOW + TTL)]
        assert isinstance(seen[0].blob, MemoryBlob)

    def test_a_hook_that_fails_leaves_the_key_to_be_wiped_again(self, loop: TurnLoop) -> None:
        async def hook(_: MemoryStore, __: ExpiringMemory) -> None:
            raise ConnectionError("no store")

        life = Life(loop, longterm_memory="memory://", on_expire=hook)
        life.take(start(("set", "a", "1")))
        before = life.state
        with pytest.raises(ConnectionError):
            life.fire(Timer.TTL)
        assert life.state == before

    def test_a_save_that_fails_fails_the_attempt(self, loop: TurnLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        life = Life(loop, longterm_memory="memory://")

        async def refuse(_: object) -> bool:
            raise ConnectionError("no store")

        monkeypatch.setattr(self.store(life), "_save", refuse)
        step = life.take(start(("set", "a", "1"), ("save", "note", "lost")))
        assert life.state == EMPTY
        assert errors(step)[0]["error.type"] == "LongtermFlushFailed"
        assert errors(step)[0]["beam_agents.failure.last_event"] == "ACTIVATION_END"


def test_the_wall_clock_does_not_matter_without_batching(loop: TurnLoop) -> None:
    lives = [Life(loop, wall_ms=wall) for wall in (0, WALL)]
    steps = [(life.take(SUSPEND), life.fire(Timer.HITL), life.fire(Timer.TTL)) for life in lives]
    assert steps[0] == steps[1]
