"""Event logs of Flink Agents: files and how far they were read, runs, and every line as it was."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

NOW = sa.text("date_trunc('milliseconds', clock_timestamp())")


def upgrade() -> None:
    """Add the three tables."""
    logs()
    records()
    runs()


def logs() -> None:
    """Add the files."""
    op.create_table(
        "flink_logs",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("mark", sa.Text(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("garbage", sa.BigInteger(), nullable=False),
        sa.Column("unattributed", sa.BigInteger(), nullable=False),
        sa.Column("key_paths", postgresql.JSON(), nullable=False),
        sa.Column("streams", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("last_ns", sa.BigInteger(), nullable=False),
        sa.Column("state", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_flink_logs"),
        sa.UniqueConstraint("identity", name="uq_flink_logs_identity"),
    )


def records() -> None:
    """Add the lines."""
    op.create_table(
        "flink_records",
        sa.Column("log_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.BigInteger()),
        sa.Column("event", sa.BigInteger()),
        sa.Column("how", sa.Text()),
        sa.Column("note", sa.Text()),
        sa.Column("line", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("log_id", "position", name="pk_flink_records"),
    )
    for name, columns, where in (
        ("ix_flink_records_run_id", ["run_id"], "run_id IS NOT NULL"),
        ("ix_flink_records_event", ["event"], "event IS NOT NULL"),
        ("ix_flink_records_loose", ["log_id", "position"], "run_id IS NULL"),
    ):
        op.create_index(name, "flink_records", columns, postgresql_where=sa.text(where))

    op.execute(
        "CREATE TRIGGER flink_records_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON flink_records"
        " FOR EACH STATEMENT EXECUTE FUNCTION hindcast_refuse_change()"
    )


def runs() -> None:
    """Add the runs, with what they are found by."""
    texts = ("ref", "form", "job", "task")
    counts = ("records", "executions", "duplicates", "shared", "truncated", "concluded", "unfinished")
    flags = ("terse", "input_missing", "partial")
    names = ("categories", "tools", "models", "actions")
    op.create_table(
        "flink_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in texts),
        sa.Column("subtask", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("agent", sa.Text()),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("first_ns", sa.BigInteger(), nullable=False),
        sa.Column("last_ns", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in counts),
        *(sa.Column(name, sa.Boolean(), nullable=False) for name in flags),
        *(sa.Column(name, postgresql.ARRAY(sa.Text()), nullable=False) for name in names),
        sa.Column("words", postgresql.TSVECTOR(), nullable=False),
        sa.CheckConstraint("status IN ('completed', 'failed', 'unfinished')", name="ck_flink_runs_status"),
        sa.PrimaryKeyConstraint("id", name="pk_flink_runs"),
        sa.UniqueConstraint("ref", name="uq_flink_runs_ref"),
    )
    op.create_index("ix_flink_runs_first_ns_id", "flink_runs", ["first_ns", "id"])
    op.create_index("ix_flink_runs_key_first_ns", "flink_runs", ["key", "first_ns"])
    for name in ("words", "tools", "categories"):
        op.create_index(f"ix_flink_runs_{name}", "flink_runs", [name], postgresql_using="gin")


def downgrade() -> None:
    """Refuse, as the revisions before do: going back ends in losing evidence."""
    raise RuntimeError("revision 0008 cannot be undone: going back would destroy all evidence; restore a back-up")
