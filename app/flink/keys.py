"""Finds the key of a record that carries none: by configured paths into its payload, such as `$.input.customer.id`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")

Path = tuple[str | int, ...]


def parse_path(text: str) -> Path:
    """Read `$.input.k` or `input.items[0].k`. Raises `ValueError` for what is no such path."""
    rest = text.strip().removeprefix("$")
    rest = rest if rest.startswith((".", "[")) else f".{rest}"
    steps: list[str | int] = []
    at = 0
    while at < len(rest):
        step = _STEP.match(rest, at)
        if step is None:
            raise ValueError(f"{text!r} is no path to a key: write $.input.customer.id or $.input.items[0].id")
        steps.append(step[1] if step[2] is None else int(step[2]))
        at = step.end()
    return tuple(steps)


def parse_paths(texts: Iterable[str]) -> tuple[Path, ...]:
    """Read several paths; the first that leads to a value gives the key."""
    return tuple(parse_path(text) for text in texts)


def find_key(payload: Mapping[str, Any], paths: Iterable[Path]) -> str | None:
    """The text of the first scalar that a path leads to; JSON inside a text is entered as if it stood there."""
    for path in paths:
        value: Any = payload
        for step in path:
            value = _enter(value, step)
        if isinstance(value, str):
            return value
        if isinstance(value, bool | int | float):
            return json.dumps(value)
    return None


def _enter(value: Any, step: str | int) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, dict) and isinstance(step, str):
        return value.get(step)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return None
