"""Follows a folder of event logs: what is new in any file, once, through rotation and restarts."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sqlalchemy.exc import OperationalError

from app.flink.reading import LogError
from app.incidents.flink_import import Imported, Importer

PATTERNS: Final = ("events-*.log*", "*event-log.log*")

log = logging.getLogger(__name__)

Seen = tuple[int, int, int, int]


class Follower:
    """Looks through a folder again and again; what a file is called plays no part in what was read of it.

    `looks` counts; what a file looked like tells whether it is worth opening, and nothing else is kept in memory.
    """

    def __init__(self, folder: Path, importer: Importer, patterns: tuple[str, ...] = PATTERNS) -> None:
        self._folder = folder
        self._importer = importer
        self._patterns = patterns
        self._seen: dict[Path, Seen] = {}
        self._troubles: dict[Path, str] = {}

    def look(self) -> list[Imported]:
        """Import what is new, oldest files first; returns the logs that brought something.

        A file that cannot be read is told in the log once, and looked at again when it has changed.
        """
        brought = []
        for path, looks in sorted(self._changed(), key=lambda one: (one[1][3], one[0])):
            done = self._import(path)
            if done is not None:
                self._seen[path] = looks
                if done.records or done.garbage:
                    brought.append(done)
        return brought

    def _changed(self) -> Iterator[tuple[Path, Seen]]:
        here = set()
        for path in self._folder.iterdir():
            if not any(fnmatch.fnmatchcase(path.name, pattern) for pattern in self._patterns):
                continue
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # rotated away while we looked
            here.add(path)
            looks = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if path.is_file() and self._seen.get(path) != looks:
                yield path, looks
        for gone in set(self._seen) - here:
            del self._seen[gone]

    def _import(self, path: Path) -> Imported | None:
        try:
            done = self._importer.import_file(path)
        except LogError as error:
            if self._troubles.get(path) != str(error):
                log.warning("%s", error)
                self._troubles[path] = str(error)
            return Imported(path.name) if path.exists() else None
        except OperationalError as error:
            log.warning("the database cannot be reached, and is tried again: %s", str(error.orig).strip())
            return None
        self._troubles.pop(path, None)
        return done


def follow(follower: Follower, wait: Callable[[], bool], tell: Callable[[Imported], None]) -> None:
    """Look until `wait` says that it is over (True), telling what each look brought."""
    while True:
        for done in follower.look():
            tell(done)
        if wait():
            return
