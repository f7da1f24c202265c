"""`hindcast flink import`: event logs into the database, or only counted."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.commands.common import CommandError, start_logging
from app.commands.flink_logs import Database, add_log_options, key_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.incidents.flink_import import Imported


def register(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options to its parser."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--dry-run", action="store_true", help="only count what the logs hold; needs no database")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    add_log_options(parser)


def run(args: argparse.Namespace) -> int:
    """Import or count. Exit code 0, or 1 where a file could not be read to its end, or 2."""
    try:
        start_logging(args)
        return _count(args) if args.dry_run else _import(args)
    except (CommandError, ValueError) as error:
        print(f"hindcast flink import: {error}", file=sys.stderr)
        return 2


def _count(args: argparse.Namespace) -> int:
    from app.flink.counting import count_logs
    from app.flink.keys import parse_paths

    counts = count_logs(_files(args.files), parse_paths(key_paths(args)))
    _print(args, {"files": len(args.files), **counts.as_json()})
    return 1 if counts.problems else 0


def _import(args: argparse.Namespace) -> int:
    from app.flink.reading import LogError
    from app.incidents.flink_import import Importer, totals

    files, paths = _files(args.files), key_paths(args)
    with Database(args) as engine:
        importer = Importer(engine, "command line", paths)
        done: list[Imported] = []
        problems: list[str] = []
        for file in files:
            try:
                done.append(importer.import_file(file))
            except LogError as error:
                problems.append(str(error))
        counted = totals(engine, sorted({one.log_id for one in done if one.log_id}))
    _print(args, {"files": len(files), **counted, **_brought(done), "problems": problems})
    return 1 if problems else 0


def _brought(done: Sequence[Imported]) -> dict[str, Any]:
    from collections import Counter

    reasons: Counter[str] = sum((one.reasons for one in done), Counter())
    return {
        "events": sum(one.records for one in done),
        "unattributed": sum(one.unattributed for one in done),
        "garbage": sum(one.garbage for one in done),
        "incomplete": sum(bool(one.incomplete) for one in done),
        "already": [one.name for one in done if one.already],
        "reasons": dict(reasons.most_common()),
    }


def _files(given: Sequence[Path]) -> list[Path]:
    """The files, oldest first: a subtask's runs may go on from one into the next."""
    missing = [str(path) for path in given if not path.is_file()]
    if missing:
        raise CommandError(f"there is no file {missing[0]}; name event logs, such as events-*.log or *.event-log.log")
    return sorted(given, key=_begins)


def _begins(path: Path) -> tuple[int, str]:
    from app.flink.reading import LogError, open_log, read_lines
    from app.flink.records import Record, read_line

    try:
        with open_log(path) as stream:
            first = next(read_lines(stream, str(path)), None)
    except LogError:
        first = None
    record = None if first is None or first.data is None else read_line(first.data)
    return (record.time_ns if isinstance(record, Record) else 0), str(path)


_WORDS = {
    "runs": "runs",
    "keys": "keys",
    "events": "events",
    "duplicates": "logged again",
    "truncated": "cut short by the log",
    "unattributed": "of no known run",
    "unfinished": "runs without an end",
    "failed": "runs that failed",
    "not_verbose": "runs not all at VERBOSE level",
    "concluded": "placed by conclusion",
    "garbage": "lines that are no records",
    "incomplete": "files whose last line has no end yet",
}


def _print(args: argparse.Namespace, told: dict[str, Any]) -> None:
    if args.format == "json":
        print(json.dumps(told, ensure_ascii=False))
        return
    print(f"{told['files']} file{'' if told['files'] == 1 else 's'}")
    for name, words in _WORDS.items():
        if told.get(name) or name in ("runs", "events"):
            print(f"{told[name]:>12,} {words}")
    for reason, count in told["reasons"].items():
        print(f"{count:>12,} × {reason}")
    for name in told.get("already", ()):
        print(f"{name}: all of it was here already")
    for problem in told["problems"]:
        print(f"hindcast flink import: {problem}", file=sys.stderr)
