"""Long-term records in Cloud Bigtable: one row a record, rows of an entity next to each other."""

from __future__ import annotations

from typing import Any, Final

from app.runtime.stores.base import MemoryRecord, MemoryStore, decode_record, encode_record
from app.runtime.stores.keys import key_id, owner_id, prefix_bounds

FAMILY: Final = "m"
_RECORD: Final = b"record"
_SEQ: Final = b"seq"
_SEQ_BYTES: Final = 8
# A constant version, so that a rewritten cell replaces the old one instead of joining it.
_TIMESTAMP_MICROS: Final = 0


class BigtableMemoryStore(MemoryStore):
    """`bigtable://project/instance/table`, whose table has the column family `m`.

    `api` is the module google.cloud.bigtable.data. One store belongs to one event loop.
    """

    def __init__(self, api: Any, filters: Any, project: str, instance: str, table: str) -> None:
        self._api = api
        self._filters = filters
        self._client = api.BigtableDataClientAsync(project=project)
        self._table = self._client.get_table(instance, table)

    async def close(self) -> None:
        """Close the table and its client."""
        await self._table.close()
        await self._client.close()

    async def _load(self, entity_key: bytes, key: str) -> MemoryRecord | None:
        row = await self._table.read_row(_row_key(entity_key, key_id(key)), row_filter=self._column(_RECORD))
        return None if row is None else decode_record(entity_key, row.cells[0].value)

    async def _save(self, record: MemoryRecord) -> bool:
        later = (record.seq + 1).to_bytes(_SEQ_BYTES, "big")
        chain = [self._column(_SEQ), self._filters.ValueRangeFilter(start_value=later)]
        newer_is_stored = await self._table.check_and_mutate_row(
            _row_key(record.entity_key, key_id(record.key)),
            self._filters.RowFilterChain(filters=chain),
            true_case_mutations=None,
            false_case_mutations=[
                self._set(_SEQ, record.seq.to_bytes(_SEQ_BYTES, "big")),
                self._set(_RECORD, encode_record(record)),
            ],
        )
        return not newer_is_stored

    async def _search(self, entity_key: bytes, prefix: str, limit: int) -> list[MemoryRecord]:
        start, end = prefix_bounds(prefix)
        query = self._api.ReadRowsQuery(
            row_ranges=[self._api.RowRange(start_key=_row_key(entity_key, start), end_key=_row_key(entity_key, end))],
            row_filter=self._column(_RECORD),
            limit=limit,
        )
        return [decode_record(entity_key, row.cells[0].value) for row in await self._table.read_rows(query)]

    def _set(self, qualifier: bytes, value: bytes) -> Any:
        return self._api.SetCell(FAMILY, qualifier, value, timestamp_micros=_TIMESTAMP_MICROS)

    def _column(self, qualifier: bytes) -> Any:
        filters = self._filters
        return filters.RowFilterChain(
            filters=[
                filters.FamilyNameRegexFilter(FAMILY),
                filters.ColumnQualifierRegexFilter(qualifier),
                filters.CellsColumnLimitFilter(1),
            ]
        )


def _row_key(entity_key: bytes, key: str) -> bytes:
    # '#' sorts before every hex digit, so one entity's rows never mix with those of a longer key.
    return f"{owner_id(entity_key)}#{key}".encode()
