"""The database a migration makes is the one the code expects, and guards what must not change."""

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from app import resource
from app.demo.postgres import APPLICATION
from app.incidents import access_models, case_models, flink_models, schema, share_models
from app.incidents.live_models import Base
from app.incidents.store import driver_url
from tests.fixtures.postgres import Database


def alembic_config(**attributes: object) -> Config:
    config = Config()
    config.set_main_option("script_location", str(resource("migrations")))
    config.attributes.update(attributes)
    return config


def ours(name: str | None, kind: str, _: object) -> bool:
    return kind != "table" or not str(name).startswith(("procrastinate", "queue_schema", "schema_floor"))


def of_the_clock(found: object) -> bool:
    """Whether only the database's clock moved while it compared two looks at it."""
    match found:
        case [("modify_default", _, _, _, _, there, ours)]:
            return all("clock_timestamp" in str(getattr(one, "arg", "")) for one in (there, ours))
    return False


def test_the_migrated_tables_are_the_models(database: Database) -> None:
    engine = create_engine(driver_url(database.owner))
    with engine.connect() as connection:
        options = {"include_name": ours, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        tables = (share_models.Share, access_models.Session, case_models.Note, flink_models.FlinkRun)
        assert all(each.metadata is Base.metadata for each in tables)
        assert [one for one in compare_metadata(context, Base.metadata) if not of_the_clock(one)] == []
    engine.dispose()


def test_the_newest_revision_is_the_one_the_code_names() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_current_head() == schema.HEAD


def test_check_tells_a_bare_an_old_and_a_newer_database_apart(bare_database: Database) -> None:
    with pytest.raises(schema.SchemaError, match="no tables of Hindcast yet; run `hindcast migrate`"):
        schema.check(bare_database.app)
    schema.upgrade(bare_database.owner, application=APPLICATION)
    schema.check(bare_database.app)
    with psycopg.connect(bare_database.owner, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("UPDATE schema_floor SET revision = '9999'")
    with pytest.raises(schema.SchemaError, match=r"revision 9999.*upgrade this Hindcast"):
        schema.check(bare_database.app)
    with pytest.raises(schema.SchemaError, match="newer than this Hindcast"):
        schema.upgrade(bare_database.owner, application=APPLICATION)


def test_migrating_again_changes_nothing_and_grants_again(database: Database) -> None:
    with psycopg.connect(database.owner, autocommit=True) as connection:
        connection.execute(f"REVOKE SELECT ON incidents FROM {APPLICATION}")
    schema.upgrade(database.owner, application=APPLICATION)
    with psycopg.connect(database.app) as connection:
        assert connection.execute("SELECT count(*) FROM incidents").fetchone() == (0,)


def test_a_role_that_does_not_exist_is_named(database: Database) -> None:
    with pytest.raises(
        schema.SchemaError, match="role 'nobody_here' does not exist; create it: CREATE ROLE \"nobody_here\""
    ):
        schema.upgrade(database.owner, application="nobody_here")


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(schema.SchemaError) as caught:
        schema.check("postgresql://hindcast:s3cret@127.0.0.1:1/hindcast")
    assert "cannot reach the database postgresql://hindcast:***@127.0.0.1:1/hindcast" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_going_back_is_refused(database: Database) -> None:
    engine = create_engine(driver_url(database.owner))
    with engine.connect() as connection, pytest.raises(RuntimeError, match="would destroy"):
        command.downgrade(alembic_config(connection=connection), "base")
    engine.dispose()
    schema.check(database.app)


GUARDED = {
    "blobs": "UPDATE blobs SET size = 0",
    "evidence": "UPDATE evidence SET name = ''",
    "audit_events": "UPDATE audit_events SET who = ''",
}


@pytest.mark.parametrize("table", GUARDED)
def test_evidence_and_audit_are_only_ever_added_to(database: Database, table: str) -> None:
    statements = (GUARDED[table], f"DELETE FROM {table}", f"TRUNCATE {table} CASCADE")
    # The application lacks the right, and even the owner of the table is stopped by the trigger.
    for url, error in ((database.app, "permission denied"), (database.owner, "only ever added to")):
        for statement in statements:
            with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match=error):
                connection.execute(statement)


def test_the_application_owns_nothing_and_makes_nothing(database: Database) -> None:
    with psycopg.connect(database.app, autocommit=True) as connection:
        role = connection.execute(
            "SELECT rolsuper, rolcreatedb, rolcreaterole, rolbypassrls FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert role == (False, False, False, False)
        owned = connection.execute("SELECT count(*) FROM pg_class WHERE relowner = current_user::regrole").fetchone()
        assert owned == (0,)
        for statement in (
            "CREATE TABLE mine (id int)",
            "ALTER TABLE blobs DISABLE TRIGGER ALL",
            "CREATE SCHEMA mine",
            "DROP TRIGGER blobs_are_kept ON blobs",
            "COPY blobs TO PROGRAM 'id'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
