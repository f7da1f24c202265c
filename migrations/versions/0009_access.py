"""Who may come in: sessions of people who logged in, tokens of scripts, and the key that signs what browsers keep."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

NOW = sa.text("date_trunc('milliseconds', clock_timestamp())")


def time(name: str, *, now: bool = False, nullable: bool = True) -> sa.Column[object]:
    """Declare a point in time, which the database fills in when `now`."""
    return sa.Column(
        name, sa.DateTime(timezone=True), server_default=NOW if now else None, nullable=nullable and not now
    )


def upgrade() -> None:
    """Add the three tables."""
    op.create_table(
        "console_keys",
        sa.Column("id", sa.SmallInteger(), nullable=False, autoincrement=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        time("created_at", now=True),
        sa.CheckConstraint("id = 1 AND length(key) = 32", name="ck_console_keys_only"),
        sa.PrimaryKeyConstraint("id", name="pk_console_keys"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("shown_as", sa.Text(), nullable=False),
        sa.Column("groups", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("id_token", sa.Text()),
        time("created_at", now=True),
        time("expires_at", nullable=False),
        sa.CheckConstraint("length(token_sha256) = 64", name="ck_sessions_token"),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("token_sha256", name="uq_sessions_token_sha256"),
    )
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        time("created_at", now=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        time("expires_at", nullable=False),
        time("revoked_at"),
        sa.Column("revoked_by", sa.Text()),
        time("last_used_at"),
        sa.CheckConstraint("length(token_sha256) = 64", name="ck_api_tokens_token"),
        sa.CheckConstraint("role IN ('viewer', 'responder', 'admin')", name="ck_api_tokens_role"),
        sa.CheckConstraint("cardinality(scopes) > 0", name="ck_api_tokens_scopes"),
        sa.CheckConstraint("expires_at > created_at", name="ck_api_tokens_expiry"),
        sa.PrimaryKeyConstraint("id", name="pk_api_tokens"),
        sa.UniqueConstraint("token_sha256", name="uq_api_tokens_token_sha256"),
    )


def downgrade() -> None:
    """Refuse, as the revisions before do: going back ends in losing evidence."""
    raise RuntimeError("revision 0009 cannot be undone: going back would destroy all evidence; restore a back-up")
