"""Shares, and a chain over the audit trail, so that a removed or changed entry shows."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NOW = sa.text("date_trunc('milliseconds', clock_timestamp())")

# `app.incidents.audit_chain` spells an event the same way when it checks the chain.
LINK = """
CREATE FUNCTION hindcast_link_audit(event audit_events) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    last audit_links%ROWTYPE;
BEGIN
    PERFORM pg_advisory_xact_lock(1212765764, 1);
    SELECT * INTO last FROM audit_links ORDER BY position DESC LIMIT 1;
    INSERT INTO audit_links (position, event_id, hash) VALUES (
        COALESCE(last.position, 0) + 1,
        event.id,
        encode(sha256(convert_to(json_build_array(
            COALESCE(last.position, 0) + 1, COALESCE(last.hash, ''), event.id,
            to_char(event.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'),
            event.who, event.what, event.subject, event.origin, event.detail::text)::text, 'UTF8')), 'hex'));
END;
$$
"""

# The application may not write links itself: the trigger does it with the owner's rights. It runs at commit, so that
# entries wait for one another as briefly as can be, and never while they hold what another one waits for.
LINKED = """
CREATE FUNCTION hindcast_audit_is_linked() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM hindcast_link_audit(NEW);
    RETURN NULL;
END;
$$
"""


def time(name: str, *, now: bool = False, nullable: bool = True) -> sa.Column[object]:
    """Declare a point in time, which the database fills in when `now`."""
    return sa.Column(
        name, sa.DateTime(timezone=True), server_default=NOW if now else None, nullable=nullable and not now
    )


def upgrade() -> None:
    """Add the tables, and link what the trail already holds."""
    op.add_column("runs", sa.Column("error_outline", sa.Text()))
    op.add_column("audit_events", sa.Column("origin", sa.Text()))
    chain()
    shares()


def chain() -> None:
    """One link per entry of the trail, in the order of their commits."""
    op.create_table(
        "audit_links",
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_audit_links"),
        sa.UniqueConstraint("event_id", name="uq_audit_links_event_id"),
    )
    op.execute(LINK)
    op.execute(LINKED)
    op.execute("REVOKE EXECUTE ON FUNCTION hindcast_link_audit(audit_events) FROM PUBLIC")
    op.execute("REVOKE EXECUTE ON FUNCTION hindcast_audit_is_linked() FROM PUBLIC")
    op.execute(
        "DO $$ DECLARE event audit_events%ROWTYPE; BEGIN"
        " FOR event IN SELECT * FROM audit_events ORDER BY id LOOP PERFORM hindcast_link_audit(event); END LOOP;"
        " END $$"
    )
    op.execute(
        "CREATE CONSTRAINT TRIGGER audit_events_are_linked AFTER INSERT ON audit_events"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hindcast_audit_is_linked()"
    )
    op.execute(
        "CREATE TRIGGER audit_links_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_links"
        " FOR EACH STATEMENT EXECUTE FUNCTION hindcast_refuse_change()"
    )


def shares() -> None:
    """Links that show an incident, or one run of it, to whoever holds them."""
    op.create_table(
        "shares",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.Text(), nullable=False),
        sa.Column("digest_key", sa.LargeBinary(), nullable=False),
        sa.Column("incident_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text()),
        sa.Column("reveal", postgresql.ARRAY(sa.Text()), nullable=False),
        time("created_at", now=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        time("expires_at", nullable=False),
        time("revoked_at"),
        sa.Column("revoked_by", sa.Text()),
        sa.Column("accesses", sa.Integer(), server_default=sa.text("0"), nullable=False),
        time("last_access_at"),
        sa.CheckConstraint("length(token_sha256) = 64", name="ck_shares_token"),
        sa.CheckConstraint("length(digest_key) = 32", name="ck_shares_digest_key"),
        sa.CheckConstraint("expires_at > created_at", name="ck_shares_expiry"),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_shares_incident_id_incidents"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_shares_run_id_runs"),
        sa.PrimaryKeyConstraint("id", name="pk_shares"),
        sa.UniqueConstraint("token_sha256", name="uq_shares_token_sha256"),
    )
    op.create_index("ix_shares_incident_id", "shares", ["incident_id"])
    op.create_index("ix_shares_created_at_id", "shares", ["created_at", "id"])


def downgrade() -> None:
    """Refuse: the chain is what shows that the trail is whole."""
    raise RuntimeError("revision 0003 cannot be undone: it would destroy the audit trail's chain; restore a back-up")
