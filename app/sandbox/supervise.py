"""Watch one run from the host until it has ended, whatever it does: no wait here is without a limit."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.sandbox import scratch
from app.sandbox.channels import Ours
from app.sandbox.model import Confinement, Ending, Limits
from app.sandbox.protocol import FRAME, MAX_MESSAGE

_CHUNK: Final = 1 << 20
_TICK_S: Final = 0.05
_REST: Final = 10  # how many times as long as measuring the scratch folder took we leave it alone
# A process that is not ready by now will not be; a killed run that is not gone by now is stuck in the kernel.
_START_S: Final = 60.0
_DEATH_S: Final = 10.0


@dataclass(slots=True)
class Outcome:
    """What was seen of one run; `cause` is why the host ended it, if it did."""

    taken: bool = False  # the pre-loaded process has made a process for it
    confinement: Confinement | None = None
    refused: str = ""
    failed: str = ""
    cause: Ending | None = None
    exit_code: int | None = None  # negative: the signal that ended it
    cpu_ms: int = 0
    frame: bytearray = field(default_factory=bytearray)
    printed: bytearray = field(default_factory=bytearray)
    discarded: int = 0
    stuck: bool = False  # the pre-loaded process must not be used again


class Supervisor:
    """Follows the report, the result and the prints of one run, and ends it when it goes beyond its limits."""

    def __init__(self, channels: Ours, folder: str, limits: Limits, stop: threading.Event | None) -> None:
        self.outcome = Outcome()
        self._channels = channels
        self._folder = folder
        self._limits = limits
        self._stop = stop
        self._process: int | None = None
        self._pid: int | None = None
        self._deadline = time.monotonic() + _START_S
        self._over = False
        self._would_block = False  # of the latest read
        self._next_look = self._deadline - _START_S + _TICK_S
        self._next_measure = self._next_look

    def follow(self) -> Outcome:
        """Return when the run has ended; what it wrote until then is in the outcome."""
        sources = {
            self._channels.report.fileno(): self._hear,
            self._channels.result: self._receive,
            self._channels.prints: self._collect,
        }
        poller = select.poll()
        for descriptor in sources:
            os.set_blocking(descriptor, False)
            poller.register(descriptor, select.POLLIN)
        try:
            while not self._over:
                for descriptor, _ in poller.poll(self._patience_ms()):
                    if not sources[descriptor]():
                        poller.unregister(descriptor)
                self._check()
            self._end_orphan()
            for read in (self._receive, self._collect):
                while read() and not self._would_block:
                    pass
        finally:
            if self._process is not None:
                os.close(self._process)
        return self.outcome

    # Each reader returns False once its channel is closed.

    def _hear(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._channels.report, MAX_MESSAGE, 1)
        self.outcome.taken = self.outcome.taken or bool(message)
        if descriptors:
            if self._process is not None:  # it died before it began, and another takes its place
                os.close(self._process)
            self._process = descriptors[0]
            self._pid = _pid_behind(self._process)
            if self.outcome.cause is not None:
                self._signal()
        if not message:
            self._over = True
            return False
        self._understand(json.loads(message))
        return True

    def _understand(self, said: dict[str, Any]) -> None:
        if "confined" in said:
            self.outcome.confinement = _confinement(said["confined"])
            self._deadline = time.monotonic() + self._limits.wall_s
        elif "refused" in said:
            self.outcome.refused = said["refused"]
        elif "failed" in said:
            self.outcome.failed = said["failed"]
        elif "ended" in said:
            self.outcome.exit_code = said["ended"]
            self.outcome.cpu_ms = said["cpu_ms"]
            self._over = True

    def _receive(self) -> bool:
        data = self._read(self._channels.result)
        self.outcome.frame += data
        if len(self.outcome.frame) > FRAME.size + self._limits.result_bytes:
            self.outcome.frame.clear()
            self._end(Ending.RESULT_TOO_LARGE)
        return bool(data) or self._would_block

    def _collect(self) -> bool:
        room = self._limits.output_bytes - len(self.outcome.printed)
        if room <= 0:
            return self._discard()
        data = self._read(self._channels.prints)
        self.outcome.printed += data[:room]
        self.outcome.discarded += len(data[room:])
        return bool(data) or self._would_block

    def _discard(self) -> bool:
        """Let the run print on without looking at it: it must not wait for us, nor we hold what it prints."""
        self._would_block = False
        try:
            count = os.splice(self._channels.prints, self._channels.nowhere, _CHUNK)
        except BlockingIOError:
            self._would_block = True
            return True
        self.outcome.discarded += count
        return count > 0

    def _read(self, descriptor: int) -> bytes:
        self._would_block = False
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            self._would_block = True
            return b""

    def _patience_ms(self) -> float:
        return max(0.0, min(_TICK_S, self._deadline - time.monotonic())) * 1000

    def _check(self) -> None:
        """Hold the run against everything that the kernel does not count for us."""
        now = time.monotonic()
        if now >= self._deadline:
            if self.outcome.cause is not None or self.outcome.confinement is None:
                self.outcome.stuck = self._over = True
            self._end(Ending.TIME_LIMIT)
        if now < self._next_look:
            return
        self._next_look = now + _TICK_S
        if self._stop is not None and self._stop.is_set():
            self._end(Ending.CANCELLED)
        elif self._threads() > self._limits.processes:
            self._end(Ending.PROCESS_LIMIT)
        elif now >= self._next_measure and self._exceeds_scratch():
            self._end(Ending.SCRATCH_LIMIT)

    def _exceeds_scratch(self) -> bool:
        """Measure the scratch folder, the less often the longer that takes: a deep tree must not keep us busy."""
        begun = time.monotonic()
        exceeds = scratch.exceeds(self._folder, self._limits.scratch_bytes)
        ended = time.monotonic()
        self._next_measure = ended + _REST * (ended - begun)
        return exceeds

    def _threads(self) -> int:
        if self._pid is None:
            return 0
        with suppress(OSError):
            for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
                if line.startswith("Threads:"):
                    return int(line.split()[1])
        return 0

    def _end(self, cause: Ending) -> None:
        if self.outcome.cause is None:
            self.outcome.cause = cause
            self._deadline = time.monotonic() + _DEATH_S
            self._signal()

    def _signal(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def _end_orphan(self) -> None:
        """See to it that a run whose pre-loaded process died is dead as well."""
        if self.outcome.exit_code is None and self._process is not None:
            self._signal()
            watcher = select.poll()
            watcher.register(self._process, select.POLLIN)
            watcher.poll(_DEATH_S * 1000)


def _pid_behind(process: int) -> int | None:
    """The number under which we see a process that lives in a namespace of its own."""
    with open(f"/proc/self/fdinfo/{process}", "rb") as file:  # noqa: PTH123  for every run
        for line in file:
            if line.startswith(b"Pid:"):
                pid = int(line.split()[1])
                return pid if pid > 0 else None
    return None


def _confinement(fields: dict[str, Any]) -> Confinement:
    return Confinement(
        tier=fields["tier"],
        measures=tuple(fields["measures"]),
        missing=tuple(fields["missing"]),
        network=fields["network"],
    )
