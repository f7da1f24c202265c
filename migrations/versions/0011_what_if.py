"""A what-if needs no decision: models of Flink Agents may be asked anew."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let a run be a what-if by itself; a decision still makes one."""
    op.drop_constraint(op.f("ck_runs_ck_runs_decision"), "runs", type_="check")  # as revision 0004 was named for it
    op.create_check_constraint("ck_runs_decision", "runs", "kind = 'what-if' OR decision IS NULL")


def downgrade() -> None:
    """Refuse, as the revisions before do: such runs would have no place."""
    raise RuntimeError("revision 0011 cannot be undone: going back would destroy all evidence of such what-ifs")
