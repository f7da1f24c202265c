"""What a fork costs: the pages of memory that a run writes are learnt from a throwaway one, and copied ahead.

A copy shares its parent's pages until it writes them, and each first write is a trap into the kernel: more than a
thousand in a short run. Which pages that are hardly depends on the agent. Nothing here changes what any page holds, so
all of it may fail, and then the kernel does page by page what it always does.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from app.sandbox import linux, namespaces
from app.sandbox.errand import Errand

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_RANGE: Final = struct.Struct("=QQ")  # where it begins and its length in bytes: an `iovec` of a 64-bit kernel
_ENTRY: Final = struct.Struct("=Q")
_PRESENT: Final = 1 << 63
_OWN: Final = 1 << 56  # mapped by this process alone
_MOST_AT_ONCE: Final = 1024
_MOST_SENT: Final = 1 << 20
_MADV_POPULATE_WRITE: Final = 23
_MADV_COLLAPSE: Final = 25
_LARGE_PAGE: Final = 2 * 1024 * 1024
_ROOTS: Final = ("", namespaces.HOST)


class Pages:
    """What the pre-loaded process has learnt, once for as long as it lives, and its copies inherit."""

    def __init__(self) -> None:
        self.ranges = b""
        self._errand: Errand | None = None
        self._asked = False

    @property
    def descriptor(self) -> int | None:
        """Of the process at work, where there is one."""
        return None if self._errand is None else self._errand.descriptor

    def is_due(self) -> bool:
        """Whether nobody was asked so far."""
        return not self._asked

    def is_settled(self) -> bool:
        """Whether nothing more will be learnt."""
        return self._asked and self._errand is None

    def learn(self, rehearse_confined: Callable[[int], None]) -> None:
        """Fork a process that calls `rehearse_confined` with the descriptor to send the answer of `written` to."""
        self._asked = True
        with suppress(OSError):
            self._errand = Errand(rehearse_confined, _MOST_SENT)

    def receive(self) -> bool:
        """Take what it has sent so far; False once it has ended."""
        assert self._errand is not None
        received = self._errand.receive()
        if received is None:
            return True
        self.ranges = received[: len(received) // _RANGE.size * _RANGE.size]
        self._errand = None
        return False


def gather() -> None:
    """Have this process's memory put into large pages, as far as the kernel does that.

    Those are shared with a copy, and let go by it, at a fraction of what as many small ones take.
    """
    with suppress(OSError):
        for start, end in _areas():
            for at in range(-(-start // _LARGE_PAGE) * _LARGE_PAGE, end - _LARGE_PAGE + 1, _LARGE_PAGE):
                with suppress(OSError):
                    linux.call("madvise", at, _LARGE_PAGE, _MADV_COLLAPSE)


class Sight(NamedTuple):
    """A process's own memory: what the kernel tells of its pages (a descriptor), and its writable private areas."""

    pagemap: int
    areas: list[tuple[int, int]]


def sight() -> Sight:
    """Look at this process, while it can still reach `/proc`; raises `OSError` where there is none."""
    areas = _areas()
    for root in _ROOTS:
        with suppress(OSError):
            return Sight(os.open(root + "/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC), areas)
    raise FileNotFoundError("/proc/self/pagemap")


def _areas() -> list[tuple[int, int]]:
    for root in _ROOTS:
        with suppress(OSError):
            return list(_writable(Path(root + "/proc/self/maps").read_text()))
    raise FileNotFoundError("/proc/self/maps")


def _writable(maps: str) -> Iterator[tuple[int, int]]:
    for line in maps.splitlines():
        where, rights, *_ = line.split()
        if rights.startswith("rw") and rights.endswith("p"):
            start, _, end = where.partition("-")
            yield int(start, 16), int(end, 16)


def written(seen: Sight) -> bytes:
    """What this process no longer shares with the one that it was forked from, as `populate` takes it."""
    found: list[list[int]] = []
    for start, end in seen.areas:
        entries = os.pread(seen.pagemap, (end - start) // _PAGE * _ENTRY.size, start // _PAGE * _ENTRY.size)
        for at, (entry,) in enumerate(_ENTRY.iter_unpack(entries)):
            if entry & _PRESENT and entry & _OWN:
                page = start + at * _PAGE
                if found and sum(found[-1]) == page:
                    found[-1][1] += _PAGE
                else:
                    found.append([page, _PAGE])
    return b"".join(_RANGE.pack(*each) for each in found)


def populate(ranges: bytes) -> None:
    """Copy these pages of this process now, as far as the kernel does that."""
    if not ranges:
        return
    with suppress(OSError):
        own = os.pidfd_open(os.getpid())
        try:
            for part in _parts(ranges):
                buffer = ctypes.create_string_buffer(part, len(part))
                linux.call("process_madvise", own, buffer, len(part) // _RANGE.size, _MADV_POPULATE_WRITE, 0)
        finally:
            os.close(own)


def _parts(ranges: bytes) -> Iterable[bytes]:
    size = _MOST_AT_ONCE * _RANGE.size
    return (ranges[at : at + size] for at in range(0, len(ranges), size))
