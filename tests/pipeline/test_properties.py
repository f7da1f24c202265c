"""What holds for every sequence of elements and timers, whatever the agent does in between."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.pipeline import keyed
from app.pipeline.keyed import EMPTY, KeySettings, KeyState, Step, Stream, Timer, encode
from app.pipeline.loop import TurnLoop
from app.runtime.batching import BatchPolicy
from app.runtime.hitl import Deny, Drop, Escalate, HitlPolicy, Route
from app.runtime.outcome import FallbackContext
from app.wire import identity
from app.wire.records import ActivationErrorRecord, AgentEnvelope, Continuation, TraceEvent, parse
from tests.pipeline import scripted
from tests.pipeline.scripted import KEY, NOW, WALL

# One module-wide loop: Hypothesis does not like fixtures that live shorter than its examples.
pytestmark = pytest.mark.usefixtures("turn_loop")
_loops: list[TurnLoop] = []


@pytest.fixture(scope="module")
def turn_loop() -> Iterator[None]:
    _loops.append(TurnLoop())
    yield
    _loops.pop().close()


# Sequences


def follow(fallback: FallbackContext) -> Route:
    """A policy with every ending: it goes by the suspension's deadline."""
    choice = fallback.deadline_ms % 5
    if choice == 0:
        raise LookupError("no route")
    return (Deny(), Drop("own reason"), Escalate("boss", timeout_ms=701), Escalate("desk", timeout_ms=50))[choice - 1]


names = st.sampled_from(["a", "b", "c"])
harmless = st.one_of(
    st.tuples(st.just("set"), names, names),
    st.tuples(st.just("append"), st.just("ring"), names),
    st.tuples(st.just("get"), names),
    st.tuples(st.just("ask"), names),
    st.tuples(st.just("act"), names, st.sampled_from([None, 0, 40, 9_000])),
    st.tuples(st.just("approve"), st.sampled_from([None, 60])),
)
failures = st.sampled_from([("fail", "no"), ("cancel",), ("ask", "BOOM")])
waits = st.sampled_from([None, 0, 61, 93, 95, 9_001])
suspend = st.tuples(st.just("suspend"), waits, st.lists(st.one_of(harmless, failures), max_size=2))
again = st.builds(lambda wait, then: ("suspend", wait, [("approve",), then]), waits, suspend)
bodies = st.lists(harmless, max_size=3)
waiting = st.builds(lambda body, end: [*body, ("approve",), end], bodies, st.one_of(suspend, again))
ending = st.builds(lambda body, end: [*body, end], bodies, st.one_of(failures, st.just(("out", "done"))))
scripts = st.one_of(waiting, waiting, ending, bodies, suspend.map(lambda end: [end]))
times = st.integers(NOW - 30, NOW + 70)


@dataclass(frozen=True)
class Answer:
    """An answer to whatever waits when it arrives: to one of its intents, or to one that never was."""

    choice: int
    make: Callable[[str, int], AgentEnvelope]
    at_ms: int

    def element(self, state: KeyState) -> AgentEnvelope:
        ids = []
        if state.continuation is not None:
            ids += 2 * list(parse(Continuation, state.continuation).pending_intent_ids)
        ids.append(identity.intent_id(KEY, 77, 0))
        return self.make(ids[self.choice % len(ids)], self.at_ms)


answers = st.builds(Answer, st.integers(0, 3), st.sampled_from([scripted.approval, scripted.result]), times)
starts = st.builds(lambda script, at: scripted.start(*script, at=at), scripts, times)
elements = st.one_of(starts, answers, answers, st.just(AgentEnvelope(event_time_ms=NOW)))
exports = st.builds(scripted.export, st.sampled_from(["inc-1", "inc-2", ""]), times)
firings = st.sampled_from(Timer)
sequences = st.lists(st.one_of(elements, elements, elements, firings), min_size=1, max_size=15)

pipelines: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"ttl_ms": 20, "hitl_policy": HitlPolicy(on_timeout=follow, max_escalations=2)},
        {"max_tokens_per_activation": 10},
        {
            "batch_policy": BatchPolicy.ADAPTIVE,
            "max_batch_size": 2,
            "max_buffered_events": 3,
            "hitl_policy": HitlPolicy(on_timeout=follow),
        },
    ]
)

examples = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def turn(state: KeyState, action: Any, pipeline: KeySettings, wall_ms: int = WALL) -> Step | None:
    """Take one action; None for a timer that is not set."""
    if isinstance(action, Timer):
        at_ms = getattr(state.marks, action)
        if at_ms is None:
            return None
        return _loops[0].run(keyed.fire(KEY, state, action, at_ms, pipeline, wall_ms=wall_ms))
    if isinstance(action, Answer):
        action = action.element(state)
    return _loops[0].run(keyed.process(KEY, state, action, pipeline, wall_ms=wall_ms))


@dataclass(frozen=True)
class Taken:
    """One turn that was taken, with the state it began from."""

    action: Any
    before: KeyState
    step: Step


def live(actions: list[Any], options: dict[str, Any], state: KeyState = EMPTY) -> list[Taken]:
    """A whole life."""
    pipeline, taken = scripted.settings(**options), []
    for action in actions:
        step = turn(state, action, pipeline)
        if step is not None:
            taken.append(Taken(action, state, step))
            state = step.state
    return taken


def sent(step: Step) -> list[tuple[Stream, bytes, bytes]]:
    return [(emission.stream, emission.key, encode(emission)) for emission in step.emissions]


def is_export(action: Any) -> bool:
    return isinstance(action, AgentEnvelope) and action.WhichOneof("payload") == "export_request"


# Properties


@examples
@given(sequences, st.lists(st.tuples(st.integers(0, 12), exports), min_size=1, max_size=4), pipelines)
def test_an_export_changes_nothing(actions: list[Any], asked: list[tuple[int, Any]], options: dict[str, Any]) -> None:
    """Exports put in anywhere: each gives one snapshot, and everything else is as without them."""
    mixed = list(actions)
    for position, export in sorted(asked, key=lambda pair: pair[0], reverse=True):
        mixed.insert(position, export)
    quiet, disturbed = live(actions, options), live(mixed, options)
    for taken in disturbed:
        if is_export(taken.action):
            assert taken.step.state == taken.before
            assert taken.step.timers == ()
            ((stream, key, _),) = sent(taken.step)
            assert (stream, key) == (Stream.SNAPSHOTS, KEY)
            check_snapshot(taken)
    others = [taken for taken in disturbed if not is_export(taken.action)]
    assert [sent(taken.step) for taken in others] == [sent(taken.step) for taken in quiet]
    assert [taken.step.timers for taken in others] == [taken.step.timers for taken in quiet]
    assert [taken.step.state for taken in others] == [taken.step.state for taken in quiet]


def check_snapshot(taken: Taken) -> None:
    """The snapshot is the state, cell by cell."""
    snapshot, state = taken.step.emissions[0].value, taken.before
    cells = {"memory": state.memory, "llm_cache": state.cache, "continuation": state.continuation}
    for name, cell in cells.items():
        assert snapshot.HasField(name) == (cell is not None)
        assert cell is None or getattr(snapshot, name).SerializeToString(deterministic=True) == cell
    assert tuple(intent.SerializeToString(deterministic=True) for intent in snapshot.pending) == state.pending
    assert (snapshot.seq, snapshot.request_id) == (state.seq, taken.action.export_request.request_id)


@examples
@given(sequences, pipelines, st.integers(0, 2 * WALL))
def test_redelivery_gives_the_same_bytes(actions: list[Any], options: dict[str, Any], later_ms: int) -> None:
    """Same state, same element, set up anew and later on the wall clock: what leaves is the same, byte for byte."""
    for taken in live(actions, options):
        again = turn(taken.before, taken.action, scripted.settings(**options), wall_ms=later_ms)
        assert again is not None
        assert sent(again) == sent(taken.step)
        same = {"ttl": again.state.marks.ttl, "hitl": again.state.marks.hitl}
        assert same == {"ttl": taken.step.state.marks.ttl, "hitl": taken.step.state.marks.hitl}
        assert again.state.marked(Timer.FLUSH, None) == taken.step.state.marked(Timer.FLUSH, None)


@examples
@given(sequences, pipelines)
def test_the_counter_counts_commits(actions: list[Any], options: dict[str, Any]) -> None:
    """Up by one with each commit, never down but to zero when the key is wiped."""
    for taken in live(actions, options):
        before, after = taken.before.seq, taken.step.state.seq
        committed = sum(event.event_type == TraceEvent.ACTIVATION_END for event in traces(taken.step))
        if taken.action is Timer.TTL:
            assert (after, committed) == (0, 0)
        else:
            assert after == before + committed
            assert committed <= 1
        if not committed and not isinstance(taken.action, Timer):
            assert taken.step.state.memory == taken.before.memory
            assert taken.step.state.continuation == taken.before.continuation


def traces(step: Step) -> list[Any]:
    return [emission.value for emission in step.emissions if emission.stream is Stream.TRACES]


SILENT = {"ttl_wiped_batch", "batch_buffer_overflow"}


@examples
@given(sequences, pipelines)
def test_every_dead_letter_has_its_event(actions: list[Any], options: dict[str, Any]) -> None:
    """One ERROR of that reason and time for each, one for all members of a batch, none for the two silent reasons."""
    for taken in live(actions, options):
        letters = [parse(ActivationErrorRecord, value.external_event) for value in errors(taken.step)]
        failures = [event for event in traces(taken.step) if event.event_type == TraceEvent.ERROR]
        expected: Counter[tuple[str, int]] = Counter()
        for letter in letters:
            if letter.reason not in SILENT:
                reason = "hitl_timeout" if taken.action is Timer.HITL else letter.reason
                expected[reason, letter.event_time_ms] = 1
        if taken.action is Timer.HITL and any(e.stream is Stream.OUTPUTS for e in taken.step.emissions):
            expected["hitl_timeout", failures[0].start_ms] = 1
        found = Counter((event.attributes["beam_agents.reason"], event.start_ms) for event in failures)
        assert found == expected


def errors(step: Step) -> list[Any]:
    return [emission.value for emission in step.emissions if emission.stream is Stream.ERRORS]


@examples
@given(sequences, pipelines)
def test_nothing_waits_for_ever(actions: list[Any], options: dict[str, Any]) -> None:
    """A suspension has its deadline's timer, a buffer its flush timer, and whatever a key holds has its wipe."""
    for taken in live(actions, options):
        state = taken.step.state
        if state.continuation is not None:
            assert state.marks.hitl == parse(Continuation, state.continuation).deadline_ms
        if state.batch and state.continuation is None:
            assert state.marks.flush is not None
        if state.memory is not None or state.batch:
            assert state.marks.ttl is not None
