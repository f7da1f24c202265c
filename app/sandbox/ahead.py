"""A copy that is forked ahead, so that a run need not wait for that: it waits for an order, serves it, and ends.

It executes trusted code only until an order is there, and from then on does what any copy does: nothing of the agent
is read before.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn

from app.sandbox.protocol import DESCRIPTORS_PER_RUN, RUN

_BEGUN: Final = b"begun"


@dataclass
class Waiting:
    """One such copy: its process, the descriptor that says when it ends, and our end of what it listens to.

    What it was handed is kept until it ends. A copy may die with an order that it has taken and not looked at; one that
    it did not acknowledge was never begun.
    """

    pid: int
    watch: int
    near: socket.socket
    _handed: list[int] = field(default_factory=list)

    def hand_over(self, descriptors: list[int]) -> None:
        """Give it the one run that it serves; raises `OSError` where that cannot be sent. The last one is not kept."""
        for descriptor in descriptors[:-1]:
            self._handed.append(os.dup(descriptor))
        socket.send_fds(self.near, [RUN], descriptors)

    def left(self) -> list[int] | None:
        """What it was handed, but for the last descriptor, where it did not begin; to be asked once it has ended."""
        self.near.setblocking(False)
        with suppress(OSError):
            if self.near.recv(len(_BEGUN)) == _BEGUN:
                return None
        return self._handed

    def close(self) -> None:
        """Let go of it; the process is not ended by that."""
        self.near.close()
        while self._handed:
            os.close(self._handed.pop())


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
            if message == RUN:
                far.send(_BEGUN)
                far.close()
                serve(list(descriptors))
        finally:
            os._exit(0)
    far.close()
    return Waiting(pid, os.pidfd_open(pid), near)
