"""`hindcast doctor`: what is configured, reachable, confined and out of date here, each with its remedy."""

from __future__ import annotations

import argparse
import json
import sys

from app.commands.common import CommandError, add_options

ILL = 1


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    add_options(parser, level="error")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of text")
    parser.add_argument("--no-brokers", action="store_true", help="leave the brokers alone")


def run(args: argparse.Namespace) -> int:
    """Look at everything and change nothing; 0 when all is well (warnings included), 1 when something is not."""
    import logging

    from app.commands.common import start_logging
    from app.commands.findings import diagnose

    try:
        start_logging(args)
        # A broker that is away is one finding, not a line for each attempt.
        logging.getLogger("hindcast.kafka").setLevel(logging.CRITICAL)
    except CommandError as error:
        print(f"hindcast doctor: {error}", file=sys.stderr)
        return 2
    findings = []
    for finding in diagnose(args.config, brokers=not args.no_brokers):
        findings.append(finding)
        if not args.json:
            print(finding.text(), flush=True)
    if args.json:
        print(json.dumps([finding.as_json() for finding in findings], indent=2))
    else:
        bad, odd = (sum(finding.word == word for finding in findings) for word in ("wrong", "warning"))
        print(f"\n{len(findings)} looked at, {bad} wrong, {odd} to be known")
    return ILL if any(finding.word == "wrong" for finding in findings) else 0
