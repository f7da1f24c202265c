"""`hindcast restore FILE`: a back-up into an empty database, brought to this version's schema and verified."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from app.commands.common import CommandError, add_options


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    parser.add_argument("file", type=Path, metavar="FILE", help="what `hindcast backup` wrote")
    add_options(parser, level="warning")


def run(args: argparse.Namespace) -> int:
    """Restore as the owner, migrate, grant, verify; the exit code is that of `hindcast verify`."""
    import asyncio

    from sqlalchemy.engine import make_url

    from app.commands.common import read_settings, start_logging
    from app.commands.dumping import load
    from app.commands.verify import verify
    from app.incidents import schema
    from app.settings import SettingsError

    try:
        start_logging(args)
        settings = read_settings(args.config)
        owner = settings.database.owner_url or settings.database_url
        load(owner, args.file)
        role = make_url(settings.database_url).username
        purge = settings.database.purge_url
        at = schema.upgrade(
            owner,
            application=None if role == make_url(owner).username else role,
            purger=make_url(purge).username if purge else None,
        )
    except (CommandError, SettingsError, schema.SchemaError) as error:
        print(f"hindcast restore: {error}", file=sys.stderr)
        return 2
    print(f"restored {args.file}; {schema.shown(owner)} is at revision {at}")
    return asyncio.run(verify(settings.database_url))
