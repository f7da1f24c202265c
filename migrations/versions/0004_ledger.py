"""What explains a run: its ledger, step by step, and what a person supplied for it beside the evidence."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of ledgers, and the inputs of runs; runs that are there were plain replays without a ledger."""
    op.add_column("runs", sa.Column("kind", sa.Text(), server_default=sa.text("'replay'"), nullable=False))
    for name in ("decision", "tool_answers", "ledger"):
        op.add_column("runs", sa.Column(name, postgresql.JSON()))
    op.create_check_constraint("ck_runs_kind", "runs", "kind IN ('replay', 'what-if')")
    op.create_check_constraint("ck_runs_decision", "runs", "(kind = 'what-if') = (decision IS NOT NULL)")
    op.create_table(
        "run_ledger",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("body", postgresql.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_ledger_run_id_runs"),
        sa.PrimaryKeyConstraint("run_id", "position", name="pk_run_ledger"),
    )
    op.create_index("ix_run_ledger_run_id_ordinal", "run_ledger", ["run_id", "ordinal"])


def downgrade() -> None:
    """Refuse: going back would throw away what runs were asked with."""
    raise RuntimeError(
        "revision 0004 cannot be undone: it would destroy all evidence of what runs were asked; restore a back-up"
    )
