"""Raw records in segments: each comes out exactly as it went in, whatever it is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.incidents.live_evidence import read_offsets, write_offsets
from app.incidents.projection import Place as At
from app.incidents.projection import Range, inside, ranges_of, read_places, write_places
from app.incidents.segments import Raw, pack, unpack

TIMES = st.none() | st.integers(-(2**40), 2**42)
BYTES = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2).map(tuple)


@st.composite
def records(draw: st.DrawFn) -> list[Raw]:
    offset, found = draw(st.integers(0, 2**62)), []
    for _ in range(draw(st.integers(1, 30))):
        found.append(Raw(offset, draw(TIMES), draw(BYTES), draw(BYTES), draw(HEADERS)))
        offset += draw(st.sampled_from([1, 1, 1, 2, 10_000_000_000]))
    return found


@given(records())
def test_what_went_in_comes_out(given_records: list[Raw]) -> None:
    data, size = pack(given_records)
    assert unpack(data) == given_records
    assert size >= sum(len(record.value or b"") for record in given_records)
    wanted = given_records[len(given_records) // 2].offset
    assert unpack(data, lambda offset: offset == wanted) == [one for one in given_records if one.offset == wanted]


def test_a_segment_of_a_newer_version_is_refused() -> None:
    import zlib

    data, _ = pack([Raw(0, 0, b"", b"")])
    newer = zlib.compress(b"\x09" + zlib.decompress(data)[1:])
    with pytest.raises(ValueError, match="written by a newer Hindcast"):
        unpack(newer)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2000)), max_size=40))
def test_places_become_the_same_ranges_in_any_order(places: list[tuple[int, int, int]]) -> None:
    at = [At(*one) for one in places]
    ranges = ranges_of(at)
    shuffled = at[:]
    random.Random(1).shuffle(shuffled)
    assert ranges_of(shuffled) == ranges
    for place in at:
        assert any(one[:2] == place[:2] and one.first <= place.offset <= one.last for one in ranges)
    assert read_places(write_places(7, ranges)) == (7, ranges)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12), st.integers(0, 90))
def test_a_set_of_spans_knows_what_is_inside(spans: list[tuple[int, int]], offset: int) -> None:
    pairs = [(first, first + more) for first, more in spans]
    assert inside(pairs)(offset) == any(first <= offset <= last for first, last in pairs)


@given(st.sets(st.integers(0, 300)))
def test_offsets_are_written_as_people_read_them(offsets: set[int]) -> None:
    ordered = sorted(offsets)
    if ordered:
        assert list(read_offsets(write_offsets(ordered))) == ordered
    assert write_offsets([3, 4, 5, 9]) == "3-5,9"


def test_a_range_is_what_it_says() -> None:
    assert ranges_of([At(1, 0, 5), At(1, 0, 70), At(1, 0, 134), At(1, 0, 199)]) == (
        Range(1, 0, 5, 5), Range(1, 0, 70, 134), Range(1, 0, 199, 199))  # fmt: skip
