"""The first tables: incidents, evidence, runs, audit, and the queue that carries the runs to the workers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from app.incidents.schema import apply_queue_schema

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NOW = sa.text("date_trunc('milliseconds', clock_timestamp())")

# Evidence is worth something only if nobody can change it, the application with all its rights included.
REFUSE_CHANGE = """
CREATE FUNCTION hindcast_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is only ever added to: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation', HINT = 'Evidence and audit events are never changed or deleted.';
END;
$$
"""
KEPT = ("blobs", "evidence", "audit_events")

# Pages follow a run by its version; the trigger tells them, so that no statement of ours can forget to.
ANNOUNCE = """
CREATE FUNCTION hindcast_announce_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('hindcast_changes', json_build_object(
        'run', NEW.id, 'incident', NEW.incident_id, 'version', NEW.version, 'state', NEW.state)::text);
    RETURN NULL;
END;
$$
"""


def time(name: str, *, now: bool = False) -> sa.Column[object]:
    """Declare a point in time, which the database fills in when `now`."""
    return sa.Column(name, sa.DateTime(timezone=True), server_default=NOW if now else None, nullable=not now)


def json(name: str, *, nullable: bool = False) -> sa.Column[object]:
    """Declare a JSON text, kept as it was written."""
    return sa.Column(name, postgresql.JSON(), nullable=nullable)


def upgrade() -> None:
    """Make everything from nothing."""
    audit_and_blobs()
    incidents_and_evidence()
    runs()
    run_rows()
    drafts()
    for statement in (REFUSE_CHANGE, ANNOUNCE):
        op.execute(statement)
    for table in KEPT:
        op.execute(
            f"CREATE TRIGGER {table}_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION hindcast_refuse_change()"
        )
    op.execute(
        "CREATE TRIGGER runs_are_announced AFTER INSERT OR UPDATE OF version ON runs"
        " FOR EACH ROW EXECUTE FUNCTION hindcast_announce_run()"
    )
    op.create_table(
        "queue_schema",
        sa.Column("version", sa.Text(), primary_key=True),
        sa.Column("applied_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
    )
    apply_queue_schema(op.get_bind())


def audit_and_blobs() -> None:
    """What is only ever added to, and depends on nothing."""
    op.create_table(
        "audit_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        time("at", now=True),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        json("detail"),
        sa.PrimaryKeyConstraint("id", name="pk_audit_events"),
    )
    op.create_index("ix_audit_events_at", "audit_events", ["at"])
    op.create_index("ix_audit_events_subject", "audit_events", ["subject"])
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("codec IN ('raw', 'zlib')", name="ck_blobs_codec"),
        sa.CheckConstraint("length(sha256) = 64", name="ck_blobs_sha256"),
        sa.PrimaryKeyConstraint("sha256", name="pk_blobs"),
    )
    # We compressed them; PostgreSQL need not try again.
    op.execute("ALTER TABLE blobs ALTER COLUMN data SET STORAGE EXTERNAL")


def incidents_and_evidence() -> None:
    """What somebody asks about, and what was gathered for it."""
    op.create_table(
        "incidents",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        time("created_at", now=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("entity_key", sa.LargeBinary()),
        sa.Column("seq", sa.BigInteger()),
        sa.Column("kind", sa.Text()),
        sa.Column("clock_ms", sa.BigInteger()),
        sa.Column("recorded_status", sa.Text()),
        json("attempt", nullable=True),
        sa.Column("wanted_seq", sa.BigInteger()),
        sa.Column("build_hint", sa.Text()),
        sa.Column("imported", sa.Boolean(), nullable=False),
        sa.Column("problem", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_incidents"),
    )
    op.create_index("ix_incidents_created_at_id", "incidents", ["created_at", "id"])
    op.create_index("ix_incidents_entity_key_seq", "incidents", ["entity_key", "seq"])
    op.create_table(
        "evidence",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("incident_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        json("warnings"),
        json("source"),
        time("added_at", now=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_evidence_incident_id_incidents"),
        sa.ForeignKeyConstraint(["sha256"], ["blobs.sha256"], name="fk_evidence_sha256_blobs"),
        sa.PrimaryKeyConstraint("id", name="pk_evidence"),
        sa.UniqueConstraint("incident_id", "position", name="uq_evidence_incident_id_position"),
    )
    op.create_index("ix_evidence_sha256", "evidence", ["sha256"])


def runs() -> None:
    """The replays asked for, and what became of each."""
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("incident_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        time("created_at", now=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        time("started_at"),
        time("finished_at"),
        time("lease_until"),
        sa.Column("worker", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("evidence_ids", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("build_digest", sa.Text()),
        sa.Column("outcome", sa.Text()),
        sa.Column("exit_code", sa.SmallInteger()),
        sa.Column("headline", sa.Text()),
        sa.Column("first_divergence", sa.Integer()),
        json("counts", nullable=True),
        json("verdict", nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'lost', 'cancelled', 'timed_out')", name="ck_runs_state"
        ),
        sa.CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="ck_runs_lease"),
        sa.CheckConstraint("(state = 'done') = (outcome IS NOT NULL)", name="ck_runs_verdict"),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_runs_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("incident_id", "number", name="uq_runs_incident_id_number"),
    )
    for index, column, state in (("leases", "lease_until", "running"), ("waiting", "created_at", "queued")):
        op.create_index(f"ix_runs_{index}", "runs", [column], postgresql_where=sa.text(f"state = '{state}'"))


def run_rows() -> None:
    """The aligned timeline of each run."""
    op.create_table(
        "run_rows",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("surface", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("about", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger()),
        sa.Column("cause", sa.Integer()),
        json("recorded", nullable=True),
        json("replayed", nullable=True),
        json("fields"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_rows_run_id_runs"),
        sa.PrimaryKeyConstraint("run_id", "ordinal", name="pk_run_rows"),
    )
    op.create_index(
        "ix_run_rows_differences",
        "run_rows",
        ["run_id", "ordinal"],
        postgresql_where=sa.text("state IN ('changed', 'recorded-only', 'replayed-only')"),
    )


def drafts() -> None:
    """Files of imports that are not finished."""
    op.create_table(
        "drafts",
        sa.Column("id", sa.Text(), nullable=False),
        time("created_at", now=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_drafts"),
    )
    op.create_index("ix_drafts_expires_at", "drafts", ["expires_at"])
    op.create_table(
        "draft_files",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("draft_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        json("warnings"),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["draft_id"], ["drafts.id"], name="fk_draft_files_draft_id_drafts", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_draft_files"),
    )
    op.create_index("ix_draft_files_draft_id", "draft_files", ["draft_id"])
    op.execute("ALTER TABLE draft_files ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    """Refuse: going back to no tables would destroy the evidence."""
    raise RuntimeError("revision 0001 cannot be undone: it would destroy all evidence; restore a back-up instead")
