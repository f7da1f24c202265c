"""What connects the host with one run: its request, its result, its prints, and the report of trusted code about it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ours:
    """Our ends of what a run writes to, and a descriptor that swallows what nobody will read."""

    report: socket.socket
    result: int
    prints: int
    nowhere: int


class Theirs:
    """The run's ends. They must be closed here once they are sent, or no channel would ever read as ended."""

    def __init__(self, request: int, result: int, prints: int, report: socket.socket) -> None:
        self._open = [request, result, prints]
        self._report = report

    def descriptors(self) -> list[int]:
        """In the order that `Order` documents."""
        return [*self._open, self._report.fileno()]

    def close(self) -> None:
        """Safe to call twice."""
        while self._open:
            os.close(self._open.pop())
        self._report.close()


@contextmanager
def open_for(request: bytes) -> Iterator[tuple[Ours, Theirs]]:
    """The channels of one run that is to read `request`; all of them are closed at the end."""
    report, their_report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    result, their_result = os.pipe()
    prints, their_prints = os.pipe()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    theirs = Theirs(_file_in_memory(request), their_result, their_prints, their_report)
    try:
        yield Ours(report, result, prints, nowhere), theirs
    finally:
        theirs.close()
        report.close()
        for descriptor in (result, prints, nowhere):
            with suppress(OSError):
                os.close(descriptor)


def _file_in_memory(data: bytes) -> int:
    """A file without a name that holds `data`."""
    file = os.memfd_create("hindcast-request", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    return file
