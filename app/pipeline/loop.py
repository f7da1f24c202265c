"""One event loop for all turns of a host that is not asynchronous itself.

A model client's connections live on the loop on which they were opened, so the loop has to outlive a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TurnLoop:
    """Runs turns one after the other; not to be used from two threads at once."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, turn: Coroutine[Any, Any, T]) -> T:
        """Run a turn to its end and return its result, or raise what it raised."""
        task = self._loop.create_task(turn)
        while True:
            try:
                return self._loop.run_until_complete(task)
            except SystemExit:
                # Raised by a task that an agent spawned, it stops the loop. It reaches the agent through that task.
                if task.done():
                    raise

    def close(self, grace_s: float = 1.0) -> None:
        """Cancel what agents and clients left running, wait for it up to `grace_s` seconds, and close."""
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=grace_s))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
