"""The engine over agents that ask for everything: what it does as Flink does, and what it refuses by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.flink.inside.messages import (
    Exchange,
    Handling,
    Input,
    InputResult,
    Outcome,
    Policy,
    Request,
    Result,
    Retrieval,
    digest,
    message_as_logged,
    query_digest,
    request_as_logged,
)
from app.flink.rerun.recorded import from_wire, to_wire
from tests.fixtures.flink import Runners

AGENTS = Path(__file__).with_name("agents")
RUN_FUNCTIONS = {"function": Handling(policy=Policy.ALLOW)}


@pytest.fixture
def feed(flink_build: Runners) -> Any:
    """Feed inputs to an agent of `agents/odd.py`, confined; gives what came of each."""

    def run(agent: str, *inputs: Input, config: str | None = None, handling: dict[str, Handling] | None = None) -> Any:
        ran = flink_build(agent, f"odd:{agent}", AGENTS, config=config).run(
            Request(inputs=list(inputs) or [Input(key="k", seq=0, value="x")], handling=handling or {})
        )
        assert ran.result is not None, ran.detail
        return ran.result

    return run


def one(result: Result) -> InputResult:
    assert result.refusal == ""
    (done,) = result.inputs
    return done


def output(done: InputResult) -> Any:
    assert done.ending == "finished", done.detail
    return done.events[-1].attributes["output"]


def asked(text: str, answer: str | None, *, failures: int = 0, model: str = "llm") -> Exchange:
    told = None if answer is None else message_as_logged({"role": "assistant", "content": answer})
    request = request_as_logged(model, [message_as_logged({"content": text})], {})
    return Exchange(digest=digest(request), answer=told, failures=failures)


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        ("LongMemory", "Long-term memory"),
        ("Sleeper", "'on_input', which awaits something else"),
        ("Loop", "'on_input', which uses asyncio"),
        ("Skilled", "the skills juggling"),
        ("Javan", "the Java resource 'llm' (chat_model)"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(feed: Any, agent: str, named: str) -> None:
    done = one(feed(agent))
    assert done.ending == "unsupported"
    assert named.lower() in done.detail.lower()
    assert [event.type for event in done.events] == ["_input_event"]


def test_a_plan_that_asks_a_server_while_it_is_compiled_is_refused_with_its_name(feed: Any) -> None:
    result = feed("Served")
    assert result.refusal_kind == "plan"
    assert "the MCP server remote" in result.refusal
    assert result.inputs == []


@pytest.mark.parametrize(
    ("agent", "kind", "named"),
    [("NoSuch", "import", "no attribute 'NoSuch'"), ("NOT_AN_AGENT", "agent", "is a int; an Agent")],
)
def test_what_is_no_agent_is_said(feed: Any, agent: str, kind: str, named: str) -> None:
    result = feed(agent)
    assert (result.refusal_kind, result.inputs) == (kind, [])
    assert named in result.refusal


def test_agent_code_cannot_swallow_the_end_of_a_run(feed: Any) -> None:
    """Row 50: it catches everything, goes on, and fails with an error of its own; the run ended before that."""
    done = one(feed("Swallower"))
    assert done.ending == "missed"
    assert "'ask'" in done.detail
    assert [event.type for event in done.events] == ["_input_event"]
    assert from_wire(done.memory) == {}


def test_an_error_of_the_agent_is_a_result(feed: Any) -> None:
    done = one(feed("Failing"))
    assert (done.ending, done.error_type, done.error_message, done.action) == (
        "failed", "ValueError", "no good", "on_input",
    )  # fmt: skip
    assert "odd.py" in done.detail
    assert [event.type for event in done.events] == ["_input_event", "before"]


def test_recorded_failures_fail_again_and_nobody_waits(feed: Any) -> None:
    """Two tries failed when it was recorded; the agent's own strategy retries, in no time at all."""
    given = Input(key="k", seq=0, value="hi", exchanges=[asked("hi", "well", failures=2)])
    done = one(feed("Retrier", given, config="odd:RETRY"))
    assert json.loads(output(done)) == {"said": "well", "retries": 2}
    assert [call.detail for call in done.calls] == ["a try that failed as recorded"] * 2 + [""]
    without = one(feed("Retrier", given))
    assert (without.ending, without.error_type) == ("failed", "RecordedFailure")


def test_equal_requests_are_answered_in_their_order(feed: Any) -> None:
    exchanges = [asked("hi", "first"), asked("hi", "second")]
    results = feed("Retrier", *(Input(key="k", seq=n, value="hi", exchanges=exchanges[n:]) for n in range(2))).inputs
    assert [json.loads(output(done))["said"] for done in results] == ["first", "second"]


def test_a_model_called_past_all_events_finds_its_answer_by_the_same_digest(feed: Any) -> None:
    given = Input(key="k", seq=0, value="direct", exchanges=[asked("direct", "found")])
    done = one(feed("Retrier", given))
    assert json.loads(output(done)) == "found"
    assert done.calls[0].direct


def test_a_request_that_the_record_leaves_open_ends_the_run(feed: Any) -> None:
    done = one(feed("Retrier", Input(key="k", seq=0, value="hi", exchanges=[asked("hi", None)])))
    assert done.ending == "missed"
    assert done.calls[-1].detail == "the record ends at this request"


def test_a_set_up_that_asks_twice_for_one_request_is_refused(feed: Any) -> None:
    given = Input(key="k", seq=0, value="twice", exchanges=[asked("twice", "once", model="twice")])
    done = one(feed("Retrier", given))
    assert done.ending == "unsupported"
    assert "'twice'" in done.detail


def test_a_blocked_model_ends_the_run(feed: Any) -> None:
    handling = {"chat_model_connection": Handling(policy=Policy.BLOCK)}
    done = one(feed("Retrier", Input(key="k", seq=0, value="hi", exchanges=[asked("hi", "well")]), handling=handling))
    assert (done.ending, done.calls[-1].outcome) == ("refused", Outcome.REFUSED)


def test_memory_is_flinks(feed: Any) -> None:
    """Copies in and out, objects and values by path, what is no stable value refused; sensory memory lasts an input."""
    memory = to_wire({"seen": ["a"], "other.deep": 1})
    first, second = feed(
        "Remembering",
        Input(key="k", seq=0, value="b", memory=memory),
        Input(key="k", seq=1, value="c"),
        handling=RUN_FUNCTIONS,
    ).inputs
    told = output(first)
    assert told["kept"] == ["a"]
    assert told["refused"] == ["ValueError", "TypeError", "ValueError"]
    assert (told["city"], told["name"], told["names"]) == ("Oslo", "Ada", ["address", "name"])
    assert told["fields"] == {"other": "NestedObject", "person": "NestedObject", "seen": ["a", "b"]}
    assert (told["exists"], told["sync"], told["async"], told["once"]) == ([True, False], 8, 10, True)
    assert first.reads == ["*", "nobody", "person.address", "seen"] or "seen" in first.reads
    assert [(call.kind, call.outcome) for call in first.calls] == [("function", Outcome.EXECUTED)] * 2
    assert output(second)["kept"] == ["a", "b"]
    assert from_wire(second.memory) == {
        "seen": ["a", "b", "c"], "other.deep": 1, "person.address.city": "Oslo", "person.name": "Ada",
    }  # fmt: skip


def test_keys_do_not_share_memory(feed: Any) -> None:
    given = [Input(key=key, seq=0, value=key) for key in ("a", "b", "a")]
    done = feed("Remembering", *given, handling=RUN_FUNCTIONS).inputs
    assert [output(one)["kept"] for one in done] == [None, None, ["a"]]


def test_retrieval_is_answered_from_the_record(feed: Any) -> None:
    """The store itself is never made: here it could not even be."""
    held = [{"content": "Moby-Dick"}]
    found = Retrieval(store="books", digest=query_digest("books", "whales", 2), documents=held)
    done = one(feed("Searching", Input(key="k", seq=0, value="x", retrievals=[found])))
    assert json.loads(output(done)) == ["Moby-Dick"]
    missing = one(feed("Searching"))
    assert missing.ending == "missed"
    assert "'books'" in missing.detail
