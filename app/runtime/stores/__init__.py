"""Long-term stores: one contract, several backends, each imported only when a pipeline sets it up."""

from app.runtime.stores.base import InMemoryMemoryStore, MemoryRecord, MemoryStore

__all__ = ["InMemoryMemoryStore", "MemoryRecord", "MemoryStore"]
