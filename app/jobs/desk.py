"""What the collector does beside following: publish requests, note answers, open what rules froze, search, tidy up.

All of it is work that stands in the database; each piece is done in a transaction of its own and may be done again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.exc import DBAPIError

from app.incidents import exports, gathering, retention
from app.incidents import live_repository as live
from app.incidents import opening as openings
from app.incidents.collecting import Outcome
from app.incidents.live_models import Export
from app.incidents.service import Incident, IncidentError, Store
from app.jobs.gather import Search, outlook_of
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError
from app.kafka.export import Exporter

_LOG: Final = logging.getLogger(__name__)

_SEARCHES: Final = 2
# After a record of an incident's key: once at once, then as soon as outputs may be taken for complete, which needs the
# collector's next sign of life after a while and so comes later under load, and once late.
_SETTLED_S: Final = openings.SETTLE_MS / 1000 + 0.5
_LOOKS_S: Final = (0.0, *(_SETTLED_S + later for later in (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)), 60.0)
_BACK_OFF_S: Final = 2.0
# How long a round of chores may go on about evidence that is late anyway.
_REFRESH_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long collected records are kept, and how long an answer may take."""

    days: int = 14
    gib: float = 50.0
    export_timeout_s: float = exports.DEFAULT_TIMEOUT_S


@dataclass
class Desk:
    """The chores of one pipeline. `known` names all pipelines of the configuration."""

    store: Store
    pipeline: Pipeline
    known: Collection[str]
    keeping: Keeping
    wake: Callable[[], None] = lambda: None
    _due: dict[str, list[float]] = field(default_factory=dict, init=False)
    _seen: set[str] = field(default_factory=set, init=False)
    # Keys of stored records that this round of chores does not know yet, and those that it does.
    _keys: set[bytes] = field(default_factory=set, init=False)
    _told: set[bytes] = field(default_factory=set, init=False)
    _publishing: asyncio.Task[None] | None = field(default=None, init=False)
    _not_before: float = field(default=0.0, init=False)
    _searches: dict[asyncio.Task[object], Search] = field(default_factory=dict, init=False)
    _exporter: Exporter | None = field(default=None, init=False)
    _thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"publish {self.pipeline.name}")

    def note(self, outcome: Outcome) -> None:
        """Hear what a stored batch came to."""
        self._keys |= outcome.keys

    async def work(self) -> None:
        """Do what is to be done now; one chore that fails stops no other."""
        # Before answers are noted: what a key's record brings then never overtakes the note of the answer that it is.
        self._told, self._keys = self._told | self._keys, set()
        for chore in (self._settle, self._publish, self._open_frozen, self._search, self._refresh):
            try:
                await chore()
            except (DBAPIError, OSError) as error:
                _LOG.warning("pipeline %s: the database is away: %s", self.pipeline.name, error)
                return
            except Exception:  # noqa: BLE001  the others must go on
                _LOG.exception("pipeline %s: a chore failed", self.pipeline.name)

    async def close(self) -> None:
        """End searches, to be begun anew by the next collector, and let go of the broker."""
        for search in self._searches.values():
            search.stop()
        running: list[Awaitable[object]] = [*self._searches]
        if self._publishing is not None:
            running.append(self._publishing)
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)
        if self._exporter is not None:
            self._exporter.close()

    # Exports ---------------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        async with self.store.write() as session:
            answered = await exports.settle_answers(session, self.pipeline.name)
        for one in answered:
            _LOG.info("export %s is answered", one)

    async def _publish(self) -> None:
        """Publish what is due, without holding up anything else while the broker takes its time."""
        if self._publishing is not None and not self._publishing.done():
            return
        if time.monotonic() < self._not_before:
            return
        async with self.store.read() as session:
            due = await exports.due_exports(session, self.pipeline.name)
        if due:
            self._publishing = asyncio.create_task(self._publish_all(due), name=f"publish {self.pipeline.name}")
            self._publishing.add_done_callback(lambda _: self.wake())

    async def _publish_all(self, due: Sequence[Export]) -> None:
        for export in due:
            try:
                await self._publish_one(export)
            except BrokerError as error:
                self._not_before = time.monotonic() + _BACK_OFF_S
                async with self.store.write() as session:
                    await exports.note_unpublished(session, export, str(error), final=not error.retriable)
                if error.retriable:
                    return  # the next ones would only wait as long
            except (DBAPIError, OSError) as error:
                _LOG.warning("export %s is not published yet: %s", export.id, error)
                return

    async def _publish_one(self, export: Export) -> None:
        """Say where it goes, send it, say where it lies: a crash in between sends it once more, which is harmless."""
        loop = asyncio.get_running_loop()
        if self._exporter is None:
            self._exporter = Exporter(self.pipeline)
        exporter = self._exporter
        target = await loop.run_in_executor(self._thread, lambda: exporter.prepare(export.entity_key))
        async with self.store.write() as session:
            if not await exports.note_target(session, export, outlook_of(target)):
                return
        sent = await loop.run_in_executor(self._thread, lambda: exporter.publish(target, export.request_id))
        async with self.store.write() as session:
            await exports.note_published(
                session,
                export,
                topic=sent.topic,
                partition=sent.partition,
                offset=sent.offset,
                timeout_s=self.keeping.export_timeout_s,
            )
        _LOG.info("export %s is published at %s/%d offset %d", export.id, sent.topic, sent.partition, sent.offset)

    # Incidents -------------------------------------------------------------------------------------------------------

    async def _open_frozen(self) -> None:
        async with self.store.read() as session:
            waiting = await live.open_freezes(session, self.pipeline.name)
        for freeze in waiting:
            try:
                async with self.store.write() as session:
                    incident = await openings.open_frozen(
                        session, freeze.id, known=self.known, timeout_s=self.keeping.export_timeout_s
                    )
            except IncidentError as error:
                async with self.store.write() as session:
                    await live.set_problem_of_freeze(session, freeze.id, str(error))
                continue
            if incident is not None:
                _LOG.warning("rule %s froze a key: %s; incident %s", freeze.rule, freeze.why, incident.id)

    async def _search(self) -> None:
        self._searches = {task: search for task, search in self._searches.items() if not task.done()}
        while len(self._searches) < _SEARCHES:
            async with self.store.write() as session:
                claimed = await gathering.claim_gathering(session, self.pipeline.name)
            if claimed is None:
                return
            search = Search(self.store, self.pipeline, claimed)
            task: asyncio.Task[object] = asyncio.create_task(search.run(), name=f"search {claimed.id}")
            task.add_done_callback(lambda _: self.wake())
            self._searches[task] = search

    async def _refresh(self) -> None:
        """Bring incidents what has come for their keys; each is looked at when it is new, too."""
        keys, self._told = self._told, set()
        async with self.store.read() as session:
            watched = await live.collecting(session, self.pipeline.name)
        now = time.monotonic()
        for incident in watched:
            if incident.id not in self._seen or incident.entity_key in keys:
                self._due[incident.id] = [now + later for later in _LOOKS_S]
        self._seen = {incident.id for incident in watched}
        self._due = {one: times for one, times in self._due.items() if one in self._seen and times}
        for incident in watched:
            times = self._due.get(incident.id, [])
            if times and times[0] <= now:
                if time.monotonic() - now > _REFRESH_S:
                    self.wake()  # the rest comes in the next round: whoever waits for an export goes first
                    return
                self._due[incident.id] = [later for later in times if later > now]
                await self._refresh_one(incident)

    async def _refresh_one(self, incident: Incident) -> None:
        async with self.store.write() as session:
            added = await openings.refresh_incident(session, incident)
        if added:
            _LOG.info("incident %s: %d more files of evidence", incident.id, len(added))


async def time_out(store: Store) -> None:
    """Time out the exports of all pipelines whose time is over."""
    async with store.write() as session:
        for one in await exports.time_out_exports(session):
            _LOG.warning("export %s timed out", one)


async def drop_old_days(store: Store, keeping: Keeping) -> list[retention.Day]:
    """Drop the days of collected records that are too old or too many, and say which."""
    async with store.read() as session:
        days = await retention.days(session)
        today = await retention.today(session)
    dropped = retention.too_much(days, today, keep_days=keeping.days, keep_bytes=int(keeping.gib * (1 << 30)))
    for day in dropped:
        async with store.write() as session:
            await retention.drop_day(session, day.day)
        _LOG.info("dropped the records of %s: %d bytes", day.date, day.size)
    return dropped
