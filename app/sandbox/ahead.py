"""A copy that is forked ahead, so that a run need not wait for that: it waits for an order, serves it, and ends.

It executes trusted code only until an order is there, and from then on does what any copy does: nothing of the agent
is read before.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn

from app.sandbox.protocol import DESCRIPTORS_PER_RUN, RUN


class Waiting(NamedTuple):
    """One such copy: its process, the descriptor that says when it ends, and both ends of what it listens to.

    The far end is kept here as well: an order that lies there unread when the copy has died was never begun.
    """

    pid: int
    watch: int
    near: socket.socket
    far: socket.socket

    def hand_over(self, descriptors: list[int]) -> None:
        """Give it the one run that it serves; raises `OSError` where that cannot be sent."""
        socket.send_fds(self.near, [RUN], descriptors)

    def take_back(self) -> list[int] | None:
        """The descriptors of an order that it did not read; to be asked once it has ended."""
        self.far.setblocking(False)
        with suppress(BlockingIOError):
            message, descriptors, _, _ = socket.recv_fds(self.far, len(RUN), DESCRIPTORS_PER_RUN)
            return list(descriptors) if message == RUN else None
        return None

    def close(self) -> None:
        """Let go of it; the process is not ended by that."""
        self.near.close()
        self.far.close()


def fork_ahead(prepare: Callable[[int], None], serve: Callable[[list[int]], NoReturn]) -> Waiting:
    """Fork a copy that calls `prepare`, with the descriptor that it listens to, and, with those of its order, `serve`.

    It ends when nobody is left who could give it one. Raises `OSError` where no process can be made.
    """
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = os.fork()
    except OSError:
        near.close()
        far.close()
        raise
    if pid == 0:
        try:
            prepare(far.fileno())
            message, descriptors, _, _ = socket.recv_fds(far, len(RUN), DESCRIPTORS_PER_RUN)
            far.close()
            if message == RUN:
                serve(list(descriptors))
        finally:
            os._exit(0)
    return Waiting(pid, os.pidfd_open(pid), near, far)
