"""The partition of a key, as each family of producers chooses it.

An export request has to land where the key's own events land. Clients do not agree on where that is, so the
configuration names the partitioner; names and rules are librdkafka's.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
_32: Final = 0xFFFFFFFF
_31: Final = 0x7FFFFFFF


class Partitioner(StrEnum):
    """How a producer maps a key to a partition. The `_random` ones differ only for records without a key."""

    MURMUR2 = "murmur2"
    MURMUR2_RANDOM = "murmur2_random"
    CONSISTENT = "consistent"
    CONSISTENT_RANDOM = "consistent_random"
    FNV1A = "fnv1a"
    FNV1A_RANDOM = "fnv1a_random"

    @property
    def told(self) -> str:
        """Who uses it, for pages and messages."""
        return _TOLD[self]


_TOLD: Final = {
    Partitioner.MURMUR2: "murmur2, as Java clients do",
    Partitioner.MURMUR2_RANDOM: "murmur2, as Java clients do",
    Partitioner.CONSISTENT: "CRC-32",
    Partitioner.CONSISTENT_RANDOM: "CRC-32, librdkafka's default",
    Partitioner.FNV1A: "FNV-1a, as Go's Sarama does",
    Partitioner.FNV1A_RANDOM: "FNV-1a, as Go's Sarama does",
}
# One name for each distinct rule about real keys.
_RULES: Final = (Partitioner.MURMUR2, Partitioner.CONSISTENT_RANDOM, Partitioner.CONSISTENT, Partitioner.FNV1A)


def partition_of(key: bytes, partitions: int, partitioner: Partitioner) -> int | None:
    """The partition of a key among `partitions`; None where the partitioner draws one by chance.

    That is so for the empty key under `consistent_random`: it counts as no key there. The others hash it.
    """
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    match partitioner:
        case Partitioner.MURMUR2 | Partitioner.MURMUR2_RANDOM:
            return (murmur2(key) & _31) % partitions
        case Partitioner.CONSISTENT_RANDOM if not key:
            return None
        case Partitioner.CONSISTENT | Partitioner.CONSISTENT_RANDOM:
            return zlib.crc32(key) % partitions
        case _:
            return _fnv1a(key) % partitions


def fitting(placed: Iterable[tuple[bytes, int]], partitions: int) -> tuple[Partitioner, ...]:
    """Which partitioners explain every (key, partition) that was seen; empty where none does or none was seen."""
    seen = set(placed)
    if not seen or partitions < 2:
        return ()
    return tuple(
        rule for rule in _RULES if all(partition_of(key, partitions, rule) in (None, place) for key, place in seen)
    )


def murmur2(data: bytes) -> int:
    """The 32-bit hash that Java's producer takes of a key, as an unsigned integer."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _M & _32
        word = (word ^ word >> 24) * _M & _32
        value = value * _M & _32 ^ word
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * _M & _32
    value = (value ^ value >> 13) * _M & _32
    return value ^ value >> 15


def _fnv1a(data: bytes) -> int:
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & _32
    # Taken as signed, and made positive: so Sarama has it.
    return value if value <= _31 else (1 << 32) - value
