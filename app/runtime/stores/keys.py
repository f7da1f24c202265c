"""Addresses inside a backend: hex keeps bytes, order and prefixes the same in every one of them."""

from __future__ import annotations

# Sorts behind every hex digit, so prefix + this bounds everything that begins with the prefix.
_BEHIND_HEX = "g"


def owner_id(entity_key: bytes) -> str:
    """A never-empty text id of an entity key."""
    return "k" + entity_key.hex()


def key_id(key: str) -> str:
    """A text id of a record key that sorts as the key's code points do."""
    return key.encode().hex()


def prefix_bounds(prefix: str) -> tuple[str, str]:
    """The half-open range of key ids whose keys begin with `prefix`."""
    start = key_id(prefix)
    return start, start + _BEHIND_HEX
