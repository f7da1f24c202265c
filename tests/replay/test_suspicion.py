"""A read that the state cannot vouch for: found, varied, and never the ground of a verdict."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.replay.images import Fit, State
from app.replay.rerun_pb2 import MemoryRead
from app.replay.suspicion import Clocks, Suspect, scalar_variants, suspects, variants, with_value
from app.wire.records import MemoryBlob

CLOCKS = Clocks(lower=frozenset({100, 200}), other=frozenset({300, 400}))


def state(fit: Fit, **stamps: int) -> State:
    blob = MemoryBlob()
    for key, stamp in stamps.items():
        blob.entries.add(key=key, value=b"\x001", last_access_ms=stamp)
    return State(fit, 5, memory=blob)


def read(key: str, *, present: bool = True, own: bool = False, operation: int = MemoryRead.GET) -> MemoryRead:
    return MemoryRead(operation=operation, key=key, present=present, own_write=own)  # type: ignore[arg-type]


@pytest.mark.parametrize("fit", [Fit.EMPTY, Fit.EXACT])
def test_an_exact_state_vouches_for_everything(fit: Fit) -> None:
    reads = [read("a"), read("b", present=False), read("", operation=MemoryRead.KEYS)]
    assert suspects(reads, state(fit, a=999), CLOCKS, 4) == []


@pytest.mark.parametrize(
    ("one", "stamp", "doubtful"),
    [
        (read("a"), 100, False),  # written at a lower counter
        (read("a"), 300, True),  # the attempt's own clock: read or overwritten by it
        (read("a"), 400, True),  # a later counter, whatever its clock
        (read("a"), 250, True),  # by nothing that was traced
        (read("a", present=False), 100, True),  # may have been deleted since
        (read("a", own=True), 300, False),  # its own write
        (read("", operation=MemoryRead.KEYS), 100, True),
        (read("", operation=MemoryRead.SIZE_BYTES), 100, True),
        (read("a", operation=MemoryRead.ENTRY_SIZE), 100, True),
    ],
)
def test_a_later_state_vouches_only_for_what_a_lower_counter_stamped(
    one: MemoryRead, stamp: int, doubtful: bool
) -> None:
    assert bool(suspects([one], state(Fit.AFTER, a=stamp), CLOCKS, 4)) == doubtful


def test_a_clock_that_a_lower_and_a_later_counter_share_proves_nothing() -> None:
    clocks = Clocks(lower=frozenset({100}), other=frozenset({100, 300}))
    assert suspects([read("a")], state(Fit.AFTER, a=100), clocks, 4)


def test_an_earlier_state_vouches_for_nothing() -> None:
    assert suspects([read("a")], state(Fit.BEFORE, a=100), CLOCKS, 4)


@given(st.binary(max_size=40))
def test_a_varied_scalar_is_another_value(value: bytes) -> None:
    found = list(scalar_variants(value))
    assert found
    assert any(varied != value for varied in found)


@pytest.mark.parametrize("number", ["0", "41", "-7"])
def test_a_number_stays_a_number(number: str) -> None:
    assert all(int(varied) != int(number) for varied in scalar_variants(number.encode()))


def test_json_stays_json() -> None:
    varied = json.loads(next(iter(scalar_variants(b'{"limit": 5, "ok": true, "tags": ["a"]}'))))
    assert varied == {"limit": 6, "ok": False, "tags": ["a~"]}


@pytest.mark.parametrize("operation", ["get", "ring", "keys", "size_bytes", "entry_size"])
def test_variants_change_the_image_and_leave_the_original(operation: str) -> None:
    memory = MemoryBlob()
    memory.entries.add(key="a", value=b"\x01\x00\x00\x00\x02hi" if operation == "ring" else b"\x00hi")
    before = memory.SerializeToString(deterministic=True)
    found = list(variants(Suspect(operation, "a" if operation in ("get", "ring", "entry_size") else "", ""), memory))
    assert found
    assert all(varied != memory for varied in found)
    assert memory.SerializeToString(deterministic=True) == before


def test_with_value_keeps_order_and_totals() -> None:
    memory = MemoryBlob()
    for key in "abc":
        memory.entries.add(key=key, value=b"\x00" + key.encode())
    replaced = with_value(memory, "b", b"\x00long")
    assert [entry.key for entry in replaced.entries] == ["a", "b", "c"]
    assert replaced.total_value_bytes == 9
    assert [entry.key for entry in with_value(memory, "b", None).entries] == ["a", "c"]
