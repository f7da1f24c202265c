"""The tables of event logs of Flink Agents: which files were read how far, the runs in them, and every line as it was.

A run is what `app.flink.assemble` makes of its lines; its row sums it up for lists and search, and is made anew when
lines are added. The lines are the evidence: they are only ever added.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from app.incidents.columns import EpochMs, Json, PlainText
from app.incidents.models import NOW, Base


class FlinkLog(Base):
    """One event log, whatever it is called now: its identity is its first line and its writer (`reading.Identity`).

    `position` counts the unpacked bytes that are stored; it moves in the transaction that stores them, and only from
    where the writer believes it to be. `mark` names the last stored line by place and sha256. `state` carries the
    placing of records over a restart, and into the log that `streams` went on in; `last_ns` is the latest time in it.
    """

    __tablename__ = "flink_logs"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    identity: Mapped[str] = mapped_column(Text, unique=True)
    name: Mapped[str] = mapped_column(PlainText)
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    created_by: Mapped[str] = mapped_column(PlainText)
    changed_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    position: Mapped[int] = mapped_column(BigInteger, default=0)
    mark: Mapped[str] = mapped_column(Text, default="")
    records: Mapped[int] = mapped_column(BigInteger, default=0)
    garbage: Mapped[int] = mapped_column(BigInteger, default=0)
    unattributed: Mapped[int] = mapped_column(BigInteger, default=0)
    key_paths: Mapped[list[str]] = mapped_column(Json)
    streams: Mapped[list[str]] = mapped_column(ARRAY(Text))
    last_ns: Mapped[int] = mapped_column(BigInteger, default=0)
    state: Mapped[list[dict[str, Any]]] = mapped_column(Json, deferred=True, deferred_raiseload=True)


# One line: `run_id` is None where nobody can say whose it is, `note` then says why a line is no record. `event` is the
# first half of the digest of the event's id, by which the same event is found in other runs.
flink_records = Table(
    "flink_records",
    Base.metadata,
    Column("log_id", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("run_id", BigInteger),
    Column("event", BigInteger),
    Column("how", Text),
    Column("note", Text),
    Column("line", LargeBinary, nullable=False),
    Index("ix_flink_records_run_id", "run_id", postgresql_where=text("run_id IS NOT NULL")),
    Index("ix_flink_records_event", "event", postgresql_where=text("event IS NOT NULL")),
    Index("ix_flink_records_loose", "log_id", "position", postgresql_where=text("run_id IS NULL")),
)


class FlinkRun(Base):
    """One input of one key, summed up. `ref` is the log's id of the run, or one made of its input.

    `categories`, `tools`, `models`, `actions` are names that occur in it. `shared` counts events that another run holds
    too, which a recovery leaves behind. `terse`: not all of it was logged at VERBOSE level. `partial` marks a run that
    is too long to be shown whole. Times are nanoseconds.
    """

    __tablename__ = "flink_runs"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    ref: Mapped[str] = mapped_column(PlainText, unique=True)
    form: Mapped[str] = mapped_column(Text)
    job: Mapped[str] = mapped_column(PlainText)
    task: Mapped[str] = mapped_column(PlainText)
    subtask: Mapped[int] = mapped_column(Integer)
    key: Mapped[str | None] = mapped_column(PlainText)
    agent: Mapped[str | None] = mapped_column(PlainText)
    status: Mapped[str] = mapped_column(Text)
    first_ns: Mapped[int] = mapped_column(BigInteger)
    last_ns: Mapped[int] = mapped_column(BigInteger)
    records: Mapped[int] = mapped_column(Integer)
    executions: Mapped[int] = mapped_column(Integer)
    duplicates: Mapped[int] = mapped_column(Integer)
    shared: Mapped[int] = mapped_column(Integer)
    truncated: Mapped[int] = mapped_column(Integer)
    concluded: Mapped[int] = mapped_column(Integer)
    unfinished: Mapped[int] = mapped_column(Integer)
    terse: Mapped[bool] = mapped_column(Boolean)
    input_missing: Mapped[bool] = mapped_column(Boolean)
    partial: Mapped[bool] = mapped_column(Boolean)
    categories: Mapped[list[str]] = mapped_column(ARRAY(Text))
    tools: Mapped[list[str]] = mapped_column(ARRAY(Text))
    models: Mapped[list[str]] = mapped_column(ARRAY(Text))
    actions: Mapped[list[str]] = mapped_column(ARRAY(Text))
    words: Mapped[Any] = mapped_column(TSVECTOR, deferred=True, deferred_raiseload=True)

    __table_args__ = (
        CheckConstraint("status IN ('completed', 'failed', 'unfinished')", name="status"),
        Index(None, "first_ns", "id"),
        Index(None, "key", "first_ns"),
        Index("ix_flink_runs_words", "words", postgresql_using="gin"),
        Index("ix_flink_runs_tools", "tools", postgresql_using="gin"),
        Index("ix_flink_runs_categories", "categories", postgresql_using="gin"),
    )
