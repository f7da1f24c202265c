"""What the verbs of `hindcast flink` that read logs share: the database, and where keys stand."""

from __future__ import annotations

import argparse
from typing import Any

from app.commands.common import CommandError, add_options


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a verb that reads logs."""
    parser.add_argument(
        "--key-path",
        action="append",
        metavar="PATH",
        help="where the key stands in a payload, for logs that carry none: $.input.customer.id"
        " (default: flink.key_paths of the configuration)",
    )
    add_options(parser)


class Database:
    """An engine over the configured database, for the length of a block. Raises `CommandError`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._config = args.config

    def __enter__(self) -> Any:
        from sqlalchemy import create_engine

        from app.commands.common import ready_settings
        from app.incidents.store import driver_url

        self._engine = create_engine(driver_url(ready_settings(self._config).database_url), pool_pre_ping=True)
        return self._engine

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()


def key_paths(args: argparse.Namespace) -> list[str]:
    """The paths that were given, or those of the configuration. Raises `CommandError`."""
    from app.settings import SettingsError, load

    if args.key_path:
        return list(args.key_path)
    try:
        return list(load(args.config).flink.key_paths)
    except SettingsError as error:
        raise CommandError(str(error)) from error
