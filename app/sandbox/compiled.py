"""Compile the agent's files once instead of in every run, without ever running them outside one.

Compiling only parses. It is done all the same in a process that is confined like a run and holds no agent code, and
what it sends is kept as bytes, by file name and content: only runs, which read the file anyway, make code of them.
A file that has changed is simply not found, and compiled by the run that imports it.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any, Final

from app.sandbox.errand import Errand, send_all

_FRAME: Final = struct.Struct("=I32sI")  # length of the file name, digest of its content, length of the code
_AGAIN_S: Final = 5.0
_MOST_FILES: Final = 400
_MOST_SOURCE: Final = 4 * 1024 * 1024
_MOST_KEPT: Final = 64 * 1024 * 1024

Key = tuple[str, bytes]


class Compiled:
    """What the pre-loaded process keeps, and its runs inherit."""

    def __init__(self) -> None:
        self.code: dict[Key, bytes] = {}
        self._errand: Errand | None = None
        self._next = 0.0

    @property
    def descriptor(self) -> int | None:
        """Of the process at work, where there is one."""
        return None if self._errand is None else self._errand.descriptor

    def is_due(self) -> bool:
        """Whether it is time to look for files that are new or changed."""
        return self._errand is None and time.monotonic() >= self._next

    def begin(self, compile_confined: Callable[[int], None]) -> None:
        """Fork a process that calls `compile_confined` with the descriptor to write to; `descriptor` is ours."""
        try:
            self._errand = Errand(compile_confined, _MOST_KEPT)
        except OSError:
            self._next = time.monotonic() + _AGAIN_S

    def receive(self) -> bool:
        """Take what it has sent so far; False once it has ended, with everything whole kept."""
        assert self._errand is not None
        received = self._errand.receive()
        if received is None:
            return True
        found = dict(_frames(received))
        if sum(map(len, self.code.values())) + len(received) > _MOST_KEPT:
            self.code.clear()
        self.code |= found
        self._errand = None
        self._next = time.monotonic() + _AGAIN_S
        return False

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Hide it while this process itself imports something: only runs make code of what was sent."""
        kept = dict(self.code)
        self.code.clear()
        try:
            yield
        finally:
            self.code.update(kept)

    def serve(self) -> None:
        """Have the import system use it, in this process and those forked from it."""
        compile_anew = SourceFileLoader.source_to_code

        def source_to_code(self: SourceFileLoader, data: Any, path: Any, *more: Any, **options: Any) -> CodeType:
            if isinstance(data, bytes) and isinstance(path, str):
                known = kept.get((path, hashlib.sha256(data).digest()))
                if known is not None:
                    code = marshal.loads(known)  # noqa: S302  made by `compile_files`, of this very text
                    if isinstance(code, CodeType):
                        return code
            return compile_anew(self, data, path, *more, **options)

        kept = self.code
        SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign, assignment]


def compile_files(folders: Iterable[str], known: dict[Key, bytes], send: int) -> None:
    """Compile every Python file below the folders that is not `known` and write it to the descriptor `send`."""
    left = _MOST_SOURCE
    for count, path in enumerate(_python_files(folders)):
        source = _read(path, left)
        if source is None:
            continue
        left -= len(source)
        key = (path, hashlib.sha256(source).digest())
        if key not in known:
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                _send(send, key, marshal.dumps(compile(source, path, "exec", dont_inherit=True)))
        if count >= _MOST_FILES or left <= 0:
            return


def _python_files(folders: Iterable[str]) -> Iterator[str]:
    """Files that could be imported from the folders; environments and hidden folders are left out."""
    for folder in folders:
        for where, inner, names in os.walk(folder):
            if "pyvenv.cfg" in names:
                inner.clear()
                continue
            inner[:] = sorted(name for name in inner if name.isidentifier() and name != "__pycache__")
            for name in sorted(names):
                if name.endswith(".py"):
                    yield f"{where}/{name}"


def _read(path: str, most: int) -> bytes | None:
    """Its content; None where it is no ordinary file, out of reach, or larger than is worth it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        return os.read(descriptor, status.st_size + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _send(descriptor: int, key: Key, code: bytes) -> None:
    name = os.fsencode(key[0])
    send_all(descriptor, _FRAME.pack(len(name), key[1], len(code)) + name + code)


def _frames(data: bytes) -> Iterator[tuple[Key, bytes]]:
    """What was sent, as far as it is whole."""
    at = 0
    while at + _FRAME.size <= len(data):
        length, digest, size = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if at + length + size > len(data):
            return
        yield (os.fsdecode(data[at : at + length]), digest), data[at + length : at + length + size]
        at += length + size
