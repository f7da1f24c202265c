"""Which pages a process has written is seen, and copying them early changes nothing but that."""

import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.sandbox import linux, pages

PAGE = mmap.PAGESIZE
COUNT = 64


@pytest.fixture
def memory() -> Iterator[tuple[mmap.mmap, int]]:
    """Pages that this process has written, and where they begin."""
    with mmap.mmap(-1, COUNT * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as made:
        for at in range(COUNT):
            made[at * PAGE] = at
        view = ctypes.c_char.from_buffer(made)
        start = ctypes.addressof(view)
        del view
        yield made, start


def in_a_copy(do: Callable[[], bytes]) -> bytes:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(theirs, do())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as file:
        told = file.read()
    os.waitpid(pid, 0)
    return told


def found(ranges: bytes, start: int) -> list[int]:
    """Which of our pages the ranges cover."""
    covered = [(at, at + size) for at, size in struct.iter_unpack("=QQ", ranges)]
    return [at for at in range(COUNT) if any(begin <= start + at * PAGE < end for begin, end in covered)]


def test_what_a_copy_writes_is_seen(memory: tuple[mmap.mmap, int]) -> None:
    made, start = memory

    def write() -> bytes:
        seen = pages.sight()
        assert made[20 * PAGE] == 20  # reading is no writing
        for at in (3, 10, 11, 12):
            made[at * PAGE] = 99
        return pages.written(seen)

    assert found(in_a_copy(write), start) == [3, 10, 11, 12]


def test_pages_copied_early_hold_what_they_held(memory: tuple[mmap.mmap, int]) -> None:
    made, start = memory
    before = made[:]
    ranges = struct.pack("=QQQQ", start + 3 * PAGE, 2 * PAGE, start + 40 * PAGE, PAGE)

    def copy() -> bytes:
        pages.populate(ranges)
        own = pages.written(pages.sight())
        same = made[:] == before
        made[3 * PAGE] = 99
        return bytes([same]) + own

    told = in_a_copy(copy)
    assert told[0] == 1
    assert made[:] == before
    if not found(told[1:], start):
        pytest.skip("this kernel copies pages only once they are written")
    assert found(told[1:], start) == [3, 4, 40]


def test_more_ranges_than_one_call_takes(memory: tuple[mmap.mmap, int]) -> None:
    _, start = memory
    again = b"".join(struct.pack("=QQ", start, PAGE) for _ in range(1024))
    ranges = again + struct.pack("=QQ", start + 7 * PAGE, PAGE)

    def copy() -> bytes:
        pages.populate(ranges)
        return pages.written(pages.sight())

    seen = found(in_a_copy(copy), start)
    if not seen:
        pytest.skip("this kernel copies pages only once they are written")
    assert seen == [0, 7]


def test_large_pages_hold_what_the_small_ones_held() -> None:
    size = 8 << 20
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as made:
        made[:] = os.urandom(4096) * (size // 4096)
        before = made[:]

        def gather() -> bytes:
            pages.gather()
            same = made[:] == before
            large = any(
                line.startswith("AnonHugePages:") and int(line.split()[1]) > 0
                for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
            )
            made[0:4] = b"mine"
            return bytes([same, large])

        same, large = in_a_copy(gather)
        assert same == 1
        assert made[:] == before
        if not large:
            pytest.skip("this kernel makes no large pages on request")


@pytest.mark.parametrize("ranges", [b"", struct.pack("=QQ", 0, PAGE), struct.pack("=QQ", 1, 1), b"\xff" * 16])
def test_ranges_that_are_of_no_use(ranges: bytes) -> None:
    pages.populate(ranges)


def test_a_kernel_that_does_not_do_it(monkeypatch: pytest.MonkeyPatch, memory: tuple[mmap.mmap, int]) -> None:
    def refuse(*_: object) -> int:
        raise OSError(22, "process_madvise: invalid argument")

    monkeypatch.setattr(linux, "call", refuse)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    pages.populate(struct.pack("=QQ", memory[1], PAGE))
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_an_answer_that_was_cut_off() -> None:
    known = pages.Pages()
    known.learn(lambda send: os.write(send, b"x" * 40) and None)
    assert not known.is_due()
    assert known.descriptor is not None
    os.set_blocking(known.descriptor, True)
    while known.receive():
        pass
    assert known.ranges == b"x" * 32
    assert known.descriptor is None
