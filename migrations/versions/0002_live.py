"""Live pipelines: what the collector follows into the database, exports, gathering, and rules that freeze a key."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NOW = sa.text("date_trunc('milliseconds', clock_timestamp())")

# What is collected lies in one partition a day, told by the high bits of every id: 2**40 ids belong to each day.
DAILY = ("segments", "attempts", "keyed_records", "undecodable", "snapshots")

# The application owns no table, so it makes and drops days through these, and can do nothing else to them.
ADD_DAY = f"""
CREATE FUNCTION hindcast_add_day(day integer) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path FROM CURRENT AS $$
DECLARE
    daily text;
BEGIN
    IF day NOT BETWEEN 0 AND 4000000 THEN
        RAISE EXCEPTION 'day % is no day since 1970', day USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('hindcast_days'));
    FOREACH daily IN ARRAY ARRAY{list(DAILY)!r} LOOP
        IF to_regclass(format('%I', daily || '_' || day)) IS NULL THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%s) TO (%s)',
                daily || '_' || day, daily, day::bigint << 40, (day::bigint + 1) << 40);
        END IF;
    END LOOP;
END;
$$
"""
DROP_DAY = f"""
CREATE FUNCTION hindcast_drop_day(day integer) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path FROM CURRENT SET lock_timeout = '5s' AS $$
DECLARE
    daily text;
BEGIN
    IF day >= extract(epoch FROM now())::bigint / 86400 THEN
        RAISE EXCEPTION 'day % is not over', day USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Only whole days of the past are dropped.';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('hindcast_days'));
    FOREACH daily IN ARRAY ARRAY{list(DAILY)!r} LOOP
        EXECUTE format('DROP TABLE IF EXISTS %I', daily || '_' || day);
    END LOOP;
END;
$$
"""
# Pages follow an incident; whatever belongs to one tells them. The collector is woken by what it has to do.
ANNOUNCE = """
CREATE FUNCTION hindcast_announce_live() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('hindcast_changes', json_build_object(
        'run', NEW.id, 'incident', NEW.incident_id, 'version', NEW.version, 'state', NEW.state)::text);
    IF NEW.state IN ('requested', 'queued') OR TG_TABLE_NAME = 'gatherings' THEN
        PERFORM pg_notify('hindcast_collector', NEW.pipeline);
    END IF;
    RETURN NULL;
END;
$$;
CREATE FUNCTION hindcast_announce_incident() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('hindcast_changes', json_build_object(
        'run', '', 'incident', NEW.id, 'version', NEW.version, 'state', '')::text);
    RETURN NULL;
END;
$$
"""


def upgrade() -> None:
    """Add the tables of live pipelines, and what an incident must know of its own."""
    incidents()
    followed()
    collected()
    exports()
    gatherings()
    freezes()
    for statement in (ADD_DAY, DROP_DAY, ANNOUNCE):
        op.execute(statement)
    for function in ("hindcast_add_day(integer)", "hindcast_drop_day(integer)"):
        op.execute(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
    op.execute(
        "CREATE TRIGGER segments_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON segments"
        " FOR EACH STATEMENT EXECUTE FUNCTION hindcast_refuse_change()"
    )
    for table in ("exports", "gatherings"):
        op.execute(
            f"CREATE TRIGGER {table}_are_announced AFTER INSERT OR UPDATE OF version ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION hindcast_announce_live()"
        )
    op.execute(
        "CREATE TRIGGER incidents_are_announced AFTER UPDATE OF version ON incidents"
        " FOR EACH ROW EXECUTE FUNCTION hindcast_announce_incident()"
    )


def time(name: str, *, now: bool = False, nullable: bool = True) -> sa.Column[object]:
    """Declare a point in time, which the database fills in when `now`."""
    default = NOW if now else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=nullable and not now)


def column(name: str, kind: type[sa.types.TypeEngine[object]], *, nullable: bool = False) -> sa.Column[object]:
    """Declare a column; what is not told to be nullable is required."""
    return sa.Column(name, kind(), nullable=nullable)


def incidents() -> None:
    """An incident of a live pipeline knows which one, and how long new evidence of its key still belongs to it."""
    op.add_column("incidents", sa.Column("pipeline", sa.Text()))
    op.add_column("incidents", sa.Column("version", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.add_column("incidents", sa.Column("collect_until", sa.DateTime(timezone=True)))
    op.create_index(
        "ix_incidents_collecting", "incidents", ["pipeline", "entity_key"],
        postgresql_where=sa.text("collect_until IS NOT NULL"),
    )  # fmt: skip


def followed() -> None:
    """Which topics are followed, how far each partition has been stored, and who follows."""
    op.create_table(
        "streams",
        sa.Column("id", sa.SmallInteger(), sa.Identity(), nullable=False),
        column("pipeline", sa.Text),
        column("stream", sa.Text),
        column("topic", sa.Text),
        column("incarnation", sa.Integer),
        sa.PrimaryKeyConstraint("id", name="pk_streams"),
        sa.UniqueConstraint(
            "pipeline", "stream", "topic", "incarnation", name="uq_streams_pipeline_stream_topic_incarnation"
        ),
    )
    op.create_table(
        "positions",
        column("stream_id", sa.SmallInteger),
        column("partition", sa.Integer),
        column("next_offset", sa.BigInteger),
        sa.Column("mark", sa.LargeBinary()),
        *(
            sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)
            for name in ("records", "undecodable", "tombstones", "absent", "removed")
        ),
        column("latest_ms", sa.BigInteger, nullable=True),
        column("latest_clock_ms", sa.BigInteger, nullable=True),
        time("changed_at", now=True),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name="fk_positions_stream_id_streams"),
        sa.PrimaryKeyConstraint("stream_id", "partition", name="pk_positions"),
    )
    op.create_table(
        "collectors",
        column("pipeline", sa.Text),
        column("name", sa.Text),
        time("started_at", now=True),
        time("seen_at", now=True),
        time("caught_up_at"),
        column("trouble", sa.Text, nullable=True),
        sa.Column("detail", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline", name="pk_collectors"),
    )


def collected() -> None:
    """What was read: the raw frames, a row for each attempt, and where the records of a key are."""
    op.execute("CREATE SEQUENCE collected_ids INCREMENT BY 1024 CYCLE")
    op.create_table(
        "shapes",
        sa.Column("id", sa.Integer(), sa.Identity(), nullable=False),
        column("pipeline", sa.Text),
        column("kind", sa.Text),
        column("category", sa.Text),
        column("status", sa.Text),
        column("reason", sa.Text),
        column("error_type", sa.Text),
        column("entry_step", sa.Integer, nullable=True),
        column("batch_size", sa.Integer, nullable=True),
        column("batch_trigger", sa.Text),
        column("plain", sa.Boolean),
        sa.Column("tools", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("intents", postgresql.JSON(), nullable=False),
        column("digest", sa.LargeBinary),
        sa.PrimaryKeyConstraint("id", name="pk_shapes"),
        sa.UniqueConstraint("digest", name="uq_shapes_digest"),
    )
    op.create_index("ix_shapes_pipeline", "shapes", ["pipeline"])
    daily(
        "segments",
        *place(),
        column("first_offset", sa.BigInteger),
        column("next_offset", sa.BigInteger),
        column("records", sa.Integer),
        column("size", sa.BigInteger),
        time("stored_at", now=True),
        column("data", sa.LargeBinary),
    )
    # We compressed them; PostgreSQL need not try again.
    op.execute("ALTER TABLE segments ALTER COLUMN data SET STORAGE EXTERNAL")
    op.create_index(
        "ix_segments_stream_id_partition_first_offset", "segments", ["stream_id", "partition", "first_offset"]
    )
    # Columns from wide to narrow, and no more than eight, which keeps the row's header at its smallest.
    daily(
        "attempts",
        column("clock_ms", sa.BigInteger),
        column("seq", sa.BigInteger),
        column("intent", sa.BigInteger, nullable=True),
        column("shape_id", sa.Integer),
        column("entity_key", sa.LargeBinary),
        column("places", sa.LargeBinary),
        sa.Column("more_intents", postgresql.ARRAY(sa.BigInteger())),
    )
    op.create_index("ix_attempts_clock_ms", "attempts", ["clock_ms"])
    op.create_index("ix_attempts_entity_key_seq", "attempts", ["entity_key", "seq"])
    op.create_index("ix_attempts_shape_id", "attempts", ["shape_id"])
    op.create_index("ix_attempts_intent", "attempts", ["intent"])
    op.create_index(
        "ix_attempts_more_intents", "attempts", ["more_intents"], postgresql_using="gin",
        postgresql_where=sa.text("more_intents IS NOT NULL"),
    )  # fmt: skip
    daily(
        "keyed_records",
        *place(),
        column("offset", sa.BigInteger),
        column("at_ms", sa.BigInteger, nullable=True),
        column("entity_key", sa.LargeBinary),
    )
    op.create_index("ix_keyed_records_entity_key_stream_id", "keyed_records", ["entity_key", "stream_id"])
    daily(
        "undecodable",
        *place(),
        column("offset", sa.BigInteger),
        column("size", sa.BigInteger),
        column("error", sa.Text),
    )
    op.create_index("ix_undecodable_stream_id", "undecodable", ["stream_id"])
    daily(
        "snapshots",
        *place(),
        column("offset", sa.BigInteger),
        column("at_ms", sa.BigInteger, nullable=True),
        column("seq", sa.BigInteger),
        column("snapshot_at_ms", sa.BigInteger),
        column("size", sa.BigInteger),
        column("suspended", sa.Boolean),
        column("entity_key", sa.LargeBinary),
        column("request_id", sa.Text),
        column("sha256", sa.Text),
    )
    op.create_index("ix_snapshots_entity_key", "snapshots", ["entity_key"])
    op.create_index("ix_snapshots_request_id", "snapshots", ["request_id"])


def place() -> tuple[sa.Column[object], ...]:
    """Which log, and which partition of it."""
    return column("stream_id", sa.SmallInteger), column("partition", sa.Integer)


def daily(name: str, *columns: sa.Column[object]) -> None:
    """Make a table that is partitioned by day; its days are made as they come."""
    op.create_table(name, column("id", sa.BigInteger), *columns, postgresql_partition_by="RANGE (id)")


def exports() -> None:
    """Requests for a key's state, and what came back."""
    op.create_table(
        "exports",
        column("id", sa.Text),
        column("incident_id", sa.Text),
        column("pipeline", sa.Text),
        column("entity_key", sa.LargeBinary),
        column("request_id", sa.Text),
        column("reason", sa.Text),
        column("rule", sa.Text, nullable=True),
        time("created_at", now=True),
        column("created_by", sa.Text),
        column("state", sa.Text),
        column("version", sa.Integer),
        column("attempt", sa.Integer),
        time("deadline_at", nullable=False),
        column("due", sa.Boolean),
        time("published_at"),
        column("topic", sa.Text, nullable=True),
        column("partition", sa.Integer, nullable=True),
        column("offset", sa.BigInteger, nullable=True),
        sa.Column("target", postgresql.JSON(), nullable=True),
        time("answered_at"),
        column("problem", sa.Text, nullable=True),
        sa.CheckConstraint("state IN ('requested', 'answered', 'timed_out')", name="ck_exports_state"),
        sa.CheckConstraint('(published_at IS NULL) = ("offset" IS NULL)', name="ck_exports_published"),
        sa.CheckConstraint("state <> 'answered' OR answered_at IS NOT NULL", name="ck_exports_answered"),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_exports_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_exports"),
        sa.UniqueConstraint("request_id", name="uq_exports_request_id"),
    )
    op.create_index("ix_exports_incident_id", "exports", ["incident_id"])
    op.create_index(
        "ix_exports_open", "exports", ["pipeline", "deadline_at"], postgresql_where=sa.text("state = 'requested'")
    )
    op.create_table(
        "export_answers",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        column("export_id", sa.Text),
        column("sha256", sa.Text),
        column("size", sa.BigInteger),
        column("entity_key", sa.LargeBinary),
        column("seq", sa.BigInteger),
        column("snapshot_at_ms", sa.BigInteger),
        column("suspended", sa.Boolean),
        column("foreign_key", sa.Boolean),
        column("late", sa.Boolean),
        time("arrived_at", now=True),
        sa.Column("source", postgresql.JSON(), nullable=False),
        column("problem", sa.Text, nullable=True),
        sa.ForeignKeyConstraint(["export_id"], ["exports.id"], name="fk_export_answers_export_id_exports"),
        sa.PrimaryKeyConstraint("id", name="pk_export_answers"),
        sa.UniqueConstraint("export_id", "sha256", name="uq_export_answers_export_id_sha256"),
    )


def gatherings() -> None:
    """Searches for evidence that intake does not have: above all, the envelope that triggered the attempt."""
    op.create_table(
        "gatherings",
        column("id", sa.Text),
        column("incident_id", sa.Text),
        column("pipeline", sa.Text),
        time("created_at", now=True),
        column("created_by", sa.Text),
        column("state", sa.Text),
        column("version", sa.Integer),
        column("attempt", sa.Integer),
        time("lease_until"),
        time("started_at"),
        time("finished_at"),
        column("cancel", sa.Boolean),
        sa.Column("progress", postgresql.JSON(), nullable=False),
        column("problem", sa.Text, nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'found', 'not_found', 'incomplete', 'cancelled', 'failed')",
            name="ck_gatherings_state",
        ),
        sa.CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="ck_gatherings_lease"),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_gatherings_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_gatherings"),
    )
    op.create_index("ix_gatherings_incident_id", "gatherings", ["incident_id"])
    op.create_index(
        "ix_gatherings_open", "gatherings", ["pipeline", "created_at"],
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )  # fmt: skip


def freezes() -> None:
    """What a rule froze by itself, and why."""
    op.create_table(
        "freezes",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        time("at", now=True),
        column("rule", sa.Text),
        column("pipeline", sa.Text),
        column("entity_key", sa.LargeBinary),
        column("seq", sa.BigInteger),
        column("kind", sa.Text),
        column("clock_ms", sa.BigInteger),
        column("why", sa.Text),
        column("suppressed", sa.BigInteger),
        column("incident_id", sa.Text, nullable=True),
        column("problem", sa.Text, nullable=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name="fk_freezes_incident_id_incidents"),
        sa.PrimaryKeyConstraint("id", name="pk_freezes"),
        sa.UniqueConstraint(
            "rule", "pipeline", "entity_key", "seq", "kind", "clock_ms",
            name="uq_freezes_rule_pipeline_entity_key_seq_kind_clock_ms",
        ),
    )  # fmt: skip
    op.create_index("ix_freezes_pipeline_rule_at", "freezes", ["pipeline", "rule", "at"])
    op.create_index(
        "ix_freezes_open", "freezes", ["id"], postgresql_where=sa.text("incident_id IS NULL AND problem IS NULL")
    )
    op.create_index("ix_freezes_incident_id", "freezes", ["incident_id"])


def downgrade() -> None:
    """Refuse: it would destroy collected evidence."""
    raise RuntimeError("revision 0002 cannot be undone: it would destroy all evidence; restore a back-up instead")
