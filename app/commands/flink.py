"""`hindcast flink`: what there is for agents of Flink Agents, a verb each; only the verb that is used is loaded."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Final

SUMMARY: Final = "event logs of Flink Agents: import, follow, re-run what they recorded"

VERBS: Final = {
    "import": "read event logs (also gzip) into the database, each line once",
    "follow": "follow the event logs of a folder as they grow and are rotated",
    "replay": "re-run recorded inputs with a build, contained, and say where they part",
}


def register(parser: argparse.ArgumentParser) -> None:
    """Add the verbs, and the options of the one that is asked for."""
    asked = next((word for word in sys.argv[1:] if word in VERBS), None)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, summary in VERBS.items():
        sub = verbs.add_parser(verb, help=summary, description=f"{summary.capitalize()}.")
        if asked in (verb, None):
            importlib.import_module(f"app.commands.flink_{verb}").register(sub)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns its exit code."""
    code: int = importlib.import_module(f"app.commands.flink_{args.verb}").run(args)
    return code
