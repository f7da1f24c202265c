"""The pool: who works at this moment and for which builds; and which code may still work on this schema."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

NOW = sa.text("date_trunc('milliseconds', clock_timestamp())")


def upgrade() -> None:
    """Add the table of workers, where a run keeps the trace that asked for it, and the floor of the schema."""
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("builds", postgresql.ARRAY(sa.Text())),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.add_column("runs", sa.Column("trace_parent", sa.Text()))
    op.create_table(
        "schema_floor",
        sa.Column("revision", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_schema_floor"),
    )
    # Code of an earlier release never saw a table of workers, and works on.
    op.execute("INSERT INTO schema_floor (revision) VALUES ('0006')")


def downgrade() -> None:
    """Refuse, as the revisions before do: going back ends in losing evidence."""
    raise RuntimeError("revision 0007 cannot be undone: going back would destroy all evidence; restore a back-up")
