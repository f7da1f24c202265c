"""Records on their way to a hook and back: the collector finds them, a worker decodes them in the sandbox.

The collector has the broker's credentials and never runs agent code; the worker runs it and never sees the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, Boolean, ForeignKey, Identity, Integer, LargeBinary, Text, func, select, text, update
from sqlalchemy.orm import Mapped, mapped_column

from app.incidents.columns import PlainText, dumps
from app.incidents.models import Base
from app.incidents.repository import queue_of
from app.incidents.segments import Raw
from app.incidents.store import ReadSession, WriteSession

# The task that a worker registers under this name decodes the records of one search, with the code of one build.
DECODE_TASK: Final = "hindcast.decode"


class Decoding(Base):
    """One record that a hook is to decode: `done` with an `envelope`, an `error`, or neither where it is none."""

    __tablename__ = "decodings"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    gathering_id: Mapped[str] = mapped_column(ForeignKey("gatherings.id"), index=True)
    hook: Mapped[str] = mapped_column(Text)
    topic: Mapped[str] = mapped_column(Text)
    partition: Mapped[int] = mapped_column(Integer)
    offset: Mapped[int] = mapped_column(BigInteger)
    at_ms: Mapped[int | None] = mapped_column(BigInteger)
    key: Mapped[bytes | None] = mapped_column(LargeBinary)
    value: Mapped[bytes] = mapped_column(LargeBinary)
    done: Mapped[bool] = mapped_column(Boolean, default=False)
    envelope: Mapped[bytes | None] = mapped_column(LargeBinary)
    error: Mapped[str | None] = mapped_column(PlainText)


@dataclass(frozen=True, slots=True)
class Decoded:
    """One record that was decoded."""

    partition: int
    raw: Raw
    envelope: bytes | None
    error: str | None


async def ask(
    session: WriteSession,
    gathering_id: str,
    *,
    build: str,
    hook: str,
    topic: str,
    records: Iterable[tuple[int, Raw]],
) -> None:
    """Have a worker of a build decode some records, given as (partition, record), in one transaction with its job."""
    await session.execute(
        text("DELETE FROM decodings WHERE gathering_id = :id AND topic = :topic"), {"id": gathering_id, "topic": topic}
    )
    session.add_all(
        Decoding(
            gathering_id=gathering_id,
            hook=hook,
            topic=topic,
            partition=partition,
            offset=raw.offset,
            at_ms=raw.timestamp_ms,
            key=raw.key,
            value=raw.value or b"",
        )
        for partition, raw in records
    )
    await session.flush()
    arguments = {
        "queue": queue_of(build),
        "task": DECODE_TASK,
        "args": dumps({"gathering_id": gathering_id, "build": build}),
    }
    await session.execute(_ENQUEUE, arguments)


async def answers(session: ReadSession, gathering_id: str, topic: str) -> list[Decoded] | None:
    """Read what came back for a topic, ascending by place; None while something is still to come."""
    mine = (Decoding.gathering_id == gathering_id, Decoding.topic == topic)
    waiting = select(func.count()).where(*mine, Decoding.done.is_(False))
    if (await session.scalars(waiting)).one():
        return None
    found = await session.scalars(select(Decoding).where(*mine).order_by(Decoding.partition, Decoding.offset))
    return [
        Decoded(one.partition, Raw(one.offset, one.at_ms, one.key, one.value), one.envelope, one.error) for one in found
    ]


async def waiting_records(session: ReadSession, gathering_id: str) -> Sequence[Decoding]:
    """List the records of a search that wait for a worker."""
    query = select(Decoding).where(Decoding.gathering_id == gathering_id, Decoding.done.is_(False))
    return (await session.scalars(query.order_by(Decoding.id))).all()


async def note(session: WriteSession, decoding_id: int, envelope: bytes | None, error: str | None) -> None:
    """Note what a hook made of a record."""
    values = {"done": True, "envelope": envelope, "error": error}
    await session.execute(update(Decoding).where(Decoding.id == decoding_id).values(values))


async def forget(session: WriteSession, gathering_id: str) -> None:
    """Delete what a search no longer needs; what is evidence was copied."""
    await session.execute(text("DELETE FROM decodings WHERE gathering_id = :id"), {"id": gathering_id})


_ENQUEUE: Final = text(
    "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW(:queue, :task, 0, NULL, NULL, CAST(:args AS jsonb), NULL)"
    "::procrastinate_job_to_defer_v1])"
)
