"""Which of the agent's paths a run can open: its own code, and never a place that holds more than that.

Everything here errs on the closed side: a path that would open more than an agent's folder is refused with the reason.
"""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from app.sandbox.model import AgentPathError

# Inside an agent's folder these, and names that begin with a dot, belong to the machine and not to the agent's code.
_PRIVATE_NAMES: Final = ("hindcast.toml",)
_SYSTEM: Final = ("/proc", "/sys", "/dev", "/run", "/etc", "/boot")
_WIDE: Final = ("/", "/home", "/root", "/tmp", "/var", "/usr", "/opt", "/srv", "/mnt", "/media", "/var/tmp", "/var/lib")  # noqa: S108


def agent_paths(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Check the folders (or archives) that hold the agent: pairs of each path as given and where it really is.

    Raises `AgentPathError` for one that is relative, missing, or so wide that it would open the machine.
    """
    checked: dict[str, str] = {}
    for path in paths:
        if not os.path.isabs(path):  # noqa: PTH117  before every run, where a `Path` costs more than it asks
            raise AgentPathError(f"agent path {path!r} is relative; give it in full")
        real = os.path.realpath(path)
        if not os.path.exists(real):  # noqa: PTH110
            raise AgentPathError(f"agent path {path!r} does not exist")
        for form in (os.path.normpath(path), real):
            _refuse_wide(path, form)
        checked[os.path.normpath(path)] = real
    return list(checked.items())


def _refuse_wide(given: str, path: str) -> None:
    inside = next((place for place in _SYSTEM if path == place or path.startswith(place + "/")), None)
    if inside is not None:
        raise AgentPathError(
            f"agent path {given!r} lies in {inside}, which no replay may read; copy the agent elsewhere"
        )
    if path in _WIDE or path in _own_places(os.environ.get("HOME"), os.geteuid(), tempfile.gettempdir()):
        raise AgentPathError(
            f"agent path {given!r} would let the agent read far more than its own code;"
            " name the folder that holds its modules"
        )


@cache
def _own_places(home: str | None, uid: int, temporary: str) -> frozenset[str]:
    """Home folders, the place of temporary files and the app's own; the arguments are what they depend on."""
    places = {os.path.realpath(temporary), app_root()}
    if home:
        places.add(os.path.realpath(home))
    with suppress(KeyError):  # a container may run under a uid that no password file knows
        places.add(os.path.realpath(pwd.getpwuid(uid).pw_dir))
    return frozenset(places)


@cache
def app_root() -> str:
    """The folder that holds the package `app`: a checkout, or the place where packages are installed."""
    return str(Path(os.path.realpath(__file__)).parents[2])


def readable(path: str, denied: Iterable[str]) -> list[tuple[str, bool]]:
    """Cover one agent path except for what is denied: pairs of a path and whether all beneath it may be read.

    Denied are the given paths, `hindcast.toml`, and whatever begins with a dot at the top. A folder on the way to
    something denied can only be listed, and its other entries are covered one by one, as they are now.
    """
    hidden = {os.path.realpath(item) for item in denied} | set(_private(path))
    return list(_cover(path, hidden))


def _private(path: str) -> Iterator[str]:
    if not os.path.isdir(path):  # noqa: PTH112
        return
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name in _PRIVATE_NAMES or entry.name.startswith("."):
                yield entry.path


def _cover(path: str, hidden: set[str]) -> Iterator[tuple[str, bool]]:
    if path in hidden:
        return
    if not any(item.startswith(path + "/") for item in hidden):
        yield path, True
        return
    yield path, False
    with os.scandir(path) as entries:
        for entry in entries:
            # What a link points to is covered in its own right, or not at all.
            if not entry.is_symlink():
                yield from _cover(entry.path, hidden)
