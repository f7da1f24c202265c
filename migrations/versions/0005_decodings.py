"""Records that only a hook of the agent's author can decode: found by the collector, decoded confined by a worker."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table that carries them from the one to the other and back."""
    op.create_table(
        "decodings",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("gathering_id", sa.Text(), nullable=False),
        sa.Column("hook", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("at_ms", sa.BigInteger()),
        sa.Column("key", sa.LargeBinary()),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("done", sa.Boolean(), nullable=False),
        sa.Column("envelope", sa.LargeBinary()),
        sa.Column("error", sa.Text()),
        sa.ForeignKeyConstraint(["gathering_id"], ["gatherings.id"], name="fk_decodings_gathering_id_gatherings"),
        sa.PrimaryKeyConstraint("id", name="pk_decodings"),
    )
    op.create_index("ix_decodings_gathering_id", "decodings", ["gathering_id"])


def downgrade() -> None:
    """Refuse, as the revisions before do: going back ends in losing evidence."""
    raise RuntimeError("revision 0005 cannot be undone: going back would destroy all evidence; restore a back-up")
