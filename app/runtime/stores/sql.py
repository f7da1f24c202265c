"""Long-term records in one SQL table, through any async SQLAlchemy driver."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from app.runtime.stores.base import MemoryRecord, MemoryStore, decode_record, encode_record
from app.runtime.stores.keys import key_id, owner_id, prefix_bounds

TABLE: Final = "longterm_memory"
# MySQL indexes 3072 bytes at most, four a character, for the two columns of the primary key.
_ID_LENGTH: Final = 384


class SqlMemoryStore(MemoryStore):
    """Any other `scheme://`, read as an async SQLAlchemy URL; `sa` and `engines` are its modules.

    The table is made on first use. One store belongs to one event loop.
    """

    def __init__(self, sa: Any, engines: Any, url: str) -> None:
        try:
            self._engine = engines.create_async_engine(url)
        except (sa.exc.ArgumentError, sa.exc.InvalidRequestError, sa.exc.NoSuchModuleError) as error:
            raise ValueError(f"the long-term store URL is not one of an async SQLAlchemy driver: {error}") from error
        except ModuleNotFoundError as error:
            raise RuntimeError(f"the long-term store needs the database driver {error.name}: install it") from error
        self._sa = sa
        metadata = sa.MetaData()
        self._table = sa.Table(
            TABLE,
            metadata,
            sa.Column("entity_id", sa.String(_ID_LENGTH), primary_key=True),
            sa.Column("key_id", sa.String(_ID_LENGTH), primary_key=True),
            sa.Column("seq", sa.BigInteger, nullable=False),
            sa.Column("record", sa.LargeBinary, nullable=False),
        )
        self._ready = False
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        """Close the connection pool."""
        await self._engine.dispose()

    async def _load(self, entity_key: bytes, key: str) -> MemoryRecord | None:
        await self._prepare()
        query = self._sa.select(self._table.c.record).where(self._is(entity_key, key))
        async with self._engine.connect() as connection:
            data = (await connection.execute(query)).scalar_one_or_none()
        return None if data is None else decode_record(entity_key, bytes(data))

    async def _save(self, record: MemoryRecord) -> bool:
        await self._prepare()
        row = {"seq": record.seq, "record": encode_record(record)}
        if await self._update(record, row):
            return True
        ids = {"entity_id": owner_id(record.entity_key), "key_id": key_id(record.key)}
        try:
            async with self._engine.begin() as connection:
                await connection.execute(self._table.insert().values(**ids, **row))
        except self._sa.exc.IntegrityError:
            # A row of a later seq is there, or another writer has just put one: the update decides.
            return await self._update(record, row)
        return True

    async def _search(self, entity_key: bytes, prefix: str, limit: int) -> list[MemoryRecord]:
        await self._prepare()
        columns = self._table.c
        start, end = prefix_bounds(prefix)
        query = (
            self._sa.select(columns.record)
            .where(columns.entity_id == owner_id(entity_key), columns.key_id >= start, columns.key_id < end)
            .order_by(columns.key_id)
            .limit(limit)
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).scalars().all()
        return [decode_record(entity_key, bytes(row)) for row in rows]

    def _is(self, entity_key: bytes, key: str) -> Any:
        columns = self._table.c
        return self._sa.and_(columns.entity_id == owner_id(entity_key), columns.key_id == key_id(key))

    async def _update(self, record: MemoryRecord, row: dict[str, Any]) -> bool:
        statement = (
            self._table.update()
            .where(self._is(record.entity_key, record.key), self._table.c.seq <= record.seq)
            .values(**row)
        )
        async with self._engine.begin() as connection:
            return bool((await connection.execute(statement)).rowcount)

    async def _prepare(self) -> None:
        async with self._lock:
            if self._ready:
                return
            try:
                await self._create()
            except self._sa.exc.DBAPIError:
                # Another worker may have made the table at the same moment; then this finds it.
                await self._create()
            self._ready = True

    async def _create(self) -> None:
        async with self._engine.begin() as connection:
            await connection.run_sync(self._table.metadata.create_all)
