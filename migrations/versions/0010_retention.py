"""Retention: tombstones, and a guard that lets one role remove evidence, and still nobody change it."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

NOW = sa.text("date_trunc('milliseconds', clock_timestamp())")

# Whoever was granted DELETE by `hindcast migrate` may delete: that is the role of retention, and it owns nothing. The
# owner and superusers have all rights without having been granted any, and are stopped as before.
REFUSE_CHANGE = """
CREATE OR REPLACE FUNCTION hindcast_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND NOT EXISTS (
        SELECT 1 FROM pg_class c JOIN pg_roles r ON r.rolname = current_user
        WHERE c.oid = TG_RELID AND (r.rolsuper OR pg_has_role(r.oid, c.relowner, 'USAGE'))
    ) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% is only ever added to: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation', HINT = 'Evidence and audit events are never changed or deleted.';
END;
$$
"""


def upgrade() -> None:
    """Add the table, guarded like the audit trail, and teach the guard the role of retention."""
    op.create_table(
        "tombstones",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("key_sha256", sa.Text()),
        sa.Column("detail", postgresql.JSON(), nullable=False),
        sa.CheckConstraint("what IN ('purged', 'erased')", name="ck_tombstones_what"),
        sa.CheckConstraint("length(key_sha256) = 64", name="ck_tombstones_key"),
        sa.PrimaryKeyConstraint("id", name="pk_tombstones"),
    )
    op.create_index("ix_tombstones_subject", "tombstones", ["subject"])
    op.execute(REFUSE_CHANGE)
    op.execute(
        "CREATE TRIGGER tombstones_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON tombstones"
        " FOR EACH STATEMENT EXECUTE FUNCTION hindcast_refuse_change()"
    )
    op.create_index(
        "ix_incidents_closed_at", "incidents", ["closed_at"], postgresql_where=sa.text("closed_at IS NOT NULL")
    )


def downgrade() -> None:
    """Refuse, as the revisions before do: tombstones are all that is left of what they stand for."""
    raise RuntimeError("revision 0010 cannot be undone: going back would destroy all evidence of what was removed")
