"""`hindcast serve`: the console on an address, over a database that is there and migrated."""

from __future__ import annotations

import argparse
import sys

from app.commands.common import CommandError, add_options, add_watch_option


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    add_options(parser)
    add_watch_option(parser)
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (default: console.host)")
    parser.add_argument("--port", type=int, metavar="N", help="port, 0 for any free one (default: console.port)")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; prints the address with the start-up token once the port is open."""
    from app.commands.common import ready_settings, start_logging, start_watching
    from app.settings import SettingsError

    told = {name: value for name, value in (("host", args.host), ("port", args.port)) if value is not None}
    try:
        start_logging(args)
        watch = start_watching(args, "web")
        settings = ready_settings(args.config).with_console(**told)
        settings.check_access()
    except (CommandError, SettingsError) as error:
        return _refuse(error)
    from app.main import AddressProblem, serve

    try:
        serve(settings, watch)
    except AddressProblem as error:
        return _refuse(error)
    return 0


def _refuse(error: Exception) -> int:
    print(f"hindcast serve: {error}", file=sys.stderr)
    return 2
