"""The long-term tier as agent code sees it: saves are staged, reads see them first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.runtime.stores.base import MemoryRecord

if TYPE_CHECKING:
    from app.runtime.probe import Probe
    from app.runtime.stores.base import MemoryStore


class LongtermFlushFailed(Exception):
    """A staged save did not reach the store, so the activation fails before its commit."""

    def __init__(self, key: str, cause: BaseException) -> None:
        super().__init__(f"saving long-term key {key!r} failed: {cause!r}")
        self.key = key


class LongtermMemory:
    """`ctx.memory.longterm` of one activation; saves carry its seq and clock."""

    def __init__(
        self, store: MemoryStore, *, entity_key: bytes, seq: int, now_ms: int, probe: Probe | None = None
    ) -> None:
        self._store = store
        self._entity_key = entity_key
        self._seq = seq
        self._now_ms = now_ms
        self._probe = probe
        self._staged: dict[str, MemoryRecord] = {}

    @property
    def staged(self) -> tuple[MemoryRecord, ...]:
        """The saves to flush, in the order in which their keys were first saved."""
        return tuple(self._staged.values())

    def save(self, key: str, value: bytes) -> None:
        """Stage a save; saving a key again replaces its value. Raises ValueError on an empty key."""
        if not key:
            raise ValueError("a long-term key must not be empty")
        self._staged[key] = MemoryRecord(self._entity_key, key, value, self._seq, self._now_ms)

    async def load(self, key: str) -> MemoryRecord | None:
        """The staged or stored record of a key, None when there is neither."""
        if self._probe is not None:
            self._probe.longterm_read("load", key)
        staged = self._staged.get(key)
        return staged if staged is not None else await self._store.load(self._entity_key, key)

    async def search(self, prefix: str, limit: int) -> list[MemoryRecord]:
        """Records whose key starts with `prefix`, by key, at most `limit`."""
        if self._probe is not None:
            self._probe.longterm_read("search", prefix)
        found = {record.key: record for record in await self._store.search(self._entity_key, prefix, limit)}
        found.update((key, record) for key, record in self._staged.items() if key.startswith(prefix))
        return [found[key] for key in sorted(found)][:limit]

    async def flush(self) -> None:
        """Save what is staged, record by record; raises LongtermFlushFailed at the first that fails."""
        for record in self._staged.values():
            try:
                await self._store.save(record)
            except Exception as error:
                raise LongtermFlushFailed(record.key, error) from error
