"""Working memory: its bytes, its order, its caps, against a plain model of the same rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runtime.memory import HARD_CAP_BYTES, SOFT_CAP_BYTES, Memory, MemoryOverflow, decode_ring, encode_ring
from app.wire.records import MemoryBlob, serialize
from tests.runtime.running import NOW, Recorder


class Clearing:
    """A compactor that deletes everything and counts how often it was asked."""

    def __init__(self) -> None:
        self.runs = 0

    def compact(self, memory: Memory) -> None:
        self.runs += 1
        for key in memory.keys():  # noqa: SIM118 - Memory is no mapping
            memory.delete(key)


class Useless:
    """A compactor that makes no room."""

    def __init__(self) -> None:
        self.runs = 0

    def compact(self, memory: Memory) -> None:
        self.runs += 1
        memory.set("inside", b"x" * HARD_CAP_BYTES)
        memory.delete("inside")


def test_documented_bytes() -> None:
    memory = Memory(now_ms=NOW)
    memory.set("a", b"v1")
    memory.append("log", b"x", max_items=2)
    memory.append("log", b"yy", max_items=2)
    memory.set("empty", b"")
    memory.get("a")
    assert serialize(memory.image()).hex() == (
        "0801121a0a036c6f67120c0100000001780000000279791880d095ffbc3112110a05656d7074791201001880d095ffbc31"
        "120f0a016112030076311880d095ffbc311810"
    )


def test_untouched_key_commits_only_its_version() -> None:
    assert serialize(Memory(now_ms=NOW).image()) == b"\x08\x01"


def test_reads_restamp_and_absent_reads_change_nothing() -> None:
    blob = MemoryBlob(
        entries=[
            MemoryBlob.MemoryEntry(key="old", value=b"\x00v", last_access_ms=1),
            MemoryBlob.MemoryEntry(key="older", value=b"\x01", last_access_ms=2),
        ]
    )
    memory = Memory(blob, now_ms=NOW)
    assert memory.get("none") is None
    assert memory.ring("none") == ()
    assert memory.keys() == ("old", "older")
    assert memory.entry_size("old") == 2
    assert not memory.dirty
    assert memory.get("old") == b"v"
    assert memory.dirty
    assert memory.keys() == ("older", "old")
    assert [entry.last_access_ms for entry in memory.image().entries] == [2, NOW]
    assert [entry.last_access_ms for entry in blob.entries] == [1, 2]


def test_kinds_do_not_mix() -> None:
    memory = Memory(now_ms=NOW)
    memory.append("r", b"1")
    with pytest.raises(TypeError, match=r"^key 'r' holds a ring; use ring\(\) instead of get\(\)$"):
        memory.get("r")
    memory.set("s", b"1")
    with pytest.raises(TypeError, match="key 's' holds a scalar"):
        memory.ring("s")
    with pytest.raises(TypeError, match="key 's' holds a scalar"):
        memory.append("s", b"2")
    memory.set("r", b"now a scalar")
    assert memory.get("r") == b"now a scalar"
    with pytest.raises(KeyError):
        memory.entry_size("absent")
    with pytest.raises(TypeError, match="is a str, not int"):
        memory.set(5, b"")  # type: ignore[arg-type]
    memory.delete("absent")


def test_append_of_no_items_keeps_an_empty_ring() -> None:
    memory = Memory(now_ms=NOW)
    memory.append("r", b"x", max_items=0)
    assert memory.ring("r") == ()
    assert memory.entry_size("r") == 1


def test_a_ring_cut_short_is_named() -> None:
    with pytest.raises(ValueError, match="cut inside item 1"):
        decode_ring(encode_ring([b"ab", b"cd"])[:-1])
    with pytest.raises(ValueError, match="cut inside item 0"):
        decode_ring(b"\x01\x00\x00")


def test_longterm_needs_a_store() -> None:
    with pytest.raises(RuntimeError, match="longterm_memory"):
        _ = Memory(now_ms=NOW).longterm


@pytest.mark.parametrize("spare", [0, 1])
def test_hard_cap_is_one_mebibyte_of_encoded_values(spare: int) -> None:
    memory = Memory(now_ms=NOW)
    memory.set("a", b"x" * (HARD_CAP_BYTES - 1 - spare))
    assert memory.size_bytes == HARD_CAP_BYTES - spare
    with pytest.raises(MemoryOverflow) as overflow:
        memory.append("b", b"x")
    assert (overflow.value.key, overflow.value.attempted_bytes) == ("b", HARD_CAP_BYTES - spare + 6)
    assert overflow.value.cap_bytes == HARD_CAP_BYTES
    assert memory.keys() == ("a",)


def test_hard_cap_runs_the_compactor_once_and_recomputes_the_ring() -> None:
    compactor = Clearing()
    memory = Memory(now_ms=NOW, compactor=compactor)
    memory.append("r", b"x" * 400_000)
    memory.append("r", b"y" * 300_000)
    assert compactor.runs == 0
    memory.append("r", b"z" * 400_000)
    assert compactor.runs == 1
    assert memory.ring("r") == (b"z" * 400_000,)

    useless = Useless()
    memory = Memory(now_ms=NOW, compactor=useless)
    with pytest.raises(MemoryOverflow):
        memory.set("a", b"x" * HARD_CAP_BYTES)
    assert useless.runs == 1


def test_soft_cap_runs_the_compactor_after_the_first_write_at_or_above_it(caplog: pytest.LogCaptureFixture) -> None:
    useless = Useless()
    memory = Memory(now_ms=NOW, compactor=useless)
    memory.set("a", b"x" * (SOFT_CAP_BYTES - 2))
    assert useless.runs == 0
    memory.set("b", b"")
    assert useless.runs == 1
    memory.set("c", b"")
    assert useless.runs == 1
    assert len(caplog.records) == 1

    # Memory that begins above the cap is warned of at its first write, never at a read or a delete.
    memory = Memory(memory.image(), now_ms=NOW, compactor=useless)
    memory.get("a")
    memory.delete("c")
    assert useless.runs == 1
    memory.set("b", b"")
    assert useless.runs == 2


def test_what_the_probe_is_told() -> None:
    probe = Recorder()
    memory = Memory(now_ms=NOW, probe=probe)
    memory.set("a", b"1")
    memory.append("r", b"x")
    memory.append("r", b"y")
    assert probe.of("memory_read") == [("kind", "r", None), ("kind", "r", True)]
    assert probe.of("memory_write") == [
        ("set", "a", None, b"\x001"),
        ("append", "r", None, encode_ring([b"x"])),
        ("append", "r", encode_ring([b"x"]), encode_ring([b"x", b"y"])),
    ]
    memory.get("a")
    memory.get("none")
    memory.ring("r")
    memory.ring("none")
    memory.keys()
    memory.entry_size("a")
    _ = memory.size_bytes
    memory.to_blob()
    memory.image()
    memory.delete("a")
    memory.delete("a")
    assert probe.of("memory_read")[2:] == [
        ("get", "a", b"1"),
        ("get", "none", None),
        ("ring", "r", (b"x", b"y")),
        ("ring", "none", ()),
        ("keys", "", ("a", "r")),
        ("entry_size", "a", 2),
        ("size_bytes", "", 13),
        ("keys", "", ("a", "r")),
    ]
    assert probe.of("memory_write")[3:] == [("delete", "a", b"\x001", None)]


def test_a_cap_that_decides_is_a_read_of_the_size() -> None:
    probe = Recorder()
    memory = Memory(now_ms=NOW, compactor=Clearing(), probe=probe)
    memory.set("a", b"x" * SOFT_CAP_BYTES)
    assert [report[0] for report in probe.of("memory_read")] == ["size_bytes", "keys"]
    with pytest.raises(MemoryOverflow):
        Memory(memory.image(), now_ms=NOW, probe=probe).set("a", b"x" * HARD_CAP_BYTES)
    assert [report[0] for report in probe.of("memory_read")] == ["size_bytes", "keys", "size_bytes"]


keys = st.sampled_from(["a", "b", "c"])
small = st.binary(max_size=4)
operations = st.one_of(
    st.tuples(st.just("set"), keys, small),
    st.tuples(st.just("append"), keys, small, st.integers(-1, 3)),
    st.tuples(st.sampled_from(["get", "ring", "delete", "entry_size"]), keys),
)


def plain(entries: list[tuple[str, Any]], operation: tuple[Any, ...]) -> Any:
    """The rules once more, on a list of (key, bytes or list of bytes), least recently used first."""
    name, key, *rest = operation
    held = dict(entries)
    if name == "delete":
        entries[:] = [entry for entry in entries if entry[0] != key]
        return None
    if name == "entry_size":
        if key not in held:
            return KeyError
        value = held[key]
        return 1 + (len(value) if isinstance(value, bytes) else sum(4 + len(item) for item in value))
    if name in ("get", "ring"):
        if key not in held:
            return None if name == "get" else ()
        entries.remove((key, held[key]))
        entries.append((key, held[key]))
        if isinstance(held[key], bytes) != (name == "get"):
            return TypeError
        return held[key] if name == "get" else tuple(held[key])
    if name == "append":
        if isinstance(held.get(key), bytes):
            return TypeError
        item, limit = rest
        new: Any = [*held.get(key, []), item][-limit:] if limit > 0 else []
    else:
        new = rest[0]
    entries[:] = [entry for entry in entries if entry[0] != key]
    entries.append((key, new))
    return None


@given(st.lists(operations, max_size=30))
def test_behaves_as_the_plain_model(steps: list[tuple[Any, ...]]) -> None:
    """Same answers, same order, same sizes; and reloading the image changes nothing."""
    memory = Memory(now_ms=NOW)
    model: list[tuple[str, Any]] = []
    for step in steps:
        name, *arguments = step
        expected = plain(model, step)
        try:
            answer = getattr(memory, name)(*arguments)
        except (TypeError, KeyError) as error:
            answer = type(error)
        assert answer == expected
        memory = Memory(MemoryBlob.FromString(serialize(memory.image())), now_ms=NOW)
    image = memory.image()
    assert [entry.key for entry in image.entries] == [key for key, _ in model]
    assert [entry.value for entry in image.entries] == [
        b"\x00" + value if isinstance(value, bytes) else encode_ring(value) for _, value in model
    ]
    assert image.total_value_bytes == sum(len(entry.value) for entry in image.entries)
