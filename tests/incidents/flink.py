"""Event logs brought into a test's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine

from app.incidents.flink_import import Imported, Importer
from app.incidents.store import driver_url

LOGS = Path(__file__).parent.parent / "flink" / "data"
NAMES = (
    "eventlog-0.3.1-file.jsonl",
    "eventlog-0.3.1-slf4j.jsonl",
    "eventlog-head-failed-tool.jsonl",
    "eventlog-head-trace-verbose.jsonl",
)
KEY_PATHS = ("$.input.k",)


@contextmanager
def engine_of(url: str) -> Iterator[Engine]:
    engine = create_engine(driver_url(url))
    try:
        yield engine
    finally:
        engine.dispose()


def bring_in(url: str, *files: Path, growing: bool = False) -> list[Imported]:
    """Import files as `hindcast flink import` does."""
    with engine_of(url) as engine:
        importer = Importer(engine, "a test", KEY_PATHS, growing=growing)
        return [importer.import_file(file) for file in files]


def bring_in_all(url: str) -> list[Imported]:
    """Import the four real logs."""
    return bring_in(url, *(LOGS / name for name in NAMES))
