"""Brings a database to the form this version works with, as the owner of the tables, and checks that it is there.

The application's role gets what it needs and no more: it can add evidence and audit events, never change them.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError, ProgrammingError

from app import resource
from app.incidents.errors import IncidentError
from app.incidents.store import driver_url

# The newest revision below `migrations/`; a test holds it to the folder, so that a start need not load Alembic.
HEAD: Final = "0008"

_LOCK: Final = 0x48494E44  # "HIND": one migration at a time, whoever starts them

_READ_ONLY: Final = ("alembic_version", "queue_schema", "schema_floor", "audit_links")
_APPEND_ONLY: Final = (
    "blobs", "evidence", "run_rows", "run_ledger", "audit_events",
    "streams", "shapes", "segments", "keyed_records", "undecodable", "snapshots",
    "note_versions", "case_changes", "flink_records",
)  # fmt: skip
_CHANGEABLE: Final = (
    "incidents", "runs", "positions", "collectors", "exports", "export_answers", "gatherings", "freezes",
    "shares", "notes", "flink_logs", "flink_runs",
)  # fmt: skip
_PASSING: Final = ("drafts", "draft_files", "attempts", "decodings", "incident_links", "workers")
_SEQUENCES: Final = ("collected_ids",)
_FUNCTIONS: Final = ("hindcast_add_day(integer)", "hindcast_drop_day(integer)")


class SchemaError(IncidentError):
    """The database is not in the form this version needs; the text says what to do."""


def upgrade(url: str | URL, *, application: str | None = None) -> None:
    """Create or upgrade all tables, then grant the role `application` its work (None: the owner works itself).

    `url` is the owner's. Safe to repeat and to start twice at once; one transaction per revision. Raises `SchemaError`.
    """
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 10})
    try:
        with engine.connect() as connection:
            _check_server(connection)
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
            connection.commit()
            _run_alembic(connection)
            connection.commit()
            with connection.begin():
                _upgrade_queue(connection)
                if application is not None and application != make_url(url).username:
                    _grant(connection, application)
    except (OperationalError, ProgrammingError) as error:
        raise SchemaError(f"cannot migrate {shown(url)}: {_first_line(error)}") from error
    finally:
        engine.dispose()  # which ends the session, and with it the lock


def check(url: str | URL) -> None:
    """Raise `SchemaError` unless the database can be reached and is in the form that this version works with."""
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 10})
    try:
        with engine.connect() as connection:
            found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            queue = connection.execute(text("SELECT max(version) FROM queue_schema")).scalar()
    except ProgrammingError:
        found = queue = None
    except OperationalError as error:
        raise SchemaError(
            f"cannot reach the database {shown(url)}: {_first_line(error)}; check that it runs, and"
            " HINDCAST_DATABASE_URL"
        ) from error
    finally:
        engine.dispose()
    if found is None or queue is None:
        raise SchemaError(f"the database {shown(url)} has no tables of Hindcast yet; run `hindcast migrate`")
    _compare("revision", found, HEAD)
    _compare("queue schema", queue, max(_queue_migrations(), default=""))


def _compare(what: str, found: str, ours: str) -> None:
    if found != ours:
        remedy = "upgrade this Hindcast" if found > ours else "run `hindcast migrate`"
        raise SchemaError(f"the database is at {what} {found}, and this Hindcast works with {ours}; {remedy}")


def shown(url: str | URL) -> str:
    """Write a database URL for a message, without its password."""
    return make_url(url).render_as_string(hide_password=True)


def apply_queue_schema(connection: Connection) -> None:
    """Create the queue's own tables and functions, from the installed package, and note its version."""
    _execute_file(connection, _queue_folder() / "schema.sql")
    newest = max(_queue_migrations(), default="")
    connection.execute(text("INSERT INTO queue_schema (version) VALUES (:version)"), {"version": newest})


def _upgrade_queue(connection: Connection) -> None:
    """Apply the migrations that a newer release of the queue brings along, in order."""
    applied = connection.execute(text("SELECT max(version) FROM queue_schema")).scalar_one()
    for name, file in sorted(_queue_migrations().items()):
        if name > applied:
            _execute_file(connection, file)
            connection.execute(text("INSERT INTO queue_schema (version) VALUES (:version)"), {"version": name})


def _queue_folder() -> Path:
    spec = importlib.util.find_spec("procrastinate")
    if spec is None or spec.origin is None:
        raise SchemaError("the package procrastinate is not installed; run `make setup`")
    return Path(spec.origin).parent / "sql"


def _queue_migrations() -> dict[str, Path]:
    """Find the package's migration files by name; names sort in the order in which they apply."""
    files = (_queue_folder() / "migrations").glob("*.sql")
    return {file.stem: file for file in files if re.match(r"\d\d\.\d\d\.\d\d_\d\d", file.stem)}


def _execute_file(connection: Connection, file: Path) -> None:
    # Without parameters the driver sends the text as it is: `:=`, `::` and `%` mean what PostgreSQL means by them.
    connection.exec_driver_sql(file.read_text(encoding="utf-8"), execution_options={"no_parameters": True})


def _run_alembic(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(resource("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise SchemaError(f"cannot migrate: {error}; is the database newer than this Hindcast?") from error


def _grant(connection: Connection, role: str) -> None:
    known = connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}).scalar()
    if known is None:
        raise SchemaError(f'the application\'s role {role!r} does not exist; create it: CREATE ROLE "{role}" LOGIN')
    name = connection.dialect.identifier_preparer.quote(role)
    queue = connection.execute(
        text(
            "SELECT c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE"
            " n.nspname = current_schema() AND c.relname LIKE 'procrastinate%' AND c.relkind IN ('r', 'S')"
        )
    ).all()
    tables = [relation for relation, kind in queue if kind == "r"]
    sequences = [*_SEQUENCES, *(relation for relation, kind in queue if kind == "S")]
    for rights, relations in (
        ("SELECT", _READ_ONLY),
        ("SELECT, INSERT", _APPEND_ONLY),
        ("SELECT, INSERT, UPDATE", _CHANGEABLE),
        ("SELECT, INSERT, UPDATE, DELETE", [*_PASSING, *tables]),
    ):
        connection.execute(text(f"GRANT {rights} ON {', '.join(relations)} TO {name}"))
    connection.execute(text(f"GRANT USAGE, SELECT ON SEQUENCE {', '.join(sequences)} TO {name}"))
    connection.execute(text(f"GRANT EXECUTE ON FUNCTION {', '.join(_FUNCTIONS)} TO {name}"))


def _check_server(connection: Connection) -> None:
    encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
    if encoding != "UTF8":
        raise SchemaError(f"the database is encoded in {encoding}; create it anew with ENCODING 'UTF8'")
    number = int(connection.execute(text("SHOW server_version_num")).scalar_one())
    if number < 150000:
        raise SchemaError(f"the server is PostgreSQL {number // 10000}; Hindcast needs 15 or newer")
    connection.commit()


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", error)).strip().splitlines()[0]
