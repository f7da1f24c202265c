"""Streams the lines of an event log, plain or gzip, with their offsets in the unpacked bytes; memory is bounded."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple, cast

LONGEST: Final = 64 * 1024 * 1024  # bytes of one line that are held at once
_GZIP: Final = b"\x1f\x8b"
_PIECE: Final = 1 << 20


class Line(NamedTuple):
    """One line without its end. `whole` is False at the end of a file that stops inside a line.

    `data` is None for a line that is too long to be held; `size` is its length either way.
    """

    offset: int
    size: int
    data: bytes | None
    whole: bool

    @property
    def end(self) -> int:
        """Where the next line begins."""
        return self.offset + self.size + self.whole


class LogError(Exception):
    """A file cannot be read as an event log: what it is called, what is wrong, and what to do."""

    def __init__(self, name: str, what: str, remedy: str) -> None:
        self.name = name
        self.what = what
        self.remedy = remedy
        super().__init__(f"{name}: {what}. {remedy}")


@contextmanager
def open_log(path: Path) -> Iterator[IO[bytes]]:
    """Open a log for reading, unpacking gzip as it goes. Raises `LogError` for what cannot be opened."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise LogError(
            str(path), f"cannot be read ({error.strerror})", "Check the path and its permissions."
        ) from error
    with raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw


def read_lines(stream: IO[bytes], name: str, start: int = 0, longest: int = LONGEST) -> Iterator[Line]:
    """Yield the lines from a byte offset on. Raises `LogError` where a packed file is damaged."""
    offset = start
    try:
        if start:
            stream.seek(start)
        while piece := stream.readline(longest + 1):
            whole = piece.endswith(b"\n")
            if whole or len(piece) <= longest:
                yield Line(offset, len(piece) - whole, piece[:-1] if whole else piece, whole)
                offset += len(piece)
                continue
            line = _too_long(stream, offset, len(piece))
            yield line
            offset = line.end
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LogError(
            name,
            f"the packed file is damaged or cut short after {offset} bytes of its content ({error})",
            "What came before was read; get the file again for the rest.",
        ) from error


def _too_long(stream: IO[bytes], offset: int, size: int) -> Line:
    while piece := stream.readline(_PIECE):
        size += len(piece)
        if piece.endswith(b"\n"):
            return Line(offset, size - 1, None, True)
    return Line(offset, size, None, False)


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a log the same log under another name, moved, rotated or packed: its first line and its writer."""

    digest: str

    @classmethod
    def of(cls, line: bytes, writer: str) -> Identity:
        return cls(hashlib.sha256(writer.encode("utf-8", "surrogatepass") + b"\0" + line).hexdigest())
