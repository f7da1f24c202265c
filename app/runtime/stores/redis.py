"""Long-term records in Redis: a hash of records and a sorted set of keys per entity."""

from __future__ import annotations

from typing import Any, Final

from app.runtime.stores.base import MemoryRecord, MemoryStore, decode_record, encode_record
from app.runtime.stores.keys import key_id, owner_id, prefix_bounds

# One script, so that two writers cannot pass each other between the comparison and the write.
_SAVE: Final = """
local stored = redis.call('HGET', KEYS[2], ARGV[1])
if stored and tonumber(stored) > tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[3], 0, ARGV[1])
return 1
"""


class RedisMemoryStore(MemoryStore):
    """`redis://` and `rediss://`; `client` is the module redis.asyncio."""

    def __init__(self, client: Any, uri: str) -> None:
        self._redis = client.from_url(uri)

    async def close(self) -> None:
        """Close the connection pool."""
        await self._redis.aclose()

    async def _load(self, entity_key: bytes, key: str) -> MemoryRecord | None:
        records, _, _ = _names(entity_key)
        data = await self._redis.hget(records, key_id(key))
        return None if data is None else decode_record(entity_key, data)

    async def _save(self, record: MemoryRecord) -> bool:
        names = _names(record.entity_key)
        saved = await self._redis.eval(_SAVE, len(names), *names, key_id(record.key), record.seq, encode_record(record))
        return bool(saved)

    async def _search(self, entity_key: bytes, prefix: str, limit: int) -> list[MemoryRecord]:
        records, _, keys = _names(entity_key)
        start, end = prefix_bounds(prefix)
        found = await self._redis.zrangebylex(keys, f"[{start}", f"({end}", start=0, num=limit)
        if not found:
            return []
        rows = await self._redis.hmget(records, found)
        return [decode_record(entity_key, row) for row in rows if row is not None]


def _names(entity_key: bytes) -> tuple[str, str, str]:
    # The braces keep the three keys of an entity in one slot of a cluster.
    root = f"longterm:{{{owner_id(entity_key)}}}"
    return f"{root}:records", f"{root}:seqs", f"{root}:keys"
