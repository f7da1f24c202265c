"""Child processes that cannot outlive us: the kernel ends them when we are gone, however we went."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int, number: signal.Signals) -> Callable[[], None]:
    """Make what a child runs between fork and exec: it asks the kernel for `number` when `parent` is gone.

    The kernel means the thread that forked, so only the main thread may start such a child.
    """
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def end(process: subprocess.Popen[bytes], numbers: Iterable[signal.Signals], patience_s: float) -> None:
    """Ask a process to end, ever more firmly; each signal gets `patience_s` to work."""
    for number in numbers:
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
