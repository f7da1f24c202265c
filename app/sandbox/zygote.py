"""The host's end of one pre-loaded process: start it, hand it orders, end it."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from app.sandbox.model import SandboxError
from app.sandbox.protocol import CONTROL_DESCRIPTOR, RUN, Start

_ABOVE_THE_CHILDS: Final = 10
_KEPT: Final = 8192
_CODE: Final = "import sys; sys.path.append({root!r}); from app.sandbox.child import main; sys.path.pop(); main()"


class ZygoteGoneError(Exception):
    """The process could not take an order because it had ended."""


class Zygote:
    """A running pre-loaded process. It ends with `close`, or when this process ends."""

    def __init__(self, interpreter: Path, start: Start) -> None:
        """Start the process and return at once; orders wait until it is ready."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._lock = threading.Lock()
        self._ended = False
        self.holders = 0  # runs that need it; counted by its sandbox
        self._complaints = os.fdopen(os.memfd_create("hindcast-sandbox-stderr"), "rb")
        try:
            with theirs:
                self.pid = _spawn(interpreter, start, theirs.fileno(), self._complaints.fileno())
        except OSError as error:
            ours.close()
            raise SandboxError(f"the sandbox could not start {interpreter}: {error}") from error
        self._process = os.fdopen(os.pidfd_open(self.pid), "rb", buffering=0)

    def alive(self) -> bool:
        """Whether the process is still there."""
        return not _has_ended(self._process.fileno(), 0)

    def send(self, descriptors: Sequence[int]) -> None:
        """Hand over one run, as the descriptors that `Order` documents.

        Raises `ZygoteGoneError` where nobody is left to take it.
        """
        with self._lock:
            if self._ended:
                raise ZygoteGoneError
            try:
                socket.send_fds(self._control, [RUN], descriptors)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ZygoteGoneError from error

    def complaints(self) -> str:
        """The end of what the process wrote to stderr: why it did not start."""
        file = self._complaints.fileno()
        return os.pread(file, _KEPT, max(0, os.fstat(file).st_size - _KEPT)).decode(errors="replace").strip()

    def close(self) -> None:
        """End the process and with it every run; waits until it is gone, and does nothing the second time."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self._control.close()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process.fileno(), signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _has_ended(process: int, within_s: float) -> bool:
    poller = select.poll()
    poller.register(process, select.POLLIN)
    return bool(poller.poll(within_s * 1000))


def _spawn(interpreter: Path, start: Start, control: int, complaints: int) -> int:
    """Start the interpreter with our environment left behind and no descriptor but the control socket."""
    high = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, _ABOVE_THE_CHILDS)
    errors = fcntl.fcntl(complaints, fcntl.F_DUPFD_CLOEXEC, _ABOVE_THE_CHILDS)
    code = _CODE.format(root=start.app_root)
    flags = ["-P", "-s", "-S", "-X", "utf8"]
    try:
        return os.posix_spawn(
            interpreter,
            [str(interpreter), *flags, "-c", code, start.encode()],
            # A fixed order of sets, so that the same run gives the same answer, and one time zone everywhere.
            {"PYTHONHASHSEED": "0", "TZ": "UTC0"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, errors, 2),
                (os.POSIX_SPAWN_DUP2, high, CONTROL_DESCRIPTOR),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGCHLD],
        )
    finally:
        os.close(high)
        os.close(errors)


def import_path() -> list[str]:
    """Where this interpreter finds installed packages; the child is started without Python's own search for them."""
    return [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
