"""A lock: which versions an environment holds, as text that other tools write and read too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_LINE: Final = re.compile(r"\s*(?:#\s*(?=python==))?([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\,]+)")


def read_lock(text: str) -> dict[str, str]:
    """Versions by normalised name, from lines `name==version` as `pip freeze` and its like write them."""
    found = (_LINE.match(line) for line in text.splitlines())
    return {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in found if match}


def write_lock(python: str, packages: Mapping[str, str]) -> str:
    """The reverse; a line for Python comes first."""
    lines = [f"# python=={python}", *(f"{name}=={version}" for name, version in sorted(packages.items()))]
    return "\n".join(lines) + "\n"
