"""An incident as a case: status, severity, owner, tags, pin, notes with history, links; and what was changed."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

NOW = sa.text("date_trunc('milliseconds', clock_timestamp())")


def time(name: str, *, now: bool = False) -> sa.Column[object]:
    """Declare a point in time, which the database fills in when `now`."""
    return sa.Column(name, sa.DateTime(timezone=True), server_default=NOW if now else None, nullable=not now)


def upgrade() -> None:
    """Add the columns and tables; incidents that are there become open ones that nobody has judged."""
    incidents()
    notes()
    changes_and_links()


def incidents() -> None:
    """What a list filters and sorts by stands in the incident's own row."""
    op.add_column("incidents", sa.Column("status", sa.Text(), server_default=sa.text("'open'"), nullable=False))
    op.add_column("incidents", sa.Column("severity", sa.Text()))
    op.add_column("incidents", sa.Column("owner", sa.Text()))
    op.add_column(
        "incidents",
        sa.Column("tags", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
    )
    op.add_column("incidents", sa.Column("pinned", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("incidents", sa.Column("revision", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.add_column("incidents", time("changed_at", now=True))
    op.add_column("incidents", time("closed_at"))
    op.execute("UPDATE incidents SET changed_at = created_at")
    op.create_check_constraint(
        "ck_incidents_status", "incidents", "status IN ('open', 'contained', 'explained', 'closed')"
    )
    op.create_check_constraint(
        "ck_incidents_severity", "incidents", "severity IN ('critical', 'high', 'medium', 'low')"
    )
    op.create_check_constraint("ck_incidents_closed", "incidents", "(status = 'closed') = (closed_at IS NOT NULL)")
    op.create_index("ix_incidents_changed_at_id", "incidents", ["changed_at", "id"])
    op.create_index("ix_incidents_tags", "incidents", ["tags"], postgresql_using="gin")


def notes() -> None:
    """Notes as they read now, and as they once read."""
    op.create_table(
        "notes",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("incident_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        time("created_at", now=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        time("edited_at"),
        sa.Column("edited_by", sa.Text()),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_notes_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_notes"),
        sa.UniqueConstraint("incident_id", "number", name="uq_notes_incident_id_number"),
    )
    op.create_table(
        "note_versions",
        sa.Column("note_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        time("at", now=True),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["note_id"], ["notes.id"], name="fk_note_versions_note_id_notes"),
        sa.PrimaryKeyConstraint("note_id", "version", name="pk_note_versions"),
    )


def changes_and_links() -> None:
    """What was changed about a case, and which incidents of a key belong together."""
    op.create_table(
        "case_changes",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("incident_id", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        time("at", now=True),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("field", sa.Text(), nullable=False),
        sa.Column("old", sa.Text()),
        sa.Column("new", sa.Text()),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_case_changes_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_case_changes"),
    )
    op.create_index("ix_case_changes_incident_id_revision", "case_changes", ["incident_id", "revision"])
    op.create_table(
        "incident_links",
        sa.Column("incident_id", sa.Text(), nullable=False),
        sa.Column("other_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        time("created_at", now=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.CheckConstraint("kind IN ('related', 'duplicate', 'follows')", name="ck_incident_links_kind"),
        sa.CheckConstraint("incident_id <> other_id", name="ck_incident_links_other"),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_incident_links_incident_id_incidents"),
        sa.ForeignKeyConstraint(["other_id"], ["incidents.id"], name="fk_incident_links_other_id_incidents"),
        sa.PrimaryKeyConstraint("incident_id", "other_id", name="pk_incident_links"),
    )
    op.create_index("ix_incident_links_other_id", "incident_links", ["other_id"])
    op.create_index(
        "uq_incident_links_pair",
        "incident_links",
        [sa.text("least(incident_id, other_id)"), sa.text("greatest(incident_id, other_id)")],
        unique=True,
    )


def downgrade() -> None:
    """Refuse, as the revisions before do: going back would throw away what people wrote."""
    raise RuntimeError(
        "revision 0006 cannot be undone: going back would destroy all evidence and notes; restore a back-up"
    )
