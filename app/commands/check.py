"""`hindcast check`: connects to each pipeline and says, topic by topic, what it found and how to mend it."""

from __future__ import annotations

import argparse
import sys

from app.commands.common import CommandError, add_options


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    add_options(parser, level="error")
    parser.add_argument("--pipelines", metavar="A,B", help="check only these pipelines (default: all)")


def run(args: argparse.Namespace) -> int:
    """Check; exit code 1 when something stands in the way. Reads only, and needs no database."""
    from app.commands.collect import chosen
    from app.commands.common import read_settings, start_logging
    from app.kafka.check import check, render

    try:
        start_logging(args)
        pipelines = chosen(args.pipelines, read_settings(args.config))
    except CommandError as error:
        print(f"hindcast check: {error}", file=sys.stderr)
        return 2
    reports = [check(pipeline) for pipeline in pipelines]
    print(render(reports), end="")
    return 0 if all(report.ok for report in reports) else 1
