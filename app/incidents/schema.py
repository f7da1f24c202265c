"""Brings a database to the form this version works with, as the owner of the tables, and checks that it is there.

The application's role gets what it needs and no more: it can add evidence and audit events, never change them.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError, ProgrammingError

from app import resource
from app.incidents.errors import IncidentError
from app.incidents.store import ReadSession, driver_url

# The newest revision below `migrations/`; a test holds it to the folder, so that a start need not load Alembic.
HEAD: Final = "0011"
# Revisions that take something away, and so may only run once no older code works any more: `phase = "post"` in their
# files, which a test holds this to. All others only add, and run before new code is deployed.
POST: Final[tuple[str, ...]] = ()

_LOCK: Final = 0x48494E44  # "HIND": one migration at a time, whoever starts them

_READ_ONLY: Final = ("alembic_version", "queue_schema", "schema_floor", "audit_links", "tombstones")
_APPEND_ONLY: Final = (
    "blobs", "evidence", "run_rows", "run_ledger", "audit_events",
    "console_keys",
    "streams", "shapes", "segments", "keyed_records", "undecodable", "snapshots",
    "note_versions", "case_changes", "flink_records",
)  # fmt: skip
_CHANGEABLE: Final = (
    "incidents", "runs", "positions", "collectors", "exports", "export_answers", "gatherings", "freezes",
    "shares", "notes", "flink_logs", "flink_runs", "api_tokens",
)  # fmt: skip
_PASSING: Final = ("drafts", "draft_files", "attempts", "decodings", "incident_links", "workers", "sessions")
# The role of retention reads and deletes these; what it keeps of a segment it writes anew.
_REMOVABLE: Final = (
    "incidents", "evidence", "blobs", "runs", "run_rows", "run_ledger", "shares", "notes", "note_versions",
    "case_changes", "incident_links", "exports", "export_answers", "gatherings", "decodings", "freezes", "drafts",
    "draft_files", "segments", "attempts", "keyed_records", "snapshots", "undecodable", "flink_records", "flink_runs",
)  # fmt: skip
_SEQUENCES: Final = ("collected_ids",)
_FUNCTIONS: Final = ("hindcast_add_day(integer)", "hindcast_drop_day(integer)")


# The revision that brought the table of which code may still work.
_FIRST_FLOOR: Final = "0007"
_AT: Final = text("SELECT version_num FROM alembic_version")
_QUEUE_AT: Final = text("SELECT max(version) FROM queue_schema")
_FLOOR: Final = text("SELECT max(revision) FROM schema_floor")
_RAISE_FLOOR: Final = text("UPDATE schema_floor SET revision = greatest(revision, :floor)")


class SchemaError(IncidentError):
    """The database is not in the form this version needs; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A schema that this version can work with: the revision that it is `at`, and the `wanted` one it will be at."""

    at: str
    wanted: str


def needed() -> str:
    """The oldest revision that this version works with: what comes after it only takes away what nobody uses."""
    revision = HEAD
    while revision in POST:
        revision = f"{int(revision) - 1:04d}"
    return revision


def upgrade(
    url: str | URL, *, application: str | None = None, purger: str | None = None, before_deploy: bool = False
) -> str:
    """Create or upgrade all tables, then grant the role `application` its work (None: the owner works itself).

    `url` is the owner's. `purger` is the role of retention, which alone may remove evidence (None: nobody may).
    `before_deploy` stops at what the new code needs, which the running code still works with.
    Returns the revision. Safe to repeat and to start twice at once; one transaction per revision. Raises `SchemaError`.
    """
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 10})
    try:
        with engine.connect() as connection:
            _check_server(connection)
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
            connection.commit()
            _run_alembic(connection, needed() if before_deploy else "head")
            connection.commit()
            with connection.begin():
                at: str = connection.execute(_AT).scalar_one()
                _upgrade_queue(connection, before_deploy=before_deploy)
                floor = max((revision for revision in POST if revision <= at), default="")
                connection.execute(_RAISE_FLOOR, {"floor": floor})
                if application is not None and application != make_url(url).username:
                    _grant(connection, application)
                if purger is not None:
                    _grant_removal(connection, purger, (application, make_url(url).username))
    except (OperationalError, ProgrammingError) as error:
        raise SchemaError(f"cannot migrate {shown(url)}: {_first_line(error)}") from error
    finally:
        engine.dispose()  # which ends the session, and with it the lock
    return at


def check(url: str | URL) -> Standing:
    """Raise `SchemaError` unless the database can be reached and is in a form that this version works with."""
    engine = create_engine(driver_url(url), connect_args={"connect_timeout": 10})
    try:
        with engine.connect() as connection:
            found = connection.execute(_AT).scalar()
            queue = connection.execute(_QUEUE_AT).scalar()
            floor = None if found is None or found < _FIRST_FLOOR else connection.execute(_FLOOR).scalar()
    except ProgrammingError:
        found = queue = floor = None
    except OperationalError as error:
        raise SchemaError(
            f"cannot reach the database {shown(url)}: {_first_line(error)}; check that it runs, and"
            " HINDCAST_DATABASE_URL"
        ) from error
    finally:
        engine.dispose()
    if found is None or queue is None:
        raise SchemaError(f"the database {shown(url)} has no tables of Hindcast yet; run `hindcast migrate`")
    return _judge(found, queue, floor)


async def standing(session: ReadSession) -> Standing:
    """Say how the schema stands. Raises `SchemaError` where this version cannot work with it."""
    found = (await session.execute(_AT)).scalar_one()
    queue = (await session.execute(_QUEUE_AT)).scalar_one()
    floor = (await session.execute(_FLOOR)).scalar() if found >= _FIRST_FLOOR else None
    return _judge(found, queue, floor)


def _judge(found: str, queue: str, floor: str | None) -> Standing:
    """Older is well where only post-deploy revisions are to come, newer where the newer release says so."""
    newer_is_well = found > HEAD and floor is not None and floor <= HEAD
    if found < needed():
        raise SchemaError(_misfit("revision", found, HEAD, "run `hindcast migrate`"))
    if found > HEAD and not newer_is_well:
        raise SchemaError(_misfit("revision", found, HEAD, "upgrade this Hindcast"))
    missing = [name for name in _queue_migrations() if name > queue]
    ours = max(_queue_migrations(), default="")
    if any(not _is_post(name) for name in missing):
        raise SchemaError(_misfit("queue schema", queue, ours, "run `hindcast migrate`"))
    if queue > ours and not newer_is_well:
        raise SchemaError(_misfit("queue schema", queue, ours, "upgrade this Hindcast"))
    return Standing(found, HEAD)


def _misfit(what: str, found: str, ours: str, remedy: str) -> str:
    return f"the database is at {what} {found}, and this Hindcast works with {ours}; {remedy}"


def shown(url: str | URL) -> str:
    """Write a database URL for a message, without its password."""
    return make_url(url).render_as_string(hide_password=True)


def apply_queue_schema(connection: Connection) -> None:
    """Create the queue's own tables and functions, from the installed package, and note its version."""
    _execute_file(connection, _queue_folder() / "schema.sql")
    newest = max(_queue_migrations(), default="")
    connection.execute(text("INSERT INTO queue_schema (version) VALUES (:version)"), {"version": newest})


def _is_post(queue_migration: str) -> bool:
    """Whether a migration of the queue's is one for after the deployment, as its own names say."""
    return "_post_" in queue_migration


def _upgrade_queue(connection: Connection, *, before_deploy: bool) -> None:
    """Apply the migrations that a newer release of the queue brings along, in order."""
    applied = connection.execute(_QUEUE_AT).scalar_one()
    missing = [name for name in sorted(_queue_migrations()) if name > applied]
    while before_deploy and missing and _is_post(missing[-1]):
        missing.pop()
    for name, file in sorted(_queue_migrations().items()):
        if name in missing:
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


def _scripts() -> Path:
    return resource("migrations")


def _run_alembic(connection: Connection, target: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, target)
    except CommandError as error:
        raise SchemaError(f"cannot migrate: {error}; is the database newer than this Hindcast?") from error


def _grant_removal(connection: Connection, role: str, others: tuple[str | None, ...]) -> None:
    """Let the role of retention remove things, and write down that it did; it can change nothing that stays."""
    if role in others:
        raise SchemaError(
            f"the role of retention, {role!r}, is the owner or the application as well: then whoever serves pages could"
            " remove evidence; create another: CREATE ROLE hindcast_purge LOGIN"
        )
    name = _known(connection, role, "role of retention")
    for rights, relations in (
        ("SELECT", ("streams", "shapes", "flink_logs", "alembic_version", "queue_schema")),
        ("UPDATE (reason, error_type)", ("shapes",)),
        ("UPDATE (state)", ("flink_logs",)),
        ("SELECT, DELETE", _REMOVABLE),
        ("INSERT", ("segments",)),
        ("SELECT, INSERT", ("tombstones", "audit_events")),
    ):
        connection.execute(text(f"GRANT {rights} ON {', '.join(relations)} TO {name}"))


def _known(connection: Connection, role: str, what: str) -> str:
    """The name of a role, quoted for a statement. Raises `SchemaError` where there is none of that name."""
    known = connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}).scalar()
    if known is None:
        raise SchemaError(f'the {what} {role!r} does not exist; create it: CREATE ROLE "{role}" LOGIN')
    return str(connection.dialect.identifier_preparer.quote(role))


def _grant(connection: Connection, role: str) -> None:
    name = _known(connection, role, "application's role")
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
