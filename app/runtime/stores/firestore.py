"""Long-term records in Firestore: a document per entity, its records in a collection below it."""

from __future__ import annotations

from typing import Any, Final

from app.runtime.stores.base import MemoryRecord, MemoryStore, decode_record, encode_record
from app.runtime.stores.keys import key_id, owner_id, prefix_bounds

_RECORDS: Final = "records"


class FirestoreMemoryStore(MemoryStore):
    """`firestore://project/collection`; `api` is the module google.cloud.firestore.

    One store belongs to one event loop.
    """

    def __init__(self, api: Any, project: str, collection: str) -> None:
        self._api = api
        self._client = api.AsyncClient(project=project)
        self._collection = self._client.collection(collection)

    async def close(self) -> None:
        """Close the channel."""
        self._client.close()

    async def _load(self, entity_key: bytes, key: str) -> MemoryRecord | None:
        snapshot = await self._document(entity_key, key).get()
        return decode_record(entity_key, snapshot.get("record")) if snapshot.exists else None

    async def _save(self, record: MemoryRecord) -> bool:
        document = self._document(record.entity_key, record.key)
        row = {"key_id": key_id(record.key), "seq": record.seq, "record": encode_record(record)}

        async def write_unless_newer(transaction: Any) -> bool:
            stored = await document.get(transaction=transaction)
            if stored.exists and stored.get("seq") > record.seq:
                return False
            transaction.set(document, row)
            return True

        saved = await self._api.async_transactional(write_unless_newer)(self._client.transaction())
        return bool(saved)

    async def _search(self, entity_key: bytes, prefix: str, limit: int) -> list[MemoryRecord]:
        start, end = prefix_bounds(prefix)
        field_filter = self._api.FieldFilter
        query = (
            self._records(entity_key)
            .where(filter=field_filter("key_id", ">=", start))
            .where(filter=field_filter("key_id", "<", end))
            .order_by("key_id")
            .limit(limit)
        )
        return [decode_record(entity_key, row.get("record")) async for row in query.stream()]

    def _records(self, entity_key: bytes) -> Any:
        return self._collection.document(owner_id(entity_key)).collection(_RECORDS)

    def _document(self, entity_key: bytes, key: str) -> Any:
        return self._records(entity_key).document(key_id(key))
