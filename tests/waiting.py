"""How tests wait: for what they are about to assert, never for a length of time.

`PATIENCE_S` only ends what hangs, and says what was waited for; pytest's own limit comes after it. It is long, because
the machine may be slow and busy, and costs nothing, because whoever waits goes on at once when the condition holds.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 300.0


def until(ask: Callable[[], T], what: object = "it", *, pause_s: float = 0.02) -> T:
    """Ask until the answer is true, and return it; `what` says what did not happen, or a function that says it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := ask()):
        assert time.monotonic() < deadline, _never(what)
        time.sleep(pause_s)
    return answer


async def until_async(ask: Callable[[], Awaitable[T]], what: object = "it", *, pause_s: float = 0.02) -> T:
    """Ask until the answer is true, and return it, while the event loop goes on."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := await ask()):
        assert time.monotonic() < deadline, _never(what)
        await asyncio.sleep(pause_s)
    return answer


def ended(process: subprocess.Popen[Any]) -> int:
    """Wait until a process has ended; its exit code."""
    return process.wait(PATIENCE_S)


def joined(thread: threading.Thread) -> None:
    """Wait until a thread has ended."""
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"{thread.name} has not ended"


def _never(what: object) -> str:
    return f"did not happen in {PATIENCE_S:g} s: {what() if callable(what) else what}"
