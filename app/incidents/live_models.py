"""The tables of live pipelines: what the collector stores, exports, searches, and what rules froze.

Bulk tables are plain `Table`s, read into values of our own: they have millions of rows, one partition a day, and no
primary key. The high bits of an id tell its day (`DAY_SHIFT`); the rest only tells rows apart.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from app.incidents.columns import EpochMs, Json, PlainText
from app.incidents.models import NOW, Base, new_id

DAY_SHIFT: Final = 40
DAY_MS: Final = 86_400_000

COLLECTOR_CHANNEL: Final = "hindcast_collector"


class ExportState(StrEnum):
    """How far a request for a key's state has come; a late answer still turns `timed_out` into `answered`."""

    REQUESTED = "requested"
    ANSWERED = "answered"
    TIMED_OUT = "timed_out"


class GatheringState(StrEnum):
    """How far a search has come. `not_found` is said only when every offset in range was read."""

    QUEUED = "queued"
    RUNNING = "running"
    FOUND = "found"
    NOT_FOUND = "not_found"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self not in (GatheringState.QUEUED, GatheringState.RUNNING)


def _export_id() -> str:
    return new_id("exp")


def _gathering_id() -> str:
    return new_id("gat")


class Stream(Base):
    """One topic of one pipeline while it is the same log: a topic that was made anew is another incarnation."""

    __tablename__ = "streams"

    id: Mapped[int] = mapped_column(SmallInteger, Identity(), primary_key=True)
    pipeline: Mapped[str] = mapped_column(Text)
    stream: Mapped[str] = mapped_column(Text)
    topic: Mapped[str] = mapped_column(Text)
    incarnation: Mapped[int] = mapped_column(Integer)

    __table_args__ = (UniqueConstraint("pipeline", "stream", "topic", "incarnation"),)


class Position(Base):
    """How far one partition is stored: changed in the transaction that stores, and only from the offset expected.

    `mark` is a digest of the last record, by which a topic that was made anew under the same name is recognised.
    `latest_ms` is the latest record timestamp, `latest_clock_ms` the latest event time, both in epoch milliseconds.
    """

    __tablename__ = "positions"

    stream_id: Mapped[int] = mapped_column(ForeignKey("streams.id"), primary_key=True, autoincrement=False)
    partition: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    next_offset: Mapped[int] = mapped_column(BigInteger)
    mark: Mapped[bytes | None] = mapped_column(LargeBinary)
    records: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    undecodable: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    tombstones: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    absent: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    removed: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    latest_ms: Mapped[int | None] = mapped_column(BigInteger)
    latest_clock_ms: Mapped[int | None] = mapped_column(BigInteger)
    changed_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)


class Collector(Base):
    """The sign of life of the process that follows a pipeline.

    `caught_up_at` is when it last had read everything there was. `detail` holds lags and missing topics by name.
    """

    __tablename__ = "collectors"

    pipeline: Mapped[str] = mapped_column(Text, primary_key=True)
    name: Mapped[str] = mapped_column(PlainText)
    started_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    seen_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    caught_up_at: Mapped[int | None] = mapped_column(EpochMs)
    trouble: Mapped[str | None] = mapped_column(PlainText)
    detail: Mapped[dict[str, Any]] = mapped_column(Json)


class Shape(Base):
    """What attempts have in common: a few hundred of these describe millions, and filters touch only them.

    `intents` is a list of `[step, tool, kind, id]`, the id empty where it follows from key, seq and step. `plain` says
    that no other event can change the grouping. `digest` makes equal shapes one.
    """

    __tablename__ = "shapes"

    id: Mapped[int] = mapped_column(Integer, Identity(), primary_key=True)
    pipeline: Mapped[str] = mapped_column(Text, index=True)
    kind: Mapped[str] = mapped_column(Text)
    category: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(PlainText)
    reason: Mapped[str] = mapped_column(PlainText)
    error_type: Mapped[str] = mapped_column(PlainText)
    entry_step: Mapped[int | None] = mapped_column(Integer)
    batch_size: Mapped[int | None] = mapped_column(Integer)
    batch_trigger: Mapped[str] = mapped_column(PlainText)
    plain: Mapped[bool] = mapped_column()
    tools: Mapped[list[str]] = mapped_column(ARRAY(Text))
    intents: Mapped[list[list[Any]]] = mapped_column(Json)
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)


def _daily(name: str, *columns: Column[Any], indexes: tuple[Index, ...] = ()) -> Table:
    made = Column[Any]("id", BigInteger, nullable=False)
    return Table(name, Base.metadata, made, *columns, *indexes, postgresql_partition_by="RANGE (id)")


def _place() -> tuple[Column[Any], Column[Any]]:
    return Column("stream_id", SmallInteger, nullable=False), Column("partition", Integer, nullable=False)


segments: Final = _daily(
    "segments",
    *_place(),
    Column("first_offset", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("records", Integer, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("stored_at", EpochMs, server_default=NOW, nullable=False),
    Column("data", LargeBinary, nullable=False),
    indexes=(Index(None, "stream_id", "partition", "first_offset"),),
)
"""Raw records as they were read, compressed (`app.incidents.segments`), by partition and range of offsets."""

attempts: Final = _daily(
    "attempts",
    Column("clock_ms", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("intent", BigInteger),
    Column("shape_id", Integer, nullable=False),
    Column("entity_key", LargeBinary, nullable=False),
    Column("places", LargeBinary, nullable=False),
    Column("more_intents", ARRAY(BigInteger)),
    indexes=(
        Index(None, "clock_ms"),
        Index(None, "entity_key", "seq"),
        Index(None, "shape_id"),
        Index(None, "intent"),
        Index(
            None,
            "more_intents",
            postgresql_using="gin",
            postgresql_where=text("more_intents IS NOT NULL"),
        ),
    ),
)
"""One row an attempt: what the traces say of it (`app.incidents.projection`) and where its events lie."""

keyed_records: Final = _daily(
    "keyed_records",
    *_place(),
    Column("offset", BigInteger, nullable=False),
    Column("at_ms", BigInteger),
    Column("entity_key", LargeBinary, nullable=False),
    indexes=(Index(None, "entity_key", "stream_id"),),
)
"""Where the intents, outputs and errors of a key lie."""

undecodable: Final = _daily(
    "undecodable",
    *_place(),
    Column("offset", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("error", PlainText, nullable=False),
    indexes=(Index(None, "stream_id"),),
)
"""Records that are not what their topic should hold: kept raw in their segment, told here."""

snapshots: Final = _daily(
    "snapshots",
    *_place(),
    Column("offset", BigInteger, nullable=False),
    Column("at_ms", BigInteger),
    Column("seq", BigInteger, nullable=False),
    Column("snapshot_at_ms", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("suspended", Boolean, nullable=False),
    Column("entity_key", LargeBinary, nullable=False),
    Column("request_id", PlainText, nullable=False),
    Column("sha256", Text, nullable=False),
    indexes=(Index(None, "entity_key"), Index(None, "request_id")),
)
"""Snapshots that the pipeline sent, whoever asked for them; `seq` is the counter that each names."""


class Export(Base):
    """A request for a key's state. The collector publishes what is `due`, and again after a crash: that is harmless.

    `request_id` is unguessable and names the request at the pipeline. `topic`, `partition` and `offset` are where it
    was published; `target` says how that was chosen, and how far the pipeline lagged. `problem` is why it is not
    published, or not answered. `attempt` counts how often it was asked for.
    """

    __tablename__ = "exports"

    id: Mapped[str] = mapped_column(Text, primary_key=True, default=_export_id)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"), index=True)
    pipeline: Mapped[str] = mapped_column(Text)
    entity_key: Mapped[bytes] = mapped_column(LargeBinary)
    request_id: Mapped[str] = mapped_column(Text, unique=True)
    reason: Mapped[str] = mapped_column(PlainText)
    rule: Mapped[str | None] = mapped_column(PlainText)
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    created_by: Mapped[str] = mapped_column(PlainText)
    state: Mapped[str] = mapped_column(Text, default=ExportState.REQUESTED.value)
    version: Mapped[int] = mapped_column(Integer, default=1)
    attempt: Mapped[int] = mapped_column(Integer, default=1)
    deadline_at: Mapped[int] = mapped_column(EpochMs)
    due: Mapped[bool] = mapped_column(default=True)
    published_at: Mapped[int | None] = mapped_column(EpochMs)
    topic: Mapped[str | None] = mapped_column(Text)
    partition: Mapped[int | None] = mapped_column(Integer)
    offset: Mapped[int | None] = mapped_column(BigInteger)
    target: Mapped[dict[str, Any] | None] = mapped_column(Json)
    answered_at: Mapped[int | None] = mapped_column(EpochMs)
    problem: Mapped[str | None] = mapped_column(PlainText)

    __table_args__ = (
        CheckConstraint("state IN ('requested', 'answered', 'timed_out')", name="state"),
        CheckConstraint('(published_at IS NULL) = ("offset" IS NULL)', name="published"),
        CheckConstraint("state <> 'answered' OR answered_at IS NOT NULL", name="answered"),
        Index("ix_exports_open", "pipeline", "deadline_at", postgresql_where=text("state = 'requested'")),
    )


class ExportAnswer(Base):
    """One state that came back under a request id; byte-equal ones are one, different ones are all kept.

    `foreign_key` marks a snapshot of another key under our request id: kept as found, never used as an answer. `late`
    came after the time-out. `problem` is why it could not become evidence.
    """

    __tablename__ = "export_answers"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    export_id: Mapped[str] = mapped_column(ForeignKey("exports.id"))
    sha256: Mapped[str] = mapped_column(Text)
    size: Mapped[int] = mapped_column(BigInteger)
    entity_key: Mapped[bytes] = mapped_column(LargeBinary)
    seq: Mapped[int] = mapped_column(BigInteger)
    snapshot_at_ms: Mapped[int] = mapped_column(BigInteger)
    suspended: Mapped[bool] = mapped_column()
    foreign_key: Mapped[bool] = mapped_column()
    late: Mapped[bool] = mapped_column()
    arrived_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    source: Mapped[dict[str, Any]] = mapped_column(Json)
    problem: Mapped[str | None] = mapped_column(PlainText)

    __table_args__ = (UniqueConstraint("export_id", "sha256"),)


class Gathering(Base):
    """A search of the collector for what an incident lacks, above all the triggering envelope.

    The columns are the only truth about it, as in `Run`: only the attempt that claimed it is ever written. `progress`
    is `{"outlook": …, "topics": […], "notes": […]}` (`app.incidents.gathering`).
    """

    __tablename__ = "gatherings"

    id: Mapped[str] = mapped_column(Text, primary_key=True, default=_gathering_id)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"), index=True)
    pipeline: Mapped[str] = mapped_column(Text)
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    created_by: Mapped[str] = mapped_column(PlainText)
    state: Mapped[str] = mapped_column(Text, default=GatheringState.QUEUED.value)
    version: Mapped[int] = mapped_column(Integer, default=1)
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    lease_until: Mapped[int | None] = mapped_column(EpochMs)
    started_at: Mapped[int | None] = mapped_column(EpochMs)
    finished_at: Mapped[int | None] = mapped_column(EpochMs)
    cancel: Mapped[bool] = mapped_column(default=False)
    progress: Mapped[dict[str, Any]] = mapped_column(Json)
    problem: Mapped[str | None] = mapped_column(PlainText)

    @property
    def gathering_state(self) -> GatheringState:
        return GatheringState(self.state)

    __table_args__ = (
        CheckConstraint(
            "state IN ('queued', 'running', 'found', 'not_found', 'incomplete', 'cancelled', 'failed')", name="state"
        ),
        CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="lease"),
        Index(
            "ix_gatherings_open",
            "pipeline",
            "created_at",
            postgresql_where=text("state IN ('queued', 'running')"),
        ),
    )


class Freeze(Base):
    """What a rule froze by itself: which attempt, and why. `suppressed` counts later matches that the limits held."""

    __tablename__ = "freezes"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    rule: Mapped[str] = mapped_column(PlainText)
    pipeline: Mapped[str] = mapped_column(Text)
    entity_key: Mapped[bytes] = mapped_column(LargeBinary)
    seq: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(Text)
    clock_ms: Mapped[int] = mapped_column(BigInteger)
    why: Mapped[str] = mapped_column(PlainText)
    suppressed: Mapped[int] = mapped_column(BigInteger)
    incident_id: Mapped[str | None] = mapped_column(ForeignKey("incidents.id"), index=True)
    problem: Mapped[str | None] = mapped_column(PlainText)

    __table_args__ = (
        UniqueConstraint("rule", "pipeline", "entity_key", "seq", "kind", "clock_ms"),
        Index(None, "pipeline", "rule", "at"),
        Index("ix_freezes_open", "id", postgresql_where=text("incident_id IS NULL AND problem IS NULL")),
    )
