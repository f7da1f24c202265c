"""Worked values of the derived identities, and what canonical JSON does to a request."""

import math

import pytest

from app.wire import identity

CARD = b"card-4242"


@pytest.mark.parametrize(
    ("key", "seq", "expected"),
    [
        (CARD, 0, "0e0bee3f32125ccf9ed3e4ff5d6f0635"),
        (CARD, 1, "81bc0ac4edc4520182e1763ff0079f13"),
        (CARD, 7, "21434f301a715fdfbf1847b5166f0183"),
        (b"", 0, "378f83ab07415c7ab692e54f0c306644"),
        (bytes.fromhex("00ff806b"), 0, "a72f41c534cf5aab98ae49482b2ea4af"),
    ],
)
def test_trace_ids(key: bytes, seq: int, expected: str) -> None:
    assert identity.trace_id(key, seq).hex() == expected


@pytest.mark.parametrize(
    ("key", "role", "index", "expected"),
    [
        (CARD, "activation", 0, "a0e64f34f0055466"),
        (CARD, "activation", 3, "928248f1e2f3512c"),
        (CARD, "LLM_CALL", 0, "1f4d4ea81a155f28"),
        (CARD, "LLM_CALL", 1, "b816930a70325f24"),
        (CARD, "TOOL_CALL", 0, "6ec5bcfcf1cc51db"),
        (CARD, "TOOL_CALL", 1, "595f27b8a1a75e16"),
        (CARD, "INTENT_EMITTED", 2, "5bbe48d5d8085024"),
        (CARD, "SUSPENDED", 3, "41214f920b6e5c50"),
        (CARD, "ERROR", 0, "ce32209a037a5aa8"),
        (CARD, "timer", 0, "e40e0b5fa6bd5d9b"),
        (bytes.fromhex("00ff806b"), "activation", 0, "7b0b5a68b46458c1"),
    ],
)
def test_span_ids(key: bytes, role: str, index: int, expected: str) -> None:
    assert identity.span_id(key, 0, role, index).hex() == expected


@pytest.mark.parametrize(
    ("key", "seq", "step", "expected"),
    [
        (CARD, 0, 0, "be2a89d1-e997-50e5-820d-9868882ae48d"),
        (CARD, 0, 2, "6bbd6649-a547-54e8-b945-daa1084bfb6a"),
        (CARD, 7, 3, "065a5d10-68f9-51b5-9fe5-f4406235a968"),
        (b"", 0, 0, "30db89a2-7585-5735-849e-0be871f4c11d"),
        (bytes.fromhex("00ff806b"), 0, 0, "8e7fb1e0-b58b-53d6-a71c-d690dadde6c4"),
    ],
)
def test_intent_ids(key: bytes, seq: int, step: int, expected: str) -> None:
    assert identity.intent_id(key, seq, step) == expected


def _key(params: object) -> str:
    return identity.cache_key(
        identity.request_material(
            entity_key=CARD,
            seq=0,
            model="risk-small-2",
            messages=[{"content": "explain t-1 é", "role": "user"}],
            tools=None,
            params=params,
        )
    )


def test_cache_keys_tell_an_int_from_a_float() -> None:
    assert _key({"temperature": 0}) == "82a8ff5fe79a79514a45152f44c27d082ed597251367b19d4a894d720858ee0f"
    assert _key({"temperature": 0.0}) == "1c3080d29875bc7e4754fae8f16eabade6f4b4118827b54381b29dfbd73a95f3"


def test_cache_key_of_every_kind_of_value() -> None:
    material = identity.request_material(
        entity_key=b"",
        seq=12,
        model="m",
        messages=[{"a": (1, 2), "b": 1}],
        tools=[],
        params={"n": None, "x": 1e16, "y": 1.5, "z": True},
    )
    assert material == (
        '{"key":"","messages":[{"a":[1,2],"b":1}],"model":"m",'
        '"params":{"n":null,"x":1e+16,"y":1.5,"z":true},"seq":12,"tools":[]}'
    )
    assert identity.cache_key(material) == "730de540e90bf967ea9d65e43810a070765b0a6f034bba3ee15f4f711d759af9"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused(value: float) -> None:
    with pytest.raises(ValueError):
        identity.canonical_json({"x": value})


@pytest.mark.parametrize("value", [{1: "a", "b": 2}, {"x": object()}, {"x": b"bytes"}])
def test_values_that_json_cannot_hold_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        identity.canonical_json(value)
