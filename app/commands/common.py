"""What several commands begin with: the configuration, and a database that is there and up to date."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.settings import Settings

LEVELS = ("debug", "info", "warning", "error")


class CommandError(Exception):
    """The command cannot do what it was asked to; the text says why and what to do. Exit code 2."""


def add_options(parser: argparse.ArgumentParser, *, level: str = "info") -> None:
    """Add the options that every long-running command has."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="hindcast.toml (default: HINDCAST_CONFIG, else the one here)"
    )
    parser.add_argument("--log-level", choices=LEVELS, default=level)


def start_logging(level: str) -> None:
    """Write log lines to stderr, so that stdout carries only what a script may want to read."""
    import logging

    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("procrastinate", "alembic", "psycopg.pool"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def read_settings(config: Path | None) -> Settings:
    """Read the configuration; where it names no database, take the embedded one that runs in the state folder.

    Raises `CommandError`. The database may still be missing: `Settings.database_url` then says how to get one.
    """
    from app.demo.places import PostgresError
    from app.demo.postgres import attach
    from app.settings import SettingsError, load

    try:
        settings = load(config)
        if settings.database.url is None and (urls := attach(settings.home)) is not None:
            return settings.with_database(urls.app, urls.owner)
    except (SettingsError, PostgresError) as error:
        raise CommandError(str(error)) from error
    return settings


def ready_settings(config: Path | None) -> Settings:
    """Read the configuration, and see that its database is reachable and migrated. Raises `CommandError`."""
    from app.incidents.schema import SchemaError, check
    from app.settings import SettingsError

    settings = read_settings(config)
    try:
        check(settings.database_url)
    except (SettingsError, SchemaError) as error:
        raise CommandError(str(error)) from error
    return settings
