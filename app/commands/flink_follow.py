"""`hindcast flink follow`: the event logs of a folder, as they grow and are rotated."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.common import CommandError, start_logging
from app.commands.flink_logs import Database, add_log_options, key_paths

if TYPE_CHECKING:
    from app.incidents.flink_import import Imported


def register(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options to its parser."""
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument(
        "--pattern",
        action="append",
        metavar="GLOB",
        help="names of files to follow; may be repeated (default: events-*.log* and *event-log.log*)",
    )
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)")
    add_log_options(parser)


def run(args: argparse.Namespace) -> int:
    """Follow until SIGTERM or Ctrl-C. Exit code 0, or 2."""
    try:
        start_logging(args)
        return _follow(args)
    except (CommandError, ValueError) as error:
        print(f"hindcast flink follow: {error}", file=sys.stderr)
        return 2


def _follow(args: argparse.Namespace) -> int:
    import signal
    import threading

    from app.incidents.flink_follow import PATTERNS, Follower, follow
    from app.incidents.flink_import import Importer

    if not args.folder.is_dir():
        raise CommandError(f"{args.folder} is no folder; name the folder in which the event logs are written")
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    with Database(args) as engine:
        importer = Importer(engine, "follow", key_paths(args), growing=True)
        follower = Follower(args.folder, importer, tuple(args.pattern or PATTERNS))
        print(f"following {args.folder}; Ctrl-C ends it", flush=True)
        follow(follower, lambda: over.wait(args.every), _tell)
    return 0


def _tell(done: Imported) -> None:
    more = [f"{done.unattributed} of no known run"] if done.unattributed else []
    more += [f"{done.garbage} lines that are no records"] if done.garbage else []
    print(f"{done.name}: {done.records} records" + "".join(f", {each}" for each in more), flush=True)
