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
        owner, role = _roles(read_settings(args.config), args.application_role)
        at = schema.upgrade(owner, application=role, before_deploy=args.before_deploy)
    except (CommandError, SettingsError, schema.SchemaError) as error:
        print(f"hindcast migrate: {error}", file=sys.stderr)
        return 2
    print(f"{schema.shown(owner)} is at revision {at}" + (f"; role {role} has its rights" if role else ""))
    if at != schema.HEAD:
        print(f"revision {schema.HEAD} waits for `hindcast migrate`, once no older version runs any more")
    return 0


def _roles(settings: Settings, told: str | None) -> tuple[str, str | None]:
    """Find the owner's URL and the application's role; None where one user is both."""
    from sqlalchemy.engine import make_url

    owner = settings.database.owner_url or settings.database_url
    role = told or (make_url(settings.database.url).username if settings.database.url else None)
    return owner, None if role == make_url(owner).username else role
