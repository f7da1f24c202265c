"""The long-term tier: staged saves, merged reads, and backends that keep one contract."""

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest
from fakeredis import TcpFakeServer
from hypothesis import given
from hypothesis import strategies as st

from app.runtime.context import ActivationContext
from app.runtime.outcome import Complete
from app.runtime.stores import InMemoryMemoryStore, MemoryRecord, MemoryStore
from app.runtime.stores.base import decode_record, encode_record
from app.runtime.stores.keys import key_id, owner_id, prefix_bounds
from app.runtime.stores.uri import build_memory_store, parse_memory_store_uri
from app.wire.records import LongTermRecord, serialize
from tests.fixtures.postgres import Database
from tests.runtime.running import KEY, NOW, Recorder, run


def record(key: str, seq: int = 0, value: bytes = b"v", entity_key: bytes = KEY) -> MemoryRecord:
    return MemoryRecord(entity_key, key, value, seq, NOW)


def test_stored_bytes_leave_the_entity_key_out() -> None:
    stored = encode_record(record("fact", 3))
    assert stored == serialize(LongTermRecord(state_schema_version=1, key="fact", value=b"v", seq=3, updated_at_ms=NOW))
    assert decode_record(KEY, stored) == record("fact", 3)


async def check_contract(store: MemoryStore) -> None:
    """What every backend owes, whatever it is built on."""
    try:
        assert await store.load(KEY, "ab") is None
        assert await store.save(record("ab", 5))
        assert not await store.save(record("ab", 4, b"older"))
        assert await store.load(KEY, "ab") == record("ab", 5)
        assert await store.save(record("ab", 5, b"again"))
        assert await store.load(KEY, "ab") == record("ab", 5, b"again")
        others = ["a", "A", "abc", "b", "é", "aé", "a\uffff", "a\U0001f600"]
        for key in others:
            assert await store.save(record(key))
        for entity_key in (b"", KEY + b"2"):
            assert await store.save(record("aside", entity_key=entity_key))
        found = [one.key for one in await store.search(KEY, "a", 20)]
        assert found == sorted(key for key in [*others, "ab"] if key.startswith("a"))
        assert [one.key for one in await store.search(KEY, "", 3)] == ["A", "a", "ab"]
        assert [one.key for one in await store.search(b"", "", 3)] == ["aside"]
        assert await store.search(KEY, "zz", 3) == []
        with pytest.raises(ValueError, match="empty"):
            await store.load(KEY, "")
        with pytest.raises(ValueError, match="empty"):
            await store.save(record(""))
        with pytest.raises(ValueError, match="seq"):
            await store.save(record("ab", -1))
        with pytest.raises(ValueError, match="limit"):
            await store.search(KEY, "a", 0)
    finally:
        await store.close()


async def test_memory_keeps_the_contract() -> None:
    await check_contract(build_memory_store(*parse_memory_store_uri("memory://", field="f")))


async def test_sql_keeps_the_contract(bare_database: Database) -> None:
    await check_contract(build_memory_store(*parse_memory_store_uri(bare_database.owner, field="f")))


async def test_workers_that_start_at_once_share_the_table_and_the_latest_seq_wins(bare_database: Database) -> None:
    address = parse_memory_store_uri(bare_database.owner, field="f")
    stores = [build_memory_store(*address) for _ in range(4)]
    try:
        await asyncio.gather(*(store.save(record("k", seq)) for seq, store in enumerate(stores)))
        assert await stores[0].load(KEY, "k") == record("k", 3)
    finally:
        for store in stores:
            await store.close()


@pytest.fixture
def redis_uri() -> Iterator[str]:
    server = TcpFakeServer(("127.0.0.1", 0), server_type="redis")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    server.shutdown()
    server.server_close()
    thread.join()


async def test_redis_keeps_the_contract(redis_uri: str) -> None:
    await check_contract(build_memory_store(*parse_memory_store_uri(redis_uri, field="f")))


@given(st.text(max_size=6), st.text(max_size=6))
def test_ids_keep_order_and_prefix(first: str, second: str) -> None:
    try:
        first_id, second_id = key_id(first), key_id(second)
    except UnicodeEncodeError:
        return
    assert (first_id < second_id) == (first < second)
    start, end = prefix_bounds(first)
    assert (start <= second_id < end) == second.startswith(first)
    assert owner_id(b"") == "k"


@pytest.mark.parametrize(
    ("uri", "distribution"),
    [
        ("bigtable://p/i/t", "google-cloud-bigtable"),
        ("firestore://p/c", "google-cloud-firestore"),
        ("redis://host", "redis"),
    ],
)
def test_a_client_that_is_not_installed_is_named(uri: str, distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for client in ("google.cloud", "redis.asyncio"):
        monkeypatch.setitem(sys.modules, client, None)
    scheme, parts = parse_memory_store_uri(uri, field="longterm_memory")
    with pytest.raises(RuntimeError, match=f"needs the package {distribution}: install it"):
        build_memory_store(scheme, parts)


def test_urls_that_no_driver_takes() -> None:
    with pytest.raises(ValueError, match="async SQLAlchemy driver"):
        build_memory_store(*parse_memory_store_uri("nosuchdb://host/x", field="f"))
    with pytest.raises(ValueError, match="async SQLAlchemy driver"):
        build_memory_store(*parse_memory_store_uri("sqlite:///x.db", field="f"))


async def test_an_activation_sees_its_own_saves_first_and_flushes_them_in_order() -> None:
    store = InMemoryMemoryStore()
    await store.save(record("a", 0, b"stored"))
    await store.save(record("ab", 0, b"stored"))
    probe = Recorder()

    async def agent(ctx: ActivationContext) -> Complete:
        longterm = ctx.memory.longterm
        longterm.save("b", b"1")
        longterm.save("a", b"mine")
        longterm.save("b", b"2")
        assert ctx.longterm_store is store
        assert await longterm.load("a") == record("a", 4, b"mine")
        assert await longterm.load("ab") == record("ab", 0, b"stored")
        assert await longterm.load("none") is None
        assert [one.value for one in await longterm.search("", 2)] == [b"mine", b"stored"]
        with pytest.raises(ValueError, match="empty"):
            longterm.save("", b"")
        return Complete()

    result = await run(agent, seq=4, settings={"longterm_store": store}, probe=probe)
    assert result.error is None
    assert result.upserts == (record("b", 4, b"2"), record("a", 4, b"mine"))
    assert await store.load(KEY, "a") == record("a", 4, b"mine")
    assert [report[0] for report in probe.of("longterm_read")] == ["load", "load", "load", "search"]


async def test_a_failing_flush_fails_the_activation_after_its_end_was_staged() -> None:
    class Down(InMemoryMemoryStore):
        async def _save(self, record: MemoryRecord) -> bool:
            raise ConnectionError("down")

    async def agent(ctx: ActivationContext) -> Complete:
        ctx.memory.longterm.save("a", b"1")
        return Complete(b"x")

    result = await run(agent, settings={"longterm_store": Down()})
    assert (result.status, result.output) == ("failed", None)
    assert result.events[0].attributes["error.type"] == "LongtermFlushFailed"
    assert result.events[0].attributes["beam_agents.failure.last_event"] == "ACTIVATION_END"


async def test_a_failed_activation_saves_nothing() -> None:
    store = InMemoryMemoryStore()

    async def agent(ctx: ActivationContext) -> Complete:
        ctx.memory.longterm.save("a", b"1")
        raise ValueError

    await run(agent, settings={"longterm_store": store})
    assert await store.load(KEY, "a") is None
