"""The command `hindcast`: finds the sub-command and runs it, and loads nothing else."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from app import __version__

COMMANDS: Final = {
    "replay": "re-run one activation against its record and say where they part",
    "demo": "a whole console with a story in it, from nothing",
    "serve": "serve the console",
    "worker": "run replays that the console asked for",
    "collect": "follow pipelines, and ask them for state",
    "flink": "event logs of Flink Agents: import, follow, re-run what they recorded",
    "build": "add builds to the configuration from CI, list them, verify them",
    "export": "bring a key's evidence into one bundle",
    "check": "see whether pipelines can be reached as configured",
    "migrate": "bring the database to this version's schema",
    "audit": "check that the audit trail is whole",
    "token": "make, list and end the tokens of scripts",
    "verify": "hold all evidence against its digests",
    "backup": "write everything in the database to one file",
    "restore": "read a back-up into an empty database",
    "doctor": "say what is configured, reachable, confined and out of date",
    "purge": "remove incidents that were closed long enough ago",
    "erase": "remove everything of one key, to answer an erasure request",
}

EXIT_INTERNAL: Final = 70


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in arguments if not word.startswith("-")), None)
    parser = _parser(name)
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 2
    module = importlib.import_module(f"app.commands.{args.command}")
    try:
        code: int = module.run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception:  # noqa: BLE001 - a crash of ours must never look like a verdict
        _report(args.command)
        return EXIT_INTERNAL
    return code


def _parser(name: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hindcast", description="Incident forensics for streaming AI agents.")
    parser.add_argument("--version", action="version", version=f"hindcast {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command, summary in COMMANDS.items():
        sub = commands.add_parser(command, help=summary, description=f"{summary.capitalize()}.")
        if command == name:
            importlib.import_module(f"app.commands.{command}").register(sub)
    return parser


def _report(command: str) -> None:
    """Our own fault: say so, with what a maintainer needs."""
    print(
        f"hindcast {command} failed: this is a fault of Hindcast {__version__}, not a verdict."
        " Please report it with the lines below.\n",
        file=sys.stderr,
    )
    traceback.print_exc()


if __name__ == "__main__":
    sys.exit(main())
