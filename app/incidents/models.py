"""The tables: incidents, their evidence, the runs over it, and who did what.

Times are integer epoch milliseconds on the Python side (`timestamptz` in the database, by the database's clock).
Relationships raise when they are touched: a page asks for what it shows, in one query, through the service.
"""

from __future__ import annotations

import secrets
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from app.incidents.columns import EpochMs, Json, PlainText

# The milliseconds are cut in the database, so that a time read by Python and sent back finds its row again.
NOW: Final = text("date_trunc('milliseconds', clock_timestamp())")

CHANGES_CHANNEL: Final = "hindcast_changes"


class Base(DeclarativeBase):
    """Every table of ours; constraint names follow one rule so that migrations can name them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class RunState(StrEnum):
    """Where a run is; the last five are ends, of which only `done` has a verdict."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # our fault: the tool crashed; `error` holds the report
    LOST = "lost"  # its worker died
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen to the run by itself (the page may stop following it)."""
        return self not in (RunState.QUEUED, RunState.RUNNING)

    @property
    def retryable(self) -> bool:
        """Whether the same run may be queued again."""
        return self.finished and self is not RunState.DONE


def new_id(prefix: str) -> str:
    """Make an identifier nobody can guess (96 random bits, URL-safe); knowing one still grants nothing."""
    return f"{prefix}_{secrets.token_urlsafe(12)}"


def _incident_id() -> str:
    return new_id("inc")


def _run_id() -> str:
    return new_id("run")


def _draft_id() -> str:
    return new_id("dra")


class Incident(Base):
    """One activation that somebody asks about, and the evidence gathered for it.

    `entity_key` … `recorded_status` describe the attempt that the evidence selects; they are None where none can be
    selected yet, and `problem` says why. `attempt` is `AttemptRef.as_json()`. `imported` marks what came in a bundle.
    """

    __tablename__ = "incidents"

    id: Mapped[str] = mapped_column(Text, primary_key=True, default=_incident_id)
    title: Mapped[str] = mapped_column(PlainText)
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    created_by: Mapped[str] = mapped_column(PlainText)
    entity_key: Mapped[bytes | None] = mapped_column(LargeBinary)
    seq: Mapped[int | None] = mapped_column(BigInteger)
    kind: Mapped[str | None] = mapped_column(PlainText)
    clock_ms: Mapped[int | None] = mapped_column(BigInteger)
    recorded_status: Mapped[str | None] = mapped_column(PlainText)
    attempt: Mapped[dict[str, Any] | None] = mapped_column(Json)
    # What the person asked for with `--seq` or the form; the re-run narrows by it.
    wanted_seq: Mapped[int | None] = mapped_column(BigInteger)
    build_hint: Mapped[str | None] = mapped_column(PlainText)
    imported: Mapped[bool] = mapped_column(default=False)
    problem: Mapped[str | None] = mapped_column(PlainText)
    # Of a live pipeline: which one, and until when new records of the key become evidence by themselves.
    pipeline: Mapped[str | None] = mapped_column(Text)
    collect_until: Mapped[int | None] = mapped_column(EpochMs)
    # Rises with everything that a page shows of the incident itself; runs, exports and searches count their own.
    version: Mapped[int] = mapped_column(Integer, default=1, server_default=text("1"))
    # The case (`app.incidents.cases`): how people stand with it. `revision` rises with every change of theirs.
    status: Mapped[str] = mapped_column(Text, default="open", server_default=text("'open'"))
    severity: Mapped[str | None] = mapped_column(Text)
    owner: Mapped[str | None] = mapped_column(PlainText)
    tags: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list, server_default=text("'{}'::text[]"))
    pinned: Mapped[bool] = mapped_column(default=False, server_default=text("false"))
    revision: Mapped[int] = mapped_column(Integer, default=1, server_default=text("1"))
    changed_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    closed_at: Mapped[int | None] = mapped_column(EpochMs)

    evidence: Mapped[list[Evidence]] = relationship(
        back_populates="incident", order_by="Evidence.position", lazy="raise"
    )
    runs: Mapped[list[Run]] = relationship(back_populates="incident", order_by="Run.number", lazy="raise")

    __table_args__ = (
        CheckConstraint("status IN ('open', 'contained', 'explained', 'closed')", name="status"),
        CheckConstraint("severity IN ('critical', 'high', 'medium', 'low')", name="severity"),
        CheckConstraint("(status = 'closed') = (closed_at IS NOT NULL)", name="closed"),
        Index(None, "created_at", "id"),
        Index(None, "changed_at", "id"),
        Index(None, "tags", postgresql_using="gin"),
        Index(None, "closed_at", postgresql_where=text("closed_at IS NOT NULL")),
        Index(None, "entity_key", "seq"),
        Index(
            "ix_incidents_collecting",
            "pipeline",
            "entity_key",
            postgresql_where=text("collect_until IS NOT NULL"),
        ),
    )


class Blob(Base):
    """Bytes exactly as received, kept once under their sha256 (lowercase hex); never changed, never deleted."""

    __tablename__ = "blobs"

    sha256: Mapped[str] = mapped_column(Text, primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    codec: Mapped[str] = mapped_column(Text)
    data: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)

    __table_args__ = (
        CheckConstraint("codec IN ('raw', 'zlib')", name="codec"),
        CheckConstraint("length(sha256) = 64", name="sha256"),
    )


class Evidence(Base):
    """One file of an incident: which bytes, what they are for, and where they came from.

    `source` is `{"kind": "upload", "file": name}` or `{"kind": "kafka", "topic", "partition", "offset",
    "timestamp_ms"}`. `summary` is one line for a person; `warnings` a list of such lines.
    """

    __tablename__ = "evidence"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"))
    position: Mapped[int] = mapped_column(Integer)
    role: Mapped[str] = mapped_column(Text)
    name: Mapped[str] = mapped_column(PlainText)
    sha256: Mapped[str] = mapped_column(ForeignKey("blobs.sha256"), index=True)
    size: Mapped[int] = mapped_column(BigInteger)
    records: Mapped[int] = mapped_column(BigInteger)
    summary: Mapped[str] = mapped_column(PlainText)
    warnings: Mapped[list[str]] = mapped_column(Json)
    source: Mapped[dict[str, Any]] = mapped_column(Json)
    added_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)

    incident: Mapped[Incident] = relationship(back_populates="evidence", lazy="raise")

    __table_args__ = (UniqueConstraint("incident_id", "position"),)


class RunKind(StrEnum):
    """What a run is for: to repeat what was recorded, or to try what has not happened: a decision that nobody has taken
    yet, or (of Flink Agents) models that are asked anew."""

    REPLAY = "replay"
    WHAT_IF = "what-if"


class Run(Base):
    """One replay of an incident with one build: its state, its worker's lease, and in the end its verdict.

    These columns are the only truth about a run; the queue merely carries its id. `attempt` counts how often a worker
    took it, and a worker writes only `WHERE attempt` is the one it took. `version` rises with every change that a page
    shows. `verdict` is `Verdict.as_json()` and loads only through `service.get_run`; what lists need stands beside it.

    `decision` and `tool_answers` are what the person supplied beside the evidence, in the form of `RunInputs`; the
    latter loads only through `service.get_run`. `ledger` sums up the run's entries, `LedgerSummary.as_json()`.
    """

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(Text, primary_key=True, default=_run_id)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"))
    number: Mapped[int] = mapped_column(Integer)
    build: Mapped[str] = mapped_column(PlainText)
    kind: Mapped[str] = mapped_column(Text, default=RunKind.REPLAY.value, server_default=text("'replay'"))
    decision: Mapped[dict[str, Any] | None] = mapped_column(Json)
    tool_answers: Mapped[list[dict[str, Any]] | None] = mapped_column(Json, deferred=True, deferred_raiseload=True)
    state: Mapped[str] = mapped_column(Text, default=RunState.QUEUED.value)
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    version: Mapped[int] = mapped_column(Integer, default=1)
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    created_by: Mapped[str] = mapped_column(PlainText)
    started_at: Mapped[int | None] = mapped_column(EpochMs)
    finished_at: Mapped[int | None] = mapped_column(EpochMs)
    lease_until: Mapped[int | None] = mapped_column(EpochMs)
    worker: Mapped[str | None] = mapped_column(PlainText)
    error: Mapped[str | None] = mapped_column(PlainText)
    # The same without anything that an exception may quote: what is shown to people who may not see payloads.
    error_outline: Mapped[str | None] = mapped_column(PlainText)
    evidence_ids: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    build_digest: Mapped[str | None] = mapped_column(Text)
    # Where traces are on, the one in which the run was asked for (W3C `traceparent`); its worker goes on with it.
    trace_parent: Mapped[str | None] = mapped_column(Text)
    outcome: Mapped[str | None] = mapped_column(Text)
    exit_code: Mapped[int | None] = mapped_column(SmallInteger)
    headline: Mapped[str | None] = mapped_column(PlainText)
    first_divergence: Mapped[int | None] = mapped_column(Integer)
    counts: Mapped[dict[str, int] | None] = mapped_column(Json)
    ledger: Mapped[dict[str, Any] | None] = mapped_column(Json)
    verdict: Mapped[dict[str, Any] | None] = mapped_column(Json, deferred=True, deferred_raiseload=True)

    incident: Mapped[Incident] = relationship(back_populates="runs", lazy="raise")

    @property
    def run_state(self) -> RunState:
        return RunState(self.state)

    __table_args__ = (
        UniqueConstraint("incident_id", "number"),
        CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'lost', 'cancelled', 'timed_out')", name="state"
        ),
        CheckConstraint("kind IN ('replay', 'what-if')", name="kind"),
        CheckConstraint("kind = 'what-if' OR decision IS NULL", name="decision"),
        CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="lease"),
        CheckConstraint("(state = 'done') = (outcome IS NOT NULL)", name="verdict"),
        Index("ix_runs_leases", "lease_until", postgresql_where=text("state = 'running'")),
        Index("ix_runs_waiting", "created_at", postgresql_where=text("state = 'queued'")),
    )


DIFFERING: Final = ("changed", "recorded-only", "replayed-only")

# Spelt out rather than bound, so that PostgreSQL can see that the index over such rows answers the query.
DIFFERS: Final = text("run_rows.state IN ('changed', 'recorded-only', 'replayed-only')")


class RunRow(Base):
    """One line of a run's aligned timeline (`verdict.Row`), stored so that a page reads a window of thousands.

    `recorded` and `replayed` are `Event.as_json()` or None, `fields` a list of `{"name", "recorded", "replayed",
    "state"}`: they load only where a query asks for bodies. The other columns are what a list shows and filters by.
    """

    __tablename__ = "run_rows"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    ordinal: Mapped[int] = mapped_column(Integer, primary_key=True)
    state: Mapped[str] = mapped_column(Text)
    surface: Mapped[str] = mapped_column(PlainText)
    event_type: Mapped[str] = mapped_column(PlainText)
    label: Mapped[str] = mapped_column(PlainText)
    about: Mapped[str] = mapped_column(PlainText)
    step: Mapped[int | None] = mapped_column(BigInteger)
    cause: Mapped[int | None] = mapped_column(Integer)
    recorded: Mapped[dict[str, Any] | None] = mapped_column(Json, deferred=True, deferred_raiseload=True)
    replayed: Mapped[dict[str, Any] | None] = mapped_column(Json, deferred=True, deferred_raiseload=True)
    fields: Mapped[list[dict[str, Any]]] = mapped_column(Json, deferred=True, deferred_raiseload=True)

    @property
    def differs(self) -> bool:
        return self.state in DIFFERING

    __table_args__ = (
        Index(
            "ix_run_rows_differences",
            "run_id",
            "ordinal",
            postgresql_where=text("state IN ('changed', 'recorded-only', 'replayed-only')"),
        ),
    )


class LedgerRow(Base):
    """One step of a run's ledger, stored so that a page reads those of one event and leaves the rest.

    `ordinal` names the row that it explains, None where no row does. `name` is the model, tool or memory key. `digest`
    is equal for steps that say the same wherever they stand, so that two runs are compared without their bodies.
    `body` is the entry without kind and ordinal (PostgreSQL compresses it); `size` its length as JSON.
    """

    __tablename__ = "run_ledger"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    ordinal: Mapped[int | None] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(Text)
    name: Mapped[str] = mapped_column(PlainText)
    digest: Mapped[str] = mapped_column(Text)
    size: Mapped[int] = mapped_column(Integer)
    body: Mapped[dict[str, Any]] = mapped_column(Json, deferred=True, deferred_raiseload=True)

    __table_args__ = (Index(None, "run_id", "ordinal"),)


class Draft(Base):
    """Sound files of an import that is not finished, so that a person who must mend one need not choose all again.

    Not evidence yet: it expires after an hour, and may be deleted.
    """

    __tablename__ = "drafts"

    id: Mapped[str] = mapped_column(Text, primary_key=True, default=_draft_id)
    created_at: Mapped[int] = mapped_column(EpochMs, server_default=NOW)
    created_by: Mapped[str] = mapped_column(PlainText)
    expires_at: Mapped[int] = mapped_column(EpochMs, index=True)


class DraftFile(Base):
    """One held file; the columns mean what they mean in `Evidence` and `Blob`."""

    __tablename__ = "draft_files"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    draft_id: Mapped[str] = mapped_column(ForeignKey("drafts.id", ondelete="CASCADE"), index=True)
    role: Mapped[str] = mapped_column(Text)
    name: Mapped[str] = mapped_column(PlainText)
    sha256: Mapped[str] = mapped_column(Text)
    size: Mapped[int] = mapped_column(BigInteger)
    records: Mapped[int] = mapped_column(BigInteger)
    summary: Mapped[str] = mapped_column(PlainText)
    warnings: Mapped[list[str]] = mapped_column(Json)
    codec: Mapped[str] = mapped_column(Text)
    data: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)


class AuditEvent(Base):
    """Who did what, when, to what, from where: rows are only ever added, and each is linked to the one before."""

    __tablename__ = "audit_events"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    at: Mapped[int] = mapped_column(EpochMs, server_default=NOW, index=True)
    who: Mapped[str] = mapped_column(PlainText)
    what: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text, index=True)
    origin: Mapped[str | None] = mapped_column(PlainText)
    detail: Mapped[dict[str, Any]] = mapped_column(Json)
