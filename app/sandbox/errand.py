"""A process that is forked to find something out and sends it back, while runs go on."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

_CHUNK = 1 << 20


class Errand:
    """One such process; `descriptor` is readable whenever `receive` has something to do."""

    def __init__(self, do: Callable[[int], None], most: int) -> None:
        """Fork it, and have it call `do` with the descriptor to write to; it is let go after `most` bytes.

        Raises `OSError` where no process can be made.
        """
        self.descriptor, theirs = os.pipe()
        self._received = bytearray()
        self._most = most
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self.descriptor)
            os.close(theirs)
            raise
        if self._pid == 0:
            try:
                os.close(self.descriptor)
                do(theirs)
            finally:
                os._exit(0)
        os.close(theirs)
        os.set_blocking(self.descriptor, False)

    def receive(self) -> bytes | None:
        """Everything that it sent, once it has ended; None as long as it is at work."""
        with suppress(BlockingIOError):
            data = os.read(self.descriptor, _CHUNK)
            self._received += data
            if not data or len(self._received) > self._most:
                os.close(self.descriptor)
                os.waitpid(self._pid, 0)  # without a reader it cannot go on either
                return bytes(self._received)
        return None


def send_all(descriptor: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
