"""Starts and resumes of one key: what counts, what is committed, what is refused, and in which order it leaves."""

import pytest

from app.pipeline import keyed
from app.pipeline.emission import NotBytes, encode
from app.pipeline.keyed import EMPTY, KeyState, Stream, Timer, TimerSetting
from app.pipeline.loop import TurnLoop
from app.runtime.batching import BatchPolicy
from app.wire import identity, migration
from app.wire.records import (
    AgentEnvelope,
    Continuation,
    LlmCacheBlob,
    MemoryBlob,
    ToolIntent,
    TraceEvent,
    parse,
    serialize,
)
from tests.pipeline.scripted import (
    KEY,
    NOW,
    TTL,
    WALL,
    Life,
    approval,
    dead_letters,
    errors,
    export,
    order,
    result,
    settings,
    start,
    values,
)

FIRST, SECOND = (identity.intent_id(KEY, 0, step) for step in (0, 1))


def test_a_start_commits_and_counts(loop: TurnLoop) -> None:
    life = Life(loop)
    step = life.take(start(("set", "a", "1"), ("ask", "hi"), ("act", "pay"), ("out", "done")))
    assert order(step) == [
        "outputs",
        "intents",
        "ACTIVATION_START",
        "LLM_CALL",
        "INTENT_EMITTED",
        "ACTIVATION_END",
    ]
    assert step.timers == (TimerSetting(Timer.TTL, NOW + TTL),)
    assert life.state.seq == 1
    assert life.state.continuation is None
    assert [serialize(intent) for intent in values(step, Stream.INTENTS)] == list(life.state.pending)
    life.take(start(("set", "b", "2")))
    assert life.state.seq == 2
    assert life.state.pending == ()


def test_an_untouched_key_still_writes_its_blobs(loop: TurnLoop) -> None:
    life = Life(loop)
    life.take(AgentEnvelope(event_time_ms=NOW))
    assert (life.state.memory, life.state.cache) == (b"\x08\x01", b"\x08\x01")


def test_the_runners_key_counts(loop: TurnLoop) -> None:
    envelope = AgentEnvelope(entity_key=b"another", event_time_ms=NOW, external_event=b'[["act", "pay"]]')
    step = Life(loop).take(envelope)
    assert {emission.key for emission in step.emissions} == {KEY}
    assert {event.entity_key for event in values(step, Stream.TRACES)} == {KEY}


def test_a_resume_runs_at_its_suspensions_seq_and_counts_too(loop: TurnLoop) -> None:
    life = Life(loop)
    suspended = life.take(start(("approve",), ("suspend", None, [("out", "after")])))
    deadline = NOW + 3_600_000
    assert suspended.timers == (TimerSetting(Timer.HITL, deadline), TimerSetting(Timer.TTL, deadline + TTL))
    assert order(suspended) == ["intents", "ACTIVATION_START", "INTENT_EMITTED", "SUSPENDED", "ACTIVATION_END"]
    assert life.state.seq == 1
    resumed = life.take(approval(FIRST, at=NOW + 5))
    assert {event.seq for event in values(resumed, Stream.TRACES)} == {0}
    assert life.state.seq == 2
    assert (life.state.continuation, life.state.pending) == (None, ())
    assert life.state.marks.hitl is None
    assert resumed.timers == (TimerSetting(Timer.HITL, None), TimerSetting(Timer.TTL, NOW + 5 + TTL))
    assert {event.seq for event in values(life.take(start()), Stream.TRACES)} == {2}


def test_a_failed_start_leaves_everything_as_it_was(loop: TurnLoop) -> None:
    life = Life(loop)
    life.take(start(("set", "a", "1"), ("approve",), ("suspend",)))
    before = life.state
    step = life.take(start(("set", "a", "2"), ("ask", "x"), ("act", "pay"), ("fail", "no"), at=NOW + 9))
    assert life.state == before
    assert step.timers == ()
    assert order(step) == ["errors", "ERROR"]
    detail = "ValueError('no') failed_at_step=2 after=INTENT_EMITTED"
    assert dead_letters(step) == [("activation_error", detail, NOW + 9)]
    assert errors(step)[0]["error.type"] == "ValueError"


def test_a_failed_resume_leaves_the_suspension_answerable(loop: TurnLoop) -> None:
    life = Life(loop)
    life.take(start(("approve",), ("suspend", None, [("fail", "no")])))
    before = life.state
    step = life.take(approval(FIRST))
    assert life.state == before
    event = values(step, Stream.TRACES)[0]
    assert event.parent_span_id == identity.span_id(KEY, 0, "activation", 0)
    assert order(life.take(approval(FIRST))) == ["errors", "ERROR"]


def test_a_start_takes_the_place_of_a_live_suspension(loop: TurnLoop) -> None:
    life = Life(loop)
    life.take(start(("approve",), ("suspend",)))
    life.take(start(("act", "pay")))
    assert life.state.continuation is None
    assert [parse(ToolIntent, intent).intent_id for intent in life.state.pending] == [identity.intent_id(KEY, 1, 0)]
    assert dead_letters(life.take(approval(FIRST)))[0][:2] == ("orphaned_result", f"no_continuation:{FIRST}")


def test_a_timeout_has_an_empty_detail(loop: TurnLoop) -> None:
    step = Life(loop, activation_timeout_s=0.02).take(start(("sleep", 5.0)))
    assert dead_letters(step) == [("activation_timeout", "", NOW)]
    assert errors(step) == [{"beam_agents.reason": "activation_timeout"}]


def test_a_spent_budget_has_a_reason_of_its_own(loop: TurnLoop) -> None:
    step = Life(loop, max_tokens_per_activation=10).take(start(("ask", "a"), ("ask", "b")))
    reason, detail, _ = dead_letters(step)[0]
    assert reason == "budget_exceeded"
    assert detail.startswith("BudgetExceeded(limit=10, consumed=12) failed_at_step=2 after=LLM_CALL")


def test_a_cancelled_agent_is_not_wrapped(loop: TurnLoop) -> None:
    step = Life(loop).take(start(("cancel",)))
    assert dead_letters(step) == [("activation_error", "CancelledError()", NOW)]
    assert errors(step) == [{"beam_agents.reason": "activation_error", "error.type": "CancelledError"}]


def test_a_task_of_the_agents_that_leaves_does_not_stop_the_host(loop: TurnLoop) -> None:
    life = Life(loop)
    assert dead_letters(life.take(start(("exit",))))[0][0] == "activation_error"
    life.take(start(("out", "still here")))
    assert life.state.seq == 1


def test_an_agent_cannot_change_what_was_delivered(loop: TurnLoop) -> None:
    life = Life(loop)
    life.take(start(("approve",), ("suspend", None, [("spoil",), ("fail", "again")])))
    for answer in (approval(FIRST), result(FIRST)):
        before = serialize(answer)
        life.take(answer)
        assert serialize(answer) == before


def test_an_output_that_is_no_bytes_is_committed_and_no_sink_takes_it(loop: TurnLoop) -> None:
    life = Life(loop)
    step = life.take(start(("text", "not bytes")))
    assert life.state.seq == 1
    assert values(step, Stream.OUTPUTS) == ["not bytes"]
    with pytest.raises(NotBytes, match=r"card-4242.* of type str, expected bytes"):
        encode(step.emissions[0])


class TestOrphans:
    """Answers that nothing waits for, in the order in which they are looked at."""

    def orphan(self, life: Life, answer: AgentEnvelope) -> tuple[str, TraceEvent]:
        before = life.state
        step = life.take(answer)
        assert life.state == before
        assert step.timers == ()
        assert order(step) == ["errors", "ERROR"]
        (reason, detail, at_ms) = dead_letters(step)[0]
        event = values(step, Stream.TRACES)[0]
        why = event.attributes["error.type"]
        assert reason == event.attributes["beam_agents.reason"] == "orphaned_result"
        assert at_ms == answer.event_time_ms == event.start_ms == event.end_ms
        assert detail.partition(":")[0] == why
        return detail, event

    @pytest.fixture
    def life(self, loop: TurnLoop) -> Life:
        """Suspended at seq 1 with two intents: one lives 100 ms, the suspension 1000 ms."""
        life = Life(loop)
        life.take(start())
        life.take(start(("act", "pay", 5000), ("approve", 9000), ("suspend", 1000)))
        return life

    def test_no_continuation(self, loop: TurnLoop) -> None:
        life = Life(loop)
        life.take(start(("act", "pay")))
        detail, event = self.orphan(life, result(FIRST))
        assert detail == f"no_continuation:{FIRST}"
        assert event.seq == 1, "the counter's value"

    def test_unknown_comes_before_late(self, life: Life) -> None:
        detail, event = self.orphan(life, approval(FIRST, at=NOW + 99_999))
        assert detail == f"unknown_intent:{FIRST}"
        assert event.seq == 1
        assert event.span_id == identity.span_id(KEY, 1, "ERROR", 0)

    @pytest.mark.parametrize(("late", "orphaned"), [(999, False), (1000, True)])
    def test_deadline(self, life: Life, late: int, orphaned: bool) -> None:
        answer = approval(identity.intent_id(KEY, 1, 1), at=NOW + late)
        if orphaned:
            assert self.orphan(life, answer)[0].startswith("deadline_passed:")
        else:
            life.take(answer)
            assert life.state.continuation is None

    def test_a_deadline_of_zero_has_passed(self, loop: TurnLoop) -> None:
        life = Life(loop)
        life.take(start(("approve",), ("suspend", 0), at=0))
        assert self.orphan(life, approval(FIRST, at=-5))[0].startswith("deadline_passed:")

    def test_an_expired_intent_of_an_older_suspension(self, life: Life) -> None:
        """Only an escalation keeps a suspension alive beyond an intent, so the cells are put together by hand."""
        assert life.state.continuation is not None
        waiting = parse(Continuation, life.state.continuation)
        waiting.deadline_ms = NOW + 99_999
        life.state = KeyState(
            memory=life.state.memory,
            cache=life.state.cache,
            continuation=serialize(waiting),
            pending=life.state.pending,
            seq=life.state.seq,
        )
        tool = identity.intent_id(KEY, 1, 0)
        assert self.orphan(life, result(tool, at=NOW + 5000))[0] == f"intent_expired:{tool}"
        life.take(approval(identity.intent_id(KEY, 1, 1), at=NOW + 5000))
        assert life.state.continuation is None


class TestSchemaVersions:
    """State of another version stops the turn before anything leaves, except for an export."""

    def blobs(self, version: int) -> KeyState:
        return KeyState(
            memory=serialize(MemoryBlob(state_schema_version=version)),
            cache=serialize(LlmCacheBlob(state_schema_version=version)),
            seq=4,
        )

    def test_newer_is_refused(self, loop: TurnLoop) -> None:
        life = Life(loop, self.blobs(9))
        with pytest.raises(migration.StateSchemaFromFutureError):
            life.take(start())

    def test_exported_as_it_is(self, loop: TurnLoop) -> None:
        step = Life(loop, self.blobs(9)).take(export())
        snapshot = values(step, Stream.SNAPSHOTS)[0]
        assert (snapshot.state_schema_version, snapshot.memory.state_schema_version) == (1, 9)

    def test_unstamped_is_version_one(self, loop: TurnLoop) -> None:
        life = Life(loop, KeyState(memory=b"", cache=b"", seq=4))
        life.take(start())
        assert (life.state.seq, life.state.memory) == (5, b"\x08\x01")


class TestExport:
    def test_a_key_never_seen(self, loop: TurnLoop) -> None:
        life = Life(loop)
        step = life.take(export(at=7))
        assert [serialize(value).hex() for value in values(step, Stream.SNAPSHOTS)] == [
            "0801" + "1209" + KEY.hex() + "2007" + "4a05" + b"inc-1".hex()
        ]
        assert (life.state, step.timers) == (EMPTY, ())

    def test_twice_gives_two(self, loop: TurnLoop) -> None:
        life = Life(loop)
        life.take(start(("set", "a", "1"), ("approve",), ("suspend",)))
        steps = [life.take(export()) for _ in range(2)]
        assert steps[0] == steps[1]
        snapshot = values(steps[0], Stream.SNAPSHOTS)[0]
        assert serialize(snapshot.memory) == life.state.memory
        assert serialize(snapshot.llm_cache) == life.state.cache
        assert serialize(snapshot.continuation) == life.state.continuation
        assert tuple(map(serialize, snapshot.pending)) == life.state.pending
        assert snapshot.seq == 1

    def test_written_and_empty_is_present(self, loop: TurnLoop) -> None:
        step = Life(loop, KeyState(memory=b"", continuation=b"")).take(export())
        snapshot = values(step, Stream.SNAPSHOTS)[0]
        assert snapshot.HasField("memory")
        assert snapshot.HasField("continuation")
        assert not snapshot.HasField("llm_cache")

    def test_buffered_events_stay_inside(self, loop: TurnLoop) -> None:
        life = Life(loop, batch_policy=BatchPolicy.ADAPTIVE)
        life.take(start())
        snapshot = values(life.take(export()), Stream.SNAPSHOTS)[0]
        assert not snapshot.HasField("memory")
        assert life.state.marks.flush == WALL + 500


async def test_the_processor_is_a_plain_coroutine() -> None:
    """A host with a loop of its own awaits it."""
    step = await keyed.process(KEY, EMPTY, start(("out", "x")), settings(), wall_ms=WALL)
    assert values(step, Stream.OUTPUTS) == [b"x"]
