"""Values side by side: the marks say exactly what differs, and nothing is lost between the record and the page."""

import json

from hypothesis import given
from hypothesis import strategies as st

from app.web.values import HEAD, LARGE, Shown, canonical, show, show_pair

TEXTS = st.text(max_size=200)


def marked(shown: Shown) -> list[str]:
    return [span.text for span in shown.spans or () if span.differs]


def test_only_the_amount_is_marked() -> None:
    left, right = show_pair('{"amount": 4900, "order": "1188"}', '{"order": "1188", "amount": 49}')
    assert (marked(left), marked(right)) == (["4900"], ["49"])
    assert left.is_json
    assert left.text == '{\n  "amount": 4900,\n  "order": "1188"\n}'


def test_json_that_differs_in_spelling_alone_is_shown_as_it_was_spelled() -> None:
    left, right = show_pair('{"a": 1}', '{"a":1}')
    assert (left.text, right.text) == ('{"a": 1}', '{"a":1}')
    assert not left.is_json
    assert marked(left) == [" "]


def test_numbers_keep_their_spelling() -> None:
    assert canonical('{"z": 1.0, "a": 1e400, "b": 12345678901234567890123}') == (
        '{\n  "a": 1e400,\n  "b": 12345678901234567890123,\n  "z": 1.0\n}'
    )


def test_a_key_named_twice_is_left_alone() -> None:
    assert canonical('{"a": 1, "a": 2}') is None


def test_nesting_without_end_is_left_alone() -> None:
    assert canonical("[" * 100_000) is None


def test_two_ids_differ_as_a_whole() -> None:
    left, _ = show_pair("6bbd6649-a547-54e8-b945-daa1084bfb6a", "9f31f6f3-ca1e-587a-a02e-64610cf9e8ea")
    assert marked(left) == ["6bbd6649-a547-54e8-b945-daa1084bfb6a"]


def test_a_value_without_counterpart_is_marked_whole_and_absence_is_not_emptiness() -> None:
    left, right = show_pair("x", None)
    assert marked(left) == ["x"]
    assert right.spans is None
    assert show("").spans is not None


def test_a_long_equal_stretch_is_folded_with_its_length() -> None:
    left, _ = show_pair("a" * 5000 + " old", "a" * 5000 + " new")
    assert [span.folded for span in left.spans or () if span.folded] == [5001 - 240]
    assert marked(left) == ["old"]


# complaint 34: whatever the payload, what goes onto the page is bounded
def test_a_huge_value_is_a_head_with_size_and_digest() -> None:
    for left, right in (show_pair("a" * 20_000_000, "b" * 20_000_000), (show("a" * 20_000_000), show("b" * 40_000))):
        assert left.large
        assert right.large
        assert len(left.text) == HEAD
        assert len(left.sha256) == 64


def test_a_large_change_is_bounded() -> None:
    left, right = show_pair("x " * LARGE, "y " * LARGE)
    assert max(len(left.text), len(right.text)) < 5000


@given(TEXTS, TEXTS)
def test_every_character_of_both_values_is_there(a: str, b: str) -> None:
    left, right = show_pair(a, b)
    if left.is_json:
        return
    assert (left.text, right.text) == (a, b)


@given(TEXTS, TEXTS)
def test_what_is_not_marked_is_equal_on_both_sides(a: str, b: str) -> None:
    left, right = show_pair(a, b)
    equal = ["".join(span.text for span in shown.spans or () if not span.differs) for shown in (left, right)]
    assert equal[0] == equal[1]
    assert bool(marked(left) or marked(right)) == (left.text != right.text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_canonical_json_is_the_same_json(value: object) -> None:
    pretty = canonical(json.dumps(value))
    if isinstance(value, list | dict):
        assert pretty is not None
        assert json.loads(pretty) == value
