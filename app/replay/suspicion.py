"""Which memory reads of a re-run cannot be trusted, and whether anything unseen hangs on them.

A state that is not the exact pre-image may show a value that was written later, or miss one that was
deleted since. A difference after such a read proves nothing; no difference proves nothing either,
as long as the value can reach something that was not compared. So the value is varied and run again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.replay.images import Fit, State
from app.replay.rerun_pb2 import MemoryRead, RerunResult
from app.wire.records import MemoryBlob

_SCALAR: Final = b"\x00"
_RING: Final = b"\x01"
VARIED_KEY: Final = "hindcast.varied"

# Inputs that are no value in memory: there is nothing to put in their place.
CONTINUATION, BATCH, ENVELOPE, SERVING, CACHE = "continuation", "batch", "envelope", "serving", "cache"
_NO_VALUES: Final = frozenset({CONTINUATION, BATCH, ENVELOPE, SERVING, CACHE})

_WHOLE: Final = frozenset({MemoryRead.KEYS, MemoryRead.SIZE_BYTES, MemoryRead.ENTRY_SIZE})


class Weight(StrEnum):
    """What a doubt may undo.

    FULL: a difference, and the trust in what was not compared. KIND: the same, but only where the other of two
    possibilities, once tried, leads somewhere else. DIFFERENCE: a difference alone.
    """

    FULL = "full"
    KIND = "kind"
    DIFFERENCE = "difference"


@dataclass(frozen=True)
class Suspect:
    """One input of the run, mostly a read, that may have been another one than the original attempt had."""

    operation: str
    key: str
    why: str
    weight: Weight = Weight.FULL

    @property
    def is_read(self) -> bool:
        """Whether it is a read of memory, which another build may vindicate."""
        return self.weight is Weight.FULL and self.operation not in _NO_VALUES

    @property
    def name(self) -> str:
        if self.operation in _NO_VALUES:
            return f"the {self.operation}"
        return f"{self.operation}({self.key!r})" if self.key else f"{self.operation}()"


@dataclass(frozen=True)
class Clocks:
    """Clocks of the activations at lower counters of the target's life, and of all the others.

    `traced` are the counters from which traced activations committed.
    """

    lower: frozenset[int]
    other: frozenset[int]
    traced: frozenset[int] = frozenset()

    def complete(self, target: int, snapshot: int) -> bool:
        """Whether every activation between the target and a later snapshot is traced, so that its clock is known."""
        return all(counter in self.traced for counter in range(target + 1, snapshot))


def suspects(reads: Iterable[MemoryRead], state: State, clocks: Clocks, target: int) -> list[Suspect]:
    """The reads of a re-run that its state cannot vouch for; none when the state is exact.

    `target` is the commit counter that the attempt ran from.
    """
    if state.fit.exact:
        return []
    blob = state.memory or MemoryBlob()
    stamps = {entry.key: entry.last_access_ms for entry in blob.entries}
    found = []
    for read in reads:
        why = None if read.own_write else _why(read, state, stamps, clocks, target)
        if why is not None:
            operation = MemoryRead.Operation.Name(read.operation).lower()
            if read.operation == MemoryRead.KIND:
                told = "appending would have failed on a scalar, and what was under the key is not captured"
                found.append(Suspect("append", read.key, told, Weight.KIND))
            else:
                found.append(Suspect(operation, read.key, why))
    return found


def _why(read: MemoryRead, state: State, stamps: dict[str, int], clocks: Clocks, target: int) -> str | None:
    if state.fit is Fit.FORWARD:
        return "the state was re-run with this code, and no trace shows what the recorded code wrote"
    if state.fit is Fit.OPEN:
        return "nothing that was traced ties the snapshot to this life of the key"
    if read.operation in _WHOLE:
        return "it depends on every key, and some may have been written or deleted since"
    if not read.present:
        return "the key is absent, and may have been deleted since"
    if state.fit is Fit.BEFORE:
        return "the key may have been written between this snapshot and the attempt"
    if not clocks.complete(target, state.counter):
        return "not every activation between it and the snapshot is traced, and one may have written the key"
    stamp = stamps.get(read.key)
    if stamp in clocks.lower and stamp not in clocks.other:
        return None
    return "the key was written or read at or after the attempt; its earlier value is not captured"


def variants(suspect: Suspect, memory: MemoryBlob) -> Iterator[MemoryBlob]:
    """Memory images in which the suspect value is another one."""
    if suspect.operation in _NO_VALUES:
        return
    if suspect.operation == "append":
        yield with_value(memory, suspect.key, _SCALAR + b"1")
        return
    if suspect.operation in ("keys", "size_bytes"):
        yield with_value(memory, VARIED_KEY, _SCALAR + b"1")
        return
    current = next((e.value for e in memory.entries if e.key == suspect.key), None)
    if suspect.operation == "ring":
        values = _ring_variants(current)
    else:
        values = (_SCALAR + value for value in scalar_variants(current[1:] if current else None))
    for value in values:
        yield with_value(memory, suspect.key, value)
    if current is not None:
        yield with_value(memory, suspect.key, None)


def scalar_variants(value: bytes | None) -> Iterator[bytes]:
    """Other values of the same kind: numbers stay numbers, JSON stays JSON, text stays text."""
    if value is None:
        yield from (b"1", b"true", b"hindcast", b"{}")
        return
    text = value.decode("utf-8", "replace")
    for number in (int, float):
        try:
            parsed = number(text)
            found = [str(other).encode() for other in (parsed + 1, parsed - 1, parsed * 3 + 7)]
        except (ValueError, OverflowError):
            continue
        if math.isfinite(parsed):
            yield from found
            return
    yield from _json_variants(text)
    yield value + b"~"
    yield b"~" + value
    yield bytes(reversed(value))


def _json_variants(text: str) -> Iterator[bytes]:
    """The same JSON with every leaf changed, and with one part of it changed at a time."""
    try:
        parsed = json.loads(text)
        if not isinstance(parsed, (dict, list)):
            return
        found = [json.dumps(varied_json(parsed)).encode()]
        places = list(parsed) if isinstance(parsed, dict) else range(len(parsed))
        for place in list(places)[:16]:
            copy = json.loads(text)
            copy[place] = varied_json(copy[place])
            found.append(json.dumps(copy).encode())
    except (ValueError, RecursionError):
        return
    yield from found


def varied_json(value: object) -> object:
    """The same structure with every leaf changed; null becomes a text."""
    if isinstance(value, dict):
        return {key: varied_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [varied_json(item) for item in value]
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return f"{value}~"


def _ring_variants(current: bytes | None) -> Iterator[bytes]:
    items = list(_ring_items(current[1:])) if current else []
    yield _RING + b"".join(_framed(item) for item in [*items, b"hindcast"])
    if items:
        varied = next(iter(scalar_variants(items[-1])))
        yield _RING + b"".join(_framed(item) for item in [*items[:-1], varied])
        yield _RING + b"".join(_framed(item) for item in items[:-1])


def _ring_items(body: bytes) -> Iterator[bytes]:
    offset = 0
    while offset + 4 <= len(body):
        length = int.from_bytes(body[offset : offset + 4], "big")
        yield body[offset + 4 : offset + 4 + length]
        offset += 4 + length


def _framed(item: bytes) -> bytes:
    return len(item).to_bytes(4, "big") + item


def with_value(memory: MemoryBlob, key: str, value: bytes | None) -> MemoryBlob:
    """A copy of a memory image with one entry replaced, added, or (None) removed."""
    varied = MemoryBlob(state_schema_version=memory.state_schema_version)
    replaced = False
    for entry in memory.entries:
        if entry.key != key:
            varied.entries.append(entry)
        elif value is not None:
            varied.entries.add(key=key, value=value, last_access_ms=entry.last_access_ms)
            replaced = True
    if value is not None and not replaced:
        varied.entries.add(key=key, value=value, last_access_ms=0)
    varied.total_value_bytes = sum(len(entry.value) for entry in varied.entries)
    return varied


@dataclass(frozen=True)
class Unseen:
    """What a run produced that could not be compared, by name."""

    values: dict[str, bytes]

    def moved(self, other: Unseen) -> list[str]:
        """Names whose value another run changes; what it lacks altogether shows in its trace."""
        return [name for name, value in self.values.items() if name in other.values and other.values[name] != value]


def unseen(result: RerunResult, names: Sequence[str]) -> Unseen:
    """The named uncompared products of a run: `args:<intent id>`, output, continuation, detail."""
    values: dict[str, bytes] = {}
    args = {f"args:{intent.intent_id}": intent.args_json.encode() for intent in result.intents}
    for name in names:
        if name.startswith("args:"):
            if name in args:
                values[name] = args[name]
        elif name == "output":
            values[name] = b"\x00".join(result.outputs)
        elif name == "continuation":
            values[name] = result.continuation.snapshot
        elif name == "detail":
            values[name] = result.dead_letter.detail.encode()
    return Unseen(values)
