"""Two ledgers are aligned by what their steps are: every step is told once, and equal ones are counted."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.web.views_steps import Aligned, ChangedStep, EqualSteps, align, chapter, shared_steps


@dataclass(frozen=True)
class Step:
    position: int
    kind: str
    name: str
    digest: str
    ordinal: int | None = None


def steps(*told: str) -> list[Step]:
    """Steps written `kind name digest`."""
    return [Step(n, *one.split()) for n, one in enumerate(told)]


def shown(pairs: list[Aligned]) -> list[tuple[str | None, str | None]]:
    return [(p.left and p.left.digest, p.right and p.right.digest) for p in pairs]  # type: ignore[misc]


def test_one_more_call_is_one_insertion() -> None:
    left = steps("model m a", "model m b", "intent pay c")
    right = steps("model m a", "tool look x", "model m b", "intent pay c")
    assert shown(align(left, right)) == [("a", "a"), (None, "x"), ("b", "b"), ("c", "c")]


def test_a_call_of_another_model_is_the_same_step_changed() -> None:
    pairs = align(steps("model m1 a", "intent pay c"), steps("model m2 b", "intent pay d"))
    assert shown(pairs) == [("a", "b"), ("c", "d")]


STEPS = st.lists(
    st.tuples(st.sampled_from(["model", "tool", "memory"]), st.sampled_from("mn"), st.sampled_from("xyz")), max_size=25
)


@given(STEPS, STEPS)
def test_every_step_stands_exactly_once_and_in_order(one: list[Any], other: list[Any]) -> None:
    left, right = ([Step(n, *told) for n, told in enumerate(side)] for side in (one, other))
    pairs = align(left, right)
    assert [p.left for p in pairs if p.left] == left
    assert [p.right for p in pairs if p.right] == right
    page, seen = chapter(pairs, 0, 3), []
    while True:
        seen += page.pairs
        assert sum(not pair.equal for pair in page.pairs) <= 3
        if page.next is None:
            break
        page = chapter(pairs, page.next, 3)
    assert seen == pairs


def test_thousands_of_steps_that_share_nothing_are_aligned_at_once() -> None:
    left = [Step(n, "memory", f"get k{n % 7}", f"l{n}") for n in range(5_000)]
    right = [Step(n, "memory", f"get k{n % 5}", f"r{n}") for n in range(5_000)]
    assert len(align(left, right)) == 5_000


def test_words_that_differ_are_marked_and_equal_steps_counted() -> None:
    left = steps("tool look same", "model m a", "intent pay c")
    right = steps("tool look same", "model m b", "intent pay c")
    page = chapter(align(left, right), 0, 10)
    request = {"messages": [{"role": "user", "content": "I want 48,00 back"}], "params": {"temperature": 0}}
    bodies = [
        {1: {"request": request, "response": "r", "decoded": {"text": text}}} for text in ("pay 480000", "pay 4800")
    ]
    assert page.positions("left") == [1]
    first, changed, last = shared_steps(page, *bodies)
    assert isinstance(first, EqualSteps)
    assert isinstance(last, EqualSteps)
    assert (first.count, first.what) == (1, "tool look")
    assert isinstance(changed, ChangedStep)
    saw, sampling, answer = changed.texts
    assert (saw.label, saw.same, saw.left.text) == ("it saw", True, "user: I want 48,00 back")
    assert (sampling.label, sampling.same) == ("sampling", True)
    assert [span.text for span in answer.left.spans or () if span.differs] == ["480000"]
    assert [span.text for span in answer.right.spans or () if span.differs] == ["4800"]


def test_a_step_of_one_run_alone_is_shown_unmarked() -> None:
    page = chapter(align(steps("intent pay a"), []), 0, 10)
    (alone,) = shared_steps(page, {0: {"args": '{"a":1}'}}, {})
    assert isinstance(alone, ChangedStep)
    assert (alone.left_there, alone.right_there) == (True, False)
    assert not any(span.differs for span in alone.texts[0].left.spans or ())


def test_a_text_of_megabytes_is_a_head() -> None:
    page = chapter(align(steps("intent pay a"), steps("intent pay b")), 0, 10)
    (changed,) = shared_steps(page, {0: {"args": "x" * 5_000_000}}, {0: {"args": "y" * 5_000_000}})
    assert isinstance(changed, ChangedStep)
    assert changed.texts[0].left.large
