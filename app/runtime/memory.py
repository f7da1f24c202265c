"""Working memory: a small key-value image per entity key, least recently used entry first.

Reads move and restamp what they read, so the order and the clocks of a committed image tell what
the activation looked at.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from app.wire import migration
from app.wire.records import MemoryBlob

if TYPE_CHECKING:
    from app.runtime.compaction import Compactor
    from app.runtime.longterm import LongtermMemory
    from app.runtime.probe import Probe

HARD_CAP_BYTES: Final = 1_048_576
SOFT_CAP_BYTES: Final = 786_432
DEFAULT_MAX_ITEMS: Final = 64

SCALAR: Final = b"\x00"
RING: Final = b"\x01"
_LENGTH_BYTES: Final = 4

_log = logging.getLogger(__name__)


class MemoryOverflow(Exception):
    """A write would take working memory above its hard cap, compaction notwithstanding."""

    def __init__(self, key: str, attempted_bytes: int, cap_bytes: int) -> None:
        super().__init__(f"writing key {key!r} takes working memory to {attempted_bytes} of {cap_bytes} bytes")
        self.key = key
        self.attempted_bytes = attempted_bytes
        self.cap_bytes = cap_bytes


def encode_ring(items: tuple[bytes, ...] | list[bytes]) -> bytes:
    """The entry value of a ring: its tag, then every item behind its 4-byte big-endian length."""
    return RING + b"".join(part for item in items for part in (len(item).to_bytes(_LENGTH_BYTES, "big"), item))


def decode_ring(value: bytes) -> tuple[bytes, ...]:
    """The items of an encoded ring; raises ValueError where a length runs past the end."""
    items: list[bytes] = []
    offset, size = 1, len(value)
    while offset < size:
        start = offset + _LENGTH_BYTES
        offset = start + int.from_bytes(value[offset:start], "big")
        if start > size or offset > size:
            raise ValueError(f"a ring of {size} bytes is cut inside item {len(items)}")
        items.append(value[start:offset])
    return tuple(items)


def _require_text(key: object) -> None:
    """Refuse at the write what the commit could not encode."""
    if not isinstance(key, str):
        raise TypeError(f"a working memory key is a str, not {type(key).__name__}")


class _Entry:
    __slots__ = ("stamp", "value")

    def __init__(self, value: bytes, stamp: int) -> None:
        self.value = value
        self.stamp = stamp


class Memory:
    """One activation's view of its key's working memory.

    `now_ms` stamps what is touched; `compactor` is run when a cap is reached (None: never).
    """

    def __init__(
        self,
        blob: MemoryBlob | None = None,
        *,
        now_ms: int,
        compactor: Compactor | None = None,
        longterm: LongtermMemory | None = None,
        probe: Probe | None = None,
    ) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._total = 0
        self._now_ms = now_ms
        self._compactor = compactor
        self._longterm = longterm
        self._probe = probe
        self._dirty = False
        self._warned = False
        self._compacting = False
        if blob is not None:
            self._load(blob)

    def _load(self, blob: MemoryBlob) -> None:
        entries = self._entries
        for entry in blob.entries:
            key, value = entry.key, entry.value
            previous = entries.pop(key, None)
            if previous is not None:
                self._total -= len(previous.value)
            entries[key] = _Entry(value, entry.last_access_ms)
            self._total += len(value)

    # Reading

    def get(self, key: str) -> bytes | None:
        """The bytes under a key, None when absent; raises TypeError when the key holds a ring."""
        entry = self._touch(key)
        if entry is None:
            self._saw("get", key, None)
            return None
        if entry.value[:1] == RING:
            self._saw("get", key, decode_ring(entry.value))
            raise TypeError(f"key {key!r} holds a ring; use ring() instead of get()")
        value = entry.value[1:]
        self._saw("get", key, value)
        return value

    def ring(self, key: str) -> tuple[bytes, ...]:
        """The items under a key, oldest first, () when absent; raises TypeError when it holds a scalar."""
        entry = self._touch(key)
        if entry is None:
            self._saw("ring", key, ())
            return ()
        if entry.value[:1] != RING:
            self._saw("ring", key, entry.value[1:])
            raise TypeError(f"key {key!r} holds a scalar; use get() instead of ring()")
        items = decode_ring(entry.value)
        self._saw("ring", key, items)
        return items

    def keys(self) -> tuple[str, ...]:
        """Every key, least recently used first; touches nothing."""
        keys = tuple(self._entries)
        self._saw("keys", "", keys)
        return keys

    def entry_size(self, key: str) -> int:
        """Bytes of one encoded entry value; touches nothing. Raises KeyError when absent."""
        entry = self._entries.get(key)
        size = None if entry is None else len(entry.value)
        self._saw("entry_size", key, size)
        if size is None:
            raise KeyError(key)
        return size

    @property
    def size_bytes(self) -> int:
        """Bytes of all encoded entry values, key names not counted."""
        self._saw("size_bytes", "", self._total)
        return self._total

    @property
    def dirty(self) -> bool:
        """Whether anything was written or touched since the activation began."""
        return self._dirty

    @property
    def longterm(self) -> LongtermMemory:
        """The long-term tier; raises RuntimeError unless a store is configured."""
        if self._longterm is None:
            raise RuntimeError(
                "no long-term store is configured: set AgentConfig(longterm_memory=...), for example to memory://"
            )
        return self._longterm

    # Writing

    def set(self, key: str, value: bytes) -> None:
        """Store bytes under a key, replacing whatever it held; raises MemoryOverflow above the hard cap."""
        encoded = SCALAR + value
        entry = self._entries.get(key)
        if self._prospective(entry, encoded) > HARD_CAP_BYTES and not self._compacting:
            self._make_room()
            entry = self._entries.get(key)
            self._refuse_overflow(key, self._prospective(entry, encoded))
        self._write("set", key, entry, encoded)

    def append(self, key: str, item: bytes, max_items: int = DEFAULT_MAX_ITEMS) -> None:
        """Add an item to a ring and keep its newest `max_items` (0 or less keeps none).

        Raises TypeError when the key holds a scalar, MemoryOverflow above the hard cap.
        """
        entry, encoded = self._appended(key, item, max_items)
        if self._prospective(entry, encoded) > HARD_CAP_BYTES and not self._compacting:
            self._make_room()
            entry, encoded = self._appended(key, item, max_items)
            self._refuse_overflow(key, self._prospective(entry, encoded))
        self._saw("kind", key, None if entry is None else True)
        self._write("append", key, entry, encoded)

    def delete(self, key: str) -> None:
        """Remove a key if it is there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._total -= len(entry.value)
        self._dirty = True
        if self._probe is not None:
            self._probe.memory_write("delete", key, entry.value, None)

    # Images

    def image(self) -> MemoryBlob:
        """The blob to commit, stamped with the current schema version."""
        entry_type = MemoryBlob.MemoryEntry
        return MemoryBlob(
            state_schema_version=migration.CURRENT_STATE_SCHEMA_VERSION,
            entries=[
                entry_type(key=key, value=entry.value, last_access_ms=entry.stamp)
                for key, entry in self._entries.items()
            ],
            total_value_bytes=self._total,
        )

    def to_blob(self) -> MemoryBlob:
        """The same image, for agent code: it shows every key, so it counts as reading them."""
        self._saw("keys", "", tuple(self._entries))
        return self.image()

    # Inside

    def _saw(self, operation: str, key: str, value: object) -> None:
        if self._probe is not None:
            self._probe.memory_read(operation, key, value)

    def _touch(self, key: str) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            entry.stamp = self._now_ms
            self._dirty = True
        return entry

    def _appended(self, key: str, item: bytes, max_items: int) -> tuple[_Entry | None, bytes]:
        entry = self._entries.get(key)
        if entry is None:
            items: tuple[bytes, ...] = ()
        elif entry.value[:1] == RING:
            items = decode_ring(entry.value)
        else:
            self._saw("ring", key, entry.value[1:])
            raise TypeError(f"key {key!r} holds a scalar; use set() instead of append()")
        kept = (*items, item)[-max_items:] if max_items > 0 else ()
        return entry, encode_ring(kept)

    def _prospective(self, entry: _Entry | None, encoded: bytes) -> int:
        return self._total - (0 if entry is None else len(entry.value)) + len(encoded)

    def _make_room(self) -> None:
        self._saw("size_bytes", "", self._total)
        self._compact()

    def _refuse_overflow(self, key: str, attempted: int) -> None:
        if attempted > HARD_CAP_BYTES:
            raise MemoryOverflow(key, attempted, HARD_CAP_BYTES)

    def _write(self, operation: str, key: str, entry: _Entry | None, encoded: bytes) -> None:
        _require_text(key)
        before = None if entry is None else entry.value
        if entry is None:
            self._entries[key] = _Entry(encoded, self._now_ms)
        else:
            self._entries.move_to_end(key)
            entry.value = encoded
            entry.stamp = self._now_ms
        self._total += len(encoded) - (0 if before is None else len(before))
        self._dirty = True
        if self._probe is not None:
            self._probe.memory_write(operation, key, before, encoded)
        if self._total >= SOFT_CAP_BYTES and not self._warned and not self._compacting:
            self._warned = True
            _log.warning("working memory holds %d bytes, %d is the soft cap", self._total, SOFT_CAP_BYTES)
            if self._compactor is not None:
                self._make_room()

    def _compact(self) -> None:
        if self._compactor is None:
            return
        self._compacting = True
        try:
            self._compactor.compact(self)
        finally:
            self._compacting = False
