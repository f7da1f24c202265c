"""Identities that are functions of what they name, so that a re-run derives them again.

Formulas: keys enter as lowercase hex of their raw bytes, numbers as plain decimal.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any, Final

TRACE_NAMESPACE: Final = bytes.fromhex("b1d7c4e293a65f088c317e5a9d0f2b46")
INTENT_NAMESPACE: Final = bytes.fromhex("6f3e9d2a1c475b8e9a102d4f6b8c0e11")

_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode

ROLE_ACTIVATION: Final = "activation"
ROLE_TIMER: Final = "timer"
ROLE_ERROR: Final = "ERROR"


def _uuid5(namespace: bytes, name: str) -> bytes:
    """The 16 bytes of an RFC 4122 version 5 UUID; `uuid.uuid5` gives the same, several times slower."""
    digest = bytearray(hashlib.sha1(namespace + name.encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


@lru_cache(maxsize=4096)
def trace_id(entity_key: bytes, seq: int) -> bytes:
    """The 16-byte trace id that all attempts of one (key, seq) share."""
    return _uuid5(TRACE_NAMESPACE, f"{entity_key.hex()}|{seq}")


@lru_cache(maxsize=16384)
def span_id(entity_key: bytes, seq: int, role: str, index: int) -> bytes:
    """The 8-byte span id of one role (`activation`, `timer` or an event type's name) and index."""
    return _uuid5(TRACE_NAMESPACE, f"{entity_key.hex()}|{seq}|{role}|{index}")[:8]


def intent_id(entity_key: bytes, seq: int, step_index: int) -> str:
    """The id of the intent emitted at a step; its arguments are no part of it."""
    text = _uuid5(INTENT_NAMESPACE, f"{entity_key.hex()}|{seq}|{step_index}").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no blanks and raw non-ASCII text: equal material, equal text.

    Raises ValueError for NaN and infinities, TypeError for what JSON cannot hold or for mappings
    whose keys cannot be ordered.
    """
    return _encode(value)


def request_material(*, entity_key: bytes, seq: int, model: str, messages: Any, tools: Any, params: Any) -> str:
    """The canonical JSON text of a model request that the replay cache key is the digest of."""
    return canonical_json(
        {
            "key": entity_key.hex(),
            "messages": messages,
            "model": model,
            "params": params,
            "seq": seq,
            "tools": tools,
        }
    )


def cache_key(material: str) -> str:
    """The replay cache key of a request's canonical text: sha256 in lowercase hex."""
    return hashlib.sha256(material.encode("utf-8")).hexdigest()
