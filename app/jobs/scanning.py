"""Scans one topic after another for a search, and tells the page how far each has come."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from app.incidents import gathering as rules
from app.incidents.gathering import empty_progress, note_progress
from app.incidents.live_models import Gathering
from app.incidents.segments import Raw
from app.incidents.service import Store
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError
from app.kafka.query import PartitionReport, Progress, Query, ScanResult
from app.kafka.scan import scan

TELL_S: Final = 0.3
_RETRIES: Final = 3
_RETRY_S: Final = 2.0


class Ended(Exception):
    """The search is to end: somebody cancelled it, or another collector has taken it over."""


@dataclass
class Scanner:
    """The scans of one claimed search. `progress` is what the page shows of it; `lines` are its topics."""

    store: Store
    pipeline: Pipeline
    gathering: Gathering
    progress: dict[str, Any] = field(default_factory=empty_progress)
    lease_s: float = rules.LEASE_S
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def line(self) -> dict[str, Any]:
        """What is told of the topic that is being searched."""
        line: dict[str, Any] = self.progress["topics"][-1]
        return line

    async def scan(self, topic: str, query: Query[Any], what: str, records: str) -> ScanResult[Any]:
        """Scan a topic in a thread, telling how far it has come; a broker that is away is tried again for a while."""
        self.begin(topic, what, records)
        for attempt in range(_RETRIES):
            try:
                return await self._scan_once(topic, query)
            except BrokerError as error:
                self.line.update(outcome="failed", problem=str(error))
                await self.tell()
                if not error.retriable or attempt == _RETRIES - 1:
                    raise
                await asyncio.sleep(_RETRY_S)
        raise AssertionError("the last attempt returns or raises")

    async def _scan_once(self, topic: str, query: Query[Any]) -> ScanResult[Any]:
        line = self.line
        line.update(outcome="", problem=None)

        def tell(progress: Progress) -> None:
            line.update(
                scanned=progress.scanned, matched=progress.matched, undecodable=progress.undecodable,
                read=progress.read, total=progress.total,
            )  # fmt: skip

        working = asyncio.get_running_loop().run_in_executor(
            None, lambda: scan(self.pipeline, topic, query, cancelled=self.cancelled, progress=tell)
        )
        try:
            while not working.done():
                await asyncio.wait({working}, timeout=TELL_S)
                await self.tell()
        finally:
            if not working.done():
                self.cancelled.set()  # we are ending; the thread is to end too
        result = working.result()
        line.update(
            outcome=result.outcome,
            order=result.order,
            seconds=round(result.seconds, 3),
            scanned=result.scanned,
            matched=len(result.matches),
            undecodable=sum(one.undecodable for one in result.partitions),
            partitions=[_partition(one) for one in result.partitions],
        )
        await self.tell()
        if self.cancelled.is_set():
            raise Ended
        return result

    def begin(self, topic: str, what: str, records: str) -> None:
        """Begin a new line."""
        self.progress["topics"].append(
            {
                "topic": topic, "looking_for": what, "records": records, "outcome": "", "order": "", "scanned": 0,
                "matched": 0, "undecodable": 0, "read": 0, "total": 0, "seconds": None, "problem": None,
                "partitions": [],
            }
        )  # fmt: skip

    async def tell(self) -> None:
        """Let the page know, and hear whether the search is to go on."""
        async with self.store.write() as session:
            ours = await note_progress(session, self.gathering, self.progress, lease_s=self.lease_s)
        if not ours:
            self.cancelled.set()


def _partition(report: PartitionReport) -> dict[str, Any]:
    return {
        "partition": report.partition, "low": report.low, "high": report.high, "start": report.start,
        "end": report.end, "scanned": report.scanned, "matched": report.matched,
        "undecodable": report.undecodable, "tombstones": report.tombstones, "absent": report.absent,
        "removed": report.removed, "complete": report.complete,
        "stop": report.stop.value + (f": {report.detail}" if report.detail else ""),
    }  # fmt: skip


def raw_of(record: Any) -> Raw:
    """A record as intake keeps it."""
    return Raw(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
