"""`hindcast backup FILE`: everything in the database, as one file of PostgreSQL's own format."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from app.commands.common import CommandError, add_options


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    parser.add_argument("file", type=Path, metavar="FILE", help="where to write it; must not exist")
    add_options(parser, level="warning")


def run(args: argparse.Namespace) -> int:
    """Write a back-up that is consistent although everything works on. Needs the owner of the tables."""
    from app.commands.common import read_settings, start_logging
    from app.commands.dumping import dump
    from app.settings import SettingsError

    try:
        start_logging(args)
        settings = read_settings(args.config)
        dump(settings.database.owner_url or settings.database_url, args.file)
    except (CommandError, SettingsError) as error:
        print(f"hindcast backup: {error}", file=sys.stderr)
        return 2
    print(f"{args.file}: {args.file.stat().st_size} bytes; `hindcast restore` reads it, and so does pg_restore")
    return 0
