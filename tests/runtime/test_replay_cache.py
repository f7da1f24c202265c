"""The replay cache: its bytes, its three limits, its order."""

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runtime.replay_cache import (
    BLOB_CAP_BYTES,
    MAX_ENTRIES,
    TTL_MS,
    ReplayCache,
    ReplayEntry,
    compute_cache_key,
)
from app.wire.records import LlmCacheBlob, serialize
from tests.runtime.running import KEY, NOW, Recorder, ask


def key_of(number: int) -> str:
    return f"{number:064x}"


def test_documented_bytes() -> None:
    cache = ReplayCache(now_ms=NOW)
    cache.put("00" * 32, b"pong")
    assert serialize(cache.image()).hex() == (
        "080112780a40" + "30" * 64 + "1204706f6e67"
        "1a209795c5ff8937f23526ccb207a5684c1fc94a7854e19c021b39d944e51f5baef22080d095ffbc312880d095ffbc311804"
    )
    assert serialize(ReplayCache(now_ms=NOW).image()) == b"\x08\x01"


@pytest.mark.parametrize(("size", "digest_only"), [(102_272, False), (102_273, True)])
def test_largest_response_that_is_kept(size: int, digest_only: bool) -> None:
    cache = ReplayCache(now_ms=NOW)
    cache.put("0" * 64, b"x" * size)
    entry = cache.image().entries[0]
    assert entry.digest_only is digest_only
    assert entry.response_digest == hashlib.sha256(b"x" * size).digest()
    assert len(entry.response) == (0 if digest_only else size)
    assert cache.image().total_response_bytes == len(entry.response)
    assert cache.image().ByteSize() <= BLOB_CAP_BYTES


def test_ttl_counts_from_creation_and_its_last_millisecond_is_live() -> None:
    cache = ReplayCache(now_ms=NOW)
    cache.put("k", b"v")
    blob = cache.image()
    live = ReplayCache(blob, now_ms=NOW + TTL_MS)
    entry = live.get("k")
    assert entry is not None
    assert (entry.created_at_ms, entry.last_access_ms) == (NOW, NOW + TTL_MS)
    # A touch does not lengthen its life.
    probe = Recorder()
    expired = ReplayCache(live.image(), now_ms=NOW + TTL_MS + 1, probe=probe)
    assert expired.get("k") is None
    assert probe.of("cache_unusable") == [("k", "expired")]
    assert len(expired) == 0
    assert blob.entries[0].last_access_ms == NOW


def test_get_purges_only_what_it_asks_for_and_put_purges_all() -> None:
    cache = ReplayCache(now_ms=NOW)
    cache.put("a", b"1")
    cache.put("b", b"2")
    late = ReplayCache(cache.image(), now_ms=NOW + TTL_MS + 1)
    assert late.get("a") is None
    assert len(late) == 1
    late.put("c", b"3")
    assert [entry.cache_key for entry in late.image().entries] == ["c"]


def test_a_clock_before_creation_is_no_expiry() -> None:
    cache = ReplayCache(now_ms=NOW)
    cache.put("k", b"v")
    early = ReplayCache(cache.image(), now_ms=0)
    assert early.get("k") is not None
    assert early.image().entries[0].last_access_ms == 0


def test_hits_move_to_the_end_and_a_digest_alone_is_touched_too() -> None:
    probe = Recorder()
    cache = ReplayCache(now_ms=NOW, probe=probe)
    for name in ("big", "a", "b"):
        cache.put(name, b"x" * (BLOB_CAP_BYTES if name == "big" else 1))
    digest = cache.get("big")
    assert digest is not None
    assert digest.digest_only
    assert probe.of("cache_unusable") == [("big", "digest_only")]
    cache.get("a")
    assert [entry.cache_key for entry in cache.image().entries] == ["b", "big", "a"]


def test_entries_beyond_64_push_out_the_least_recently_used() -> None:
    cache = ReplayCache(now_ms=NOW)
    for number in range(MAX_ENTRIES):
        cache.put(key_of(number), b"x")
    cache.get(key_of(0))
    cache.put(key_of(MAX_ENTRIES), b"x")
    kept = [entry.cache_key for entry in cache.image().entries]
    assert kept == [*map(key_of, range(2, MAX_ENTRIES)), key_of(0), key_of(MAX_ENTRIES)]


def test_bytes_beyond_the_cap_push_out_the_oldest() -> None:
    cache = ReplayCache(now_ms=NOW)
    for number in range(3):
        cache.put(key_of(number), b"x" * 40_000)
    assert [entry.cache_key for entry in cache.image().entries] == [key_of(1), key_of(2)]


def test_the_last_of_two_entries_with_one_key_counts() -> None:
    blob = LlmCacheBlob(entries=[ReplayEntry(cache_key="k", response=b"1"), ReplayEntry(cache_key="k", response=b"2")])
    entry = ReplayCache(blob, now_ms=0).get("k")
    assert entry is not None
    assert entry.response == b"2"


def test_documented_keys() -> None:
    assert (
        compute_cache_key(ask("hi"), entity_key=b"key-1", seq=0)
        == "10d065eb733b7959e89a34e8c19f2cd753c434ad305f576999b20de962584792"
    )
    assert compute_cache_key(ask("hi"), entity_key=KEY, seq=0) != compute_cache_key(ask("hi"), entity_key=KEY, seq=1)


puts = st.tuples(
    st.just("put"), st.integers(0, 90), st.sampled_from([0, 1, 127, 128, 900, 1600, 5_000, 40_000, 102_272, 103_000])
)
gets = st.tuples(st.just("get"), st.integers(0, 90), st.just(0))
waits = st.tuples(st.just("wait"), st.integers(1, TTL_MS // 2), st.just(0))


@given(st.lists(st.one_of(puts, puts, gets, waits), max_size=120))
def test_limits_hold_after_every_put(steps: list[tuple[str, int, int]]) -> None:
    """Count, age and serialized size; the newest stays; nothing goes that still fitted."""
    cache = ReplayCache(now_ms=NOW)
    for name, number, size in steps:
        if name == "wait":
            cache = ReplayCache(cache.image(), now_ms=cache.now_ms + number)
            continue
        if name == "get":
            found = cache.get(key_of(number))
            assert found is None or found.last_access_ms == cache.now_ms
            continue
        before = [entry for entry in cache.image().entries if cache.now_ms - entry.created_at_ms <= TTL_MS]
        cache.put(key_of(number), b"x" * size)
        image = cache.image()
        kept = list(image.entries)
        assert len(kept) <= MAX_ENTRIES
        assert image.ByteSize() <= BLOB_CAP_BYTES
        assert image.total_response_bytes == sum(len(entry.response) for entry in kept)
        assert kept[-1].cache_key == key_of(number)
        assert all(cache.now_ms - entry.created_at_ms <= TTL_MS for entry in kept)
        others = [entry for entry in before if entry.cache_key != key_of(number)]
        assert kept[:-1] == others[len(others) - len(kept) + 1 :]
        evicted = others[: len(others) - len(kept) + 1]
        if evicted and len(kept) < MAX_ENTRIES:
            fitting = LlmCacheBlob()
            fitting.CopyFrom(image)
            fitting.entries.append(evicted[-1])
            fitting.total_response_bytes += len(evicted[-1].response)
            assert fitting.ByteSize() > BLOB_CAP_BYTES


@given(st.lists(st.integers(0, 5), max_size=20))
def test_order_is_recency(touched: list[int]) -> None:
    cache = ReplayCache(now_ms=NOW)
    for number in range(6):
        cache.put(key_of(number), b"")
    for number in touched:
        cache.get(key_of(number))
    order = [entry.cache_key for entry in cache.image().entries]
    last = {key_of(number): place for place, number in enumerate([*range(6), *touched])}
    assert all(last[first] < last[second] for first, second in pairwise(order))
