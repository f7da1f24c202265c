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
    parser.add_argument(
        "--log-format", choices=("text", "json"), help="lines of text, or a JSON object each (HINDCAST_LOG_FORMAT)"
    )


def add_watch_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that opens a port for those who watch over the process."""
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="answer /metrics, /healthz and /readyz there, without a token (HINDCAST_METRICS; default: nowhere)",
    )


def start_logging(args: argparse.Namespace) -> None:
    """Write log lines to stderr, so that stdout carries only what a script may want to read. Raises `CommandError`."""
    from app.operations import logs

    try:
        logs.start(args.log_level, args.log_format)
    except ValueError as error:
        raise CommandError(str(error)) from None


def start_watching(args: argparse.Namespace, process: str) -> tuple[str, int] | None:
    """Begin to trace where the environment asks for it; the address for metrics, if any. Raises `CommandError`."""
    import os

    from app.operations import listener, tracing

    told = args.metrics or os.environ.get(listener.VARIABLE)
    try:
        tracing.start(process)
        return listener.parse_address(told) if told else None
    except ValueError as error:
        raise CommandError(str(error)) from None


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
            return settings.with_database(urls.app, urls.owner, urls.purge or None)
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
