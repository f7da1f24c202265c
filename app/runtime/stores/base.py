"""The long-term tier's contract: records per entity key, where a newer seq wins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from app.wire import migration
from app.wire.records import LongTermRecord, parse, serialize


@dataclass(frozen=True)
class MemoryRecord:
    """One long-term value; `seq` and `updated_at_ms` are those of the activation that saved it."""

    entity_key: bytes
    key: str
    value: bytes
    seq: int
    updated_at_ms: int


def encode_record(record: MemoryRecord) -> bytes:
    """The stored bytes of a record; the entity key is the store's own addressing."""
    return serialize(
        LongTermRecord(
            state_schema_version=migration.CURRENT_STATE_SCHEMA_VERSION,
            key=record.key,
            value=record.value,
            seq=record.seq,
            updated_at_ms=record.updated_at_ms,
        )
    )


def decode_record(entity_key: bytes, data: bytes) -> MemoryRecord:
    """Read stored bytes back; raises RecordError when they are something else."""
    stored = parse(LongTermRecord, data)
    return MemoryRecord(entity_key, stored.key, stored.value, stored.seq, stored.updated_at_ms)


class MemoryStore(ABC):
    """Long-term records of many entity keys. A backend implements _load, _save and _search."""

    async def load(self, entity_key: bytes, key: str) -> MemoryRecord | None:
        """The record of a key, None when there is none; raises ValueError on an empty key."""
        _require_key(key)
        return await self._load(entity_key, key)

    async def save(self, record: MemoryRecord) -> bool:
        """Store a record unless a later seq is there already, in which case it returns False.

        Raises ValueError on an empty key or a negative seq.
        """
        _require_key(record.key)
        if record.seq < 0:
            raise ValueError(f"a long-term record's seq must be 0 or more, not {record.seq}")
        return await self._save(record)

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[MemoryRecord]:
        """Records whose key starts with `prefix`, by key, at most `limit`; raises ValueError unless limit > 0."""
        if limit <= 0:
            raise ValueError(f"a long-term search needs a limit above 0, not {limit}")
        return await self._search(entity_key, prefix, limit)

    async def close(self) -> None:
        """Release connections; the base has none."""
        return

    @abstractmethod
    async def _load(self, entity_key: bytes, key: str) -> MemoryRecord | None: ...

    @abstractmethod
    async def _save(self, record: MemoryRecord) -> bool: ...

    @abstractmethod
    async def _search(self, entity_key: bytes, prefix: str, limit: int) -> list[MemoryRecord]: ...


def _require_key(key: str) -> None:
    if not key:
        raise ValueError("a long-term key must not be empty")


class InMemoryMemoryStore(MemoryStore):
    """Records in this process only, for tests and for `memory://`."""

    def __init__(self) -> None:
        self._rows: dict[tuple[bytes, str], bytes] = {}

    async def _load(self, entity_key: bytes, key: str) -> MemoryRecord | None:
        row = self._rows.get((entity_key, key))
        return None if row is None else decode_record(entity_key, row)

    async def _save(self, record: MemoryRecord) -> bool:
        stored = await self._load(record.entity_key, record.key)
        if stored is not None and record.seq < stored.seq:
            return False
        self._rows[record.entity_key, record.key] = encode_record(record)
        return True

    async def _search(self, entity_key: bytes, prefix: str, limit: int) -> list[MemoryRecord]:
        keys = sorted(key for owner, key in self._rows if owner == entity_key and key.startswith(prefix))
        return [decode_record(entity_key, self._rows[entity_key, key]) for key in keys[:limit]]
