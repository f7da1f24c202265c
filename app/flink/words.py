"""The text that a run is found by: what its payloads say, and the names in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.flink.model import Run

LONGEST: Final = 64 * 1024  # characters of a run that are searched


def words_of(run: Run) -> str:
    """A run's searchable text, without repetitions, cut at `LONGEST` characters."""
    said: dict[str, None] = {}
    length = 0
    for text in _texts(run):
        if text and text not in said:
            said[text] = None
            length += len(text) + 1
            if length >= LONGEST:
                break
    return "\n".join(said)[:LONGEST]


def _texts(run: Run) -> Iterator[str]:
    yield from (run.ref, run.key or "", run.agent or "", run.stream.job)
    for one in run.executions:
        yield from (one.name, one.problem_category or "", one.error, one.error_type)
    for entry in run.entries:
        yield entry.record.type
        yield from _leaves(entry.record.attributes, 0)


def _leaves(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth > 50:
        return
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name)
            yield from _leaves(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, depth + 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
