"""Checks that the audit trail is whole: every entry is linked to the one before, and a changed or removed one shows.

The chain shows what was changed or taken out of the middle. That nothing was cut off its end, or that not all of it was
written anew, only a head shows that was noted elsewhere: the console writes it to its log, and `verify` takes it back.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Text, cast, func, select

from app.incidents.models import AuditEvent
from app.incidents.share_models import AuditLink
from app.incidents.store import ReadSession, Store

_LOG: Final = logging.getLogger(__name__)
INTERVAL_S: Final = 600.0
_BATCH: Final = 1000
_REPORTED: Final = 50


@dataclass(frozen=True, slots=True)
class Head:
    """The newest link: how many there are, and the hash that stands for all of them. Written `1204:9f2c…`."""

    position: int
    hash: str

    def __str__(self) -> str:
        return f"{self.position}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read a head as the log has it. Raises `ValueError`."""
        position, _, digest = text.strip().partition(":")
        if not position.isdecimal() or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise ValueError(f"{text!r} is not a head as the log has it: position:sha256, such as 12:9f2c…")
        return cls(int(position), digest)


EMPTY: Final = Head(0, "")


@dataclass(frozen=True, slots=True)
class Verified:
    """What a check found: how many entries, the head, and one line per fault (none: the trail is whole)."""

    entries: int
    head: Head
    faults: tuple[str, ...]


async def head(session: ReadSession) -> Head:
    """Read the newest link."""
    query = select(AuditLink.position, AuditLink.hash).order_by(AuditLink.position.desc()).limit(1)
    row = (await session.execute(query)).one_or_none()
    return EMPTY if row is None else Head(row[0], row[1])


async def verify(session: ReadSession, *, noted: Sequence[Head] = ()) -> Verified:
    """Check every link against its entry and the link before; `noted` are heads that the log told of earlier."""
    check = _Check({item.position: item.hash for item in noted})
    after = 0
    while rows := await _links(session, after):
        for row in rows:
            check.link(*row)
        after = rows[-1][0]
    unlinked = select(AuditEvent.id).where(~select(AuditLink).where(AuditLink.event_id == AuditEvent.id).exists())
    for ident in await session.scalars(unlinked.order_by(AuditEvent.id).limit(_REPORTED)):
        check.fault(f"entry {ident} is in no link: it was put in behind the chain's back")
    return check.done()


class _Check:
    def __init__(self, noted: dict[int, str]) -> None:
        self.noted = noted
        self.entries = 0
        self.last = EMPTY
        self.faults: list[str] = []

    def fault(self, text: str) -> None:
        if len(self.faults) < _REPORTED:
            self.faults.append(text)

    def link(self, position: int, kept: str, event: Sequence[Any] | None, event_id: int) -> None:
        self.entries += 1
        if position != self.last.position + 1:
            self.fault(f"links {self.last.position + 1} to {position - 1} are gone")
        elif event is None:
            self.fault(f"entry {event_id} (link {position}) is gone")
        elif spelled(position, self.last.hash, event) != kept:
            self.fault(f"entry {event_id} (link {position}) is not as it was written")
        if self.noted.pop(position, kept) != kept:
            self.fault(f"link {position} is another than the log noted: the chain was written anew")
        self.last = Head(position, kept)

    def done(self) -> Verified:
        for position in sorted(self.noted):
            if position > 0:
                self.fault(f"link {position}, which the log noted, is gone: the chain ends at {self.last.position}")
        return Verified(self.entries, self.last, tuple(self.faults))


def spelled(position: int, previous: str, event: Sequence[Any]) -> str:
    """Compute a link's hash as the database's trigger does: sha256 over one JSON array."""
    text = json.dumps([position, previous, *event], ensure_ascii=False, separators=(", ", ": "))
    return hashlib.sha256(text.encode()).hexdigest()


async def _links(session: ReadSession, after: int) -> list[tuple[int, str, tuple[Any, ...] | None, int]]:
    at = func.to_char(func.timezone("UTC", AuditEvent.at), 'YYYY-MM-DD"T"HH24:MI:SS.US', type_=Text)
    event = (
        AuditEvent.id, at, cast(AuditEvent.who, Text), AuditEvent.what, AuditEvent.subject,
        cast(AuditEvent.origin, Text), cast(AuditEvent.detail, Text),
    )  # fmt: skip
    query = (
        select(AuditLink.position, AuditLink.hash, AuditLink.event_id, *event)
        .outerjoin(AuditEvent, AuditEvent.id == AuditLink.event_id)
        .where(AuditLink.position > after)
        .order_by(AuditLink.position)
        .limit(_BATCH)
    )
    return [
        (position, kept, None if told[0] is None else tuple(told), event_id)
        for position, kept, event_id, *told in (await session.execute(query)).all()
    ]


@asynccontextmanager
async def noting(store: Store, interval_s: float = INTERVAL_S) -> AsyncIterator[None]:
    """While the block runs, write the head to the log, outside the database, whenever it has moved."""
    task = asyncio.create_task(_note(store, interval_s), name="note the audit trail's head")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _note(store: Store, interval_s: float) -> None:
    told = None
    while True:
        try:
            async with store.read() as session:
                now = await head(session)
        except Exception as error:  # noqa: BLE001  the database may be away; the next turn looks again
            _LOG.warning("the audit trail's head cannot be read: %s", type(error).__name__)
        else:
            if now != told:
                _LOG.info("audit head %s", now)
                told = now
        await asyncio.sleep(interval_s)
