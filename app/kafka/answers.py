"""Which snapshot answers which request.

One request can have several answers: a request that is delivered twice is answered twice, and in between the state may
have changed. So equal bytes are one answer, and different ones are all kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from app.kafka.records import Record
from app.wire.records import RecordError, StateSnapshot, parse

_KEPT: Final = 100


class Kind(StrEnum):
    """What a record on the snapshots topic is to us."""

    ANSWER = "an answer to a request of ours"
    OTHER_KEY = "a snapshot of another key under a request id of ours"
    UNASKED = "a snapshot that somebody else asked for"
    TOMBSTONE = "a tombstone"
    UNREADABLE = "not a snapshot"


@dataclass(frozen=True)
class Recognised:
    """One record of the snapshots topic, and what it is. `digest` is the sha256 of its value, in hex."""

    kind: Kind
    record: Record
    digest: str = ""
    request_id: str = ""
    entity_key: bytes = b""
    seq: int = 0
    snapshot_at_ms: int = 0
    error: str = ""


def recognise(record: Record, asked: Mapping[str, bytes]) -> Recognised:
    """Say what a record of the snapshots topic is, given the key of each request id of ours."""
    if record.value is None:
        return Recognised(Kind.TOMBSTONE, record)
    digest = hashlib.sha256(record.value).hexdigest()
    try:
        told = parse(StateSnapshot, record.value)
    except RecordError as error:
        return Recognised(Kind.UNREADABLE, record, digest, error=str(error))
    wanted = asked.get(told.request_id) if told.request_id else None
    kind = Kind.UNASKED if wanted is None else Kind.ANSWER if wanted == told.entity_key else Kind.OTHER_KEY
    return Recognised(kind, record, digest, told.request_id, told.entity_key, told.seq, told.snapshot_at_ms)


@dataclass
class Answers:
    """Collects the answers to some requests. `asked` maps each request id to the key it asked for."""

    asked: Mapping[str, bytes]
    _states: dict[str, dict[str, Recognised]] = field(default_factory=dict)
    _repeats: dict[str, int] = field(default_factory=dict)
    other_keys: list[Recognised] = field(default_factory=list)
    unreadable: list[Recognised] = field(default_factory=list)

    def offer(self, record: Record) -> bool:
        """Look at a record; whether it told something new about one of the requests."""
        seen = recognise(record, self.asked)
        match seen.kind:
            case Kind.ANSWER:
                states = self._states.setdefault(seen.request_id, {})
                if seen.digest in states:
                    self._repeats[seen.request_id] = self.repeats(seen.request_id) + 1
                    return False
                states[seen.digest] = seen
                return True
            case Kind.OTHER_KEY:
                new = all(one.digest != seen.digest for one in self.other_keys)
                if new:
                    self.other_keys.append(seen)
                return new
            case Kind.UNREADABLE if len(self.unreadable) < _KEPT:
                self.unreadable.append(seen)
        return False

    def states(self, request_id: str) -> tuple[Recognised, ...]:
        """The different answers to a request, in the order of their arrival."""
        return tuple(self._states.get(request_id, {}).values())

    def repeats(self, request_id: str) -> int:
        """How often an answer came again, byte for byte."""
        return self._repeats.get(request_id, 0)
