"""Conversations of common shapes read as who said what; everything else stays what it is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.web.messages import conversation, said


def told(messages: Any, params: Any = None) -> list[tuple[str, Any]]:
    return [(message.role, message.content) for message in conversation(messages, params)]


def test_a_chat_of_openai() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "name": "ada", "content": [{"type": "text", "text": "Refund me."}, {"type": "image_url"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "4800"},
    ]
    assert told(messages) == [
        ("system", "Be brief."),
        ("user ada", "Refund me."),
        ("user ada", {"type": "image_url"}),
        ("assistant calls look", "{}"),
        ("tool c1", "4800"),
    ]


def test_messages_of_anthropic() -> None:
    messages = [
        {"role": "user", "content": "Refund me."},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "name": "look", "input": {"o": 1}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "48"}]}],
        },
    ]
    assert told(messages, {"system": "Be brief."}) == [
        ("system", "Be brief."),
        ("user", "Refund me."),
        ("assistant", "I look."),
        ("calls look", {"o": 1}),
        ("tool result", "48"),
    ]


def test_what_a_shape_does_not_name_is_not_lost() -> None:
    assert told([{"role": "user", "content": "x", "weight": 3, "empty": None}]) == [
        ("user", "x"),
        ("user", {"weight": 3}),
    ]


@pytest.mark.parametrize("messages", [["ping", "pong"], [{"speaker": "ada", "text": "x"}], [1, None], [[["x"]]]])
def test_other_shapes_stay_what_they_are(messages: list[Any]) -> None:
    assert told(messages) == [("", message) for message in messages]


def test_a_request_without_messages() -> None:
    assert told(None) == []
    assert told("one text") == [("", "one text")]
    assert told({"a": 1}) == [("", {"a": 1})]


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ('{"choices": [{"message": {"role": "assistant", "content": "4800 EUR"}}]}', ["4800 EUR"]),
        ('{"type": "message", "role": "assistant", "content": [{"type": "text", "text": "4800 EUR"}]}', ["4800 EUR"]),
        ('{"choices": []}', None),
        ('{"answer": 1}', None),
        ("4800 EUR", None),
        ("{broken", None),
        ({"hex": "ff", "bytes": 1}, None),
        (None, None),
    ],
)
def test_what_a_response_says(response: Any, words: list[str] | None) -> None:
    found = said(response)
    assert (None if found is None else [message.content for message in found]) == words


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "name", "input", "tool_calls", "function", "arguments", "x"]
            )
            | st.text(max_size=3),
            inner | st.sampled_from(["user", "assistant", "text", "tool_use", "tool_result"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_no_request_breaks_the_reading(messages: Any, params: Any) -> None:
    conversation(messages, params)
    said(messages)
