"""Identities as the runtime stamps them, against the worked values of the format."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runtime.model.client import LlmRequest
from app.runtime.outcome import intent_id_for
from app.runtime.replay_cache import compute_cache_key, request_text
from app.runtime.trace import Trace, error_event
from app.wire import identity
from app.wire.records import TraceEvent
from tests.runtime.running import KEY, NOW


def staged(*, entry_step: int = 0, is_resume: bool = False, seq: int = 0) -> Trace:
    return Trace(entity_key=KEY, seq=seq, now_ms=NOW, entry_step=entry_step, is_resume=is_resume)


@pytest.mark.parametrize(
    ("seq", "expected"),
    [
        (0, "0e0bee3f32125ccf9ed3e4ff5d6f0635"),
        (1, "81bc0ac4edc4520182e1763ff0079f13"),
        (7, "21434f301a715fdfbf1847b5166f0183"),
    ],
)
def test_trace_ids(seq: int, expected: str) -> None:
    assert staged(seq=seq).ids.trace_id.hex() == expected


def test_span_ids_of_a_start() -> None:
    trace = staged()
    trace.start({})
    trace.llm_call(0, {})
    trace.llm_call(1, {})
    trace.tool_call(1, "a")
    trace.tool_call(1, "b")
    trace.intent_emitted(2, {})
    trace.suspended(3, {})
    trace.end(3, "suspended")
    root = "a0e64f34f0055466"
    assert [(event.span_id.hex(), event.parent_span_id.hex()) for event in trace.events] == [
        (root, ""),
        ("1f4d4ea81a155f28", root),
        ("b816930a70325f24", root),
        ("6ec5bcfcf1cc51db", root),
        ("595f27b8a1a75e16", root),
        ("5bbe48d5d8085024", root),
        ("41214f920b6e5c50", root),
        (root, ""),
    ]
    assert {event.start_ms for event in trace.events} | {event.end_ms for event in trace.events} == {NOW}


def test_a_resume_hangs_below_the_start() -> None:
    trace = staged(entry_step=3, is_resume=True)
    trace.start({})
    assert trace.ids.span_id.hex() == "928248f1e2f3512c"
    assert trace.ids.parent_span_id.hex() == "a0e64f34f0055466"
    assert trace.events[0].step_index == 0


@pytest.mark.parametrize(("role", "expected"), [("ERROR", "ce32209a037a5aa8"), ("timer", "e40e0b5fa6bd5d9b")])
def test_lone_errors(role: str, expected: str) -> None:
    event = error_event(entity_key=KEY, seq=0, at_ms=NOW, reason="r", role=role)
    assert (event.span_id.hex(), event.parent_span_id.hex()) == (expected, "a0e64f34f0055466")
    assert dict(event.attributes) == {"beam_agents.reason": "r"}


@pytest.mark.parametrize(
    ("key", "seq", "step", "expected"),
    [
        (KEY, 0, 0, "be2a89d1-e997-50e5-820d-9868882ae48d"),
        (KEY, 0, 2, "6bbd6649-a547-54e8-b945-daa1084bfb6a"),
        (KEY, 7, 3, "065a5d10-68f9-51b5-9fe5-f4406235a968"),
        (b"", 0, 0, "30db89a2-7585-5735-849e-0be871f4c11d"),
        (b"\x00\xff\x80\x6b", 0, 0, "8e7fb1e0-b58b-53d6-a71c-d690dadde6c4"),
    ],
)
def test_intent_ids(key: bytes, seq: int, step: int, expected: str) -> None:
    assert intent_id_for(key, seq, step) == expected


@pytest.mark.parametrize(
    ("key", "seq", "request_", "expected"),
    [
        (
            b"card-4242",
            0,
            LlmRequest("risk-small-2", [{"role": "user", "content": "explain t-1 é"}], None, {"temperature": 0}),
            "82a8ff5fe79a79514a45152f44c27d082ed597251367b19d4a894d720858ee0f",
        ),
        (
            b"card-4242",
            0,
            LlmRequest("risk-small-2", [{"role": "user", "content": "explain t-1 é"}], None, {"temperature": 0.0}),
            "1c3080d29875bc7e4754fae8f16eabade6f4b4118827b54381b29dfbd73a95f3",
        ),
        (
            b"",
            12,
            LlmRequest("m", ({"b": 1, "a": (1, 2)},), [], {"x": 1e16, "n": None, "z": True, "y": 1.5}),
            "730de540e90bf967ea9d65e43810a070765b0a6f034bba3ee15f4f711d759af9",
        ),
    ],
)
def test_cache_keys(key: bytes, seq: int, request_: LlmRequest, expected: str) -> None:
    assert compute_cache_key(request_, entity_key=key, seq=seq) == expected


@pytest.mark.parametrize(
    ("messages", "error"),
    [([math.nan], ValueError), ([math.inf], ValueError), ([object()], TypeError), ([{"a": 1, 2: 3}], TypeError)],
)
def test_what_json_cannot_hold(messages: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        request_text(LlmRequest("m", messages, None, None), entity_key=KEY, seq=0)


def test_keys_of_a_mapping_become_text() -> None:
    assert identity.canonical_json({1: "a", 10: "b", 2: "c"}) == '{"1":"a","2":"c","10":"b"}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_order_of_insertion_never_shows(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert identity.canonical_json(value) == identity.canonical_json(turned)
    assert " " not in identity.canonical_json({"a": [1, {"b": None}]})


event_types = st.sampled_from(TraceEvent.EventType.values())


@given(event_types, st.integers(0, 5), st.binary(max_size=3), st.binary(max_size=3), st.binary(max_size=3))
def test_stamping_fills_only_what_is_empty(
    event_type: Any, step: int, trace_id: bytes, span_id: bytes, parent: bytes
) -> None:
    """The rest of an agent's own event stays as it is, in place, foreign or empty."""
    trace = staged(entry_step=2, is_resume=True)
    event = TraceEvent(
        trace_id=trace_id, span_id=span_id, parent_span_id=parent, step_index=step, event_type=event_type
    )
    trace.stage(event)
    assert trace.events == [event]
    assert trace.events[0] is event
    own = event_type in (TraceEvent.ACTIVATION_START, TraceEvent.ACTIVATION_END)
    role = TraceEvent.EventType.Name(event_type)
    expected_span = trace.ids.span_id if own else identity.span_id(KEY, 0, role, step)
    assert event.trace_id == (trace_id or trace.ids.trace_id)
    assert event.span_id == (span_id or expected_span)
    assert event.parent_span_id == (parent or (trace.ids.parent_span_id if own else trace.ids.span_id))
    assert (event.entity_key, event.seq, event.start_ms, event.end_ms, event.step_index) == (b"", 0, 0, 0, step)


def test_an_event_type_without_a_name_goes_by_its_number() -> None:
    trace = staged()
    trace.stage(TraceEvent(event_type=9, step_index=1))  # type: ignore[arg-type]
    assert trace.events[0].span_id == identity.span_id(KEY, 0, "9", 1)
    assert trace.last_event == "9"
