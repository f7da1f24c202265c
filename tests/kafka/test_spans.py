"""Spans behave as the sets of offsets that they stand for."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.kafka.spans import Spans

pair = st.tuples(st.integers(0, 60), st.integers(0, 60))


@given(st.lists(pair, max_size=12), pair)
def test_spans_are_sets(added: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    spans, offsets = Spans(), set()
    for start, end in added:
        spans.add(start, end)
        offsets |= set(range(start, end))
    assert len(spans) == len(offsets)
    assert {one for start, end in spans for one in range(start, end)} == offsets
    kept = list(spans)
    assert all(start < end for start, end in kept)
    assert all(before[1] < after[0] for before, after in pairwise(kept))
    missing = spans.missing(*asked)
    assert {one for start, end in missing for one in range(start, end)} == set(range(*asked)) - offsets
    assert all(start < end for start, end in missing)
