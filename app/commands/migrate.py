"""`hindcast migrate`: brings the database to this version's schema, and gives the application's role its rights."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from app.commands.common import CommandError, add_options

if TYPE_CHECKING:
    from app.settings import Settings


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    add_options(parser, level="warning")
    parser.add_argument(
        "--application-role",
        metavar="ROLE",
        help="who gets the application's rights (default: the user of database.url)",
    )
    parser.add_argument(
        "--purge-role",
        metavar="ROLE",
        help="who alone may remove evidence (default: the user of database.purge_url)",
    )

    parser.add_argument(
        "--before-deploy",
        action="store_true",
        help="only what the new version needs and the running one still works with; migrate again after the deployment",
    )


def run(args: argparse.Namespace) -> int:
    """Migrate; safe to repeat, and safe to start twice at once."""
    from app.commands.common import read_settings, start_logging
    from app.incidents import schema
    from app.settings import SettingsError

    try:
        start_logging(args)
        settings = read_settings(args.config)
        owner, role = _roles(settings, args.application_role)
        purger = args.purge_role or _user(settings.database.purge_url)
        at = schema.upgrade(owner, application=role, purger=purger, before_deploy=args.before_deploy)
    except (CommandError, SettingsError, schema.SchemaError) as error:
        print(f"hindcast migrate: {error}", file=sys.stderr)
        return 2
    print(
        f"{schema.shown(owner)} is at revision {at}"
        + (f"; role {role} has its rights" if role else "")
        + (f"; role {purger} may remove evidence" if purger else "")
    )
    if at != schema.HEAD:
        print(f"revision {schema.HEAD} waits for `hindcast migrate`, once no older version runs any more")
    return 0


def _roles(settings: Settings, told: str | None) -> tuple[str, str | None]:
    """Find the owner's URL and the application's role; None where one user is both."""
    owner = settings.database.owner_url or settings.database_url
    role = told or _user(settings.database.url)
    return owner, None if role == _user(owner) else role


def _user(url: str | None) -> str | None:
    from sqlalchemy.engine import make_url

    return make_url(url).username if url else None
