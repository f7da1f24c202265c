"""Tells pages that a run changed: one connection per process listens, and any number of event streams wait on it.

A page never trusts what it is told here; it reads the run again. A lost connection therefore costs nothing but time:
waiters then look every second until the listener is back.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import Final

import psycopg
from sqlalchemy.engine import URL

from app.incidents.models import CHANGES_CHANNEL
from app.incidents.store import driver_url

_LOG: Final = logging.getLogger(__name__)
_RETRY_S: Final = 1.0
_QUIET_S: Final = 30.0  # a connection that hears nothing for this long is asked whether it still lives


class Subscription:
    """One page's interest in one subject (a run's or an incident's id), but for changes into some states."""

    def __init__(self, changes: Changes, but: Collection[str] = ()) -> None:
        self._changes = changes
        self._but = frozenset(but)
        self._changed = asyncio.Event()

    def wake(self, state: str | None = None) -> None:
        """Note a change into `state`; None where it is not told, which may be any."""
        if state not in self._but:
            self._changed.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a change since the last call; False when none was told in time.

        While the listener is away nobody can be told: then it returns True every second, so that the page looks itself.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not self._changed.is_set():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, _RETRY_S))
            if not self._changes.listening and left > _RETRY_S:
                break
        self._changed.clear()
        return True


class Changes:
    """The process's one listener; `async with Changes(url)` runs it, `subscribe` hands out subscriptions."""

    def __init__(self, url: str | URL) -> None:
        self._url = driver_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._subscribers: dict[str, set[Subscription]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None
        self.listening = False

    async def start(self) -> None:
        """Begin to listen, in the background; works from the first moment, if only by polling."""
        self._task = asyncio.create_task(self._run(), name="listen for changes")

    async def stop(self) -> None:
        """Stop listening and wake everybody."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._wake_all()

    async def __aenter__(self) -> Changes:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @asynccontextmanager
    async def subscribe(self, subject: str, *, but: Collection[str] = ()) -> AsyncIterator[Subscription]:
        """Follow a run or an incident by its id. Subscribe first, then read, then wait: so no change is missed.

        A change into one of the states of `but` wakes nobody who follows that way.
        """
        subscription = Subscription(self, but)
        self._subscribers[subject].add(subscription)
        try:
            yield subscription
        finally:
            self._subscribers[subject].discard(subscription)
            if not self._subscribers[subject]:
                del self._subscribers[subject]

    @property
    def subscribers(self) -> int:
        """How many subscriptions are open."""
        return sum(map(len, self._subscribers.values()))

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except psycopg.Error as error:
                _LOG.warning("lost the connection that listens for changes: %s", error)
            finally:
                self.listening = False
            self._wake_all()
            await asyncio.sleep(_RETRY_S)

    async def _listen(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=10) as connection:
            await connection.execute(f"LISTEN {CHANGES_CHANNEL}".encode())
            self.listening = True
            self._wake_all()  # what changed while nobody listened was not heard
            while True:
                async for notification in connection.notifies(timeout=_QUIET_S):
                    self._dispatch(notification.payload)
                await connection.execute(b"SELECT 1")

    def _dispatch(self, payload: str) -> None:
        told = json.loads(payload)
        for subject in (told["run"], told["incident"]):
            for subscription in self._subscribers.get(subject, ()):
                subscription.wake(told.get("state"))

    def _wake_all(self) -> None:
        for subscriptions in self._subscribers.values():
            for subscription in subscriptions:
                subscription.wake()
