"""Who a run is: where root started us, a user of its own that owns nothing on the machine.

The agent's files decide how far this can go. Where only their owner can read them, the run becomes that owner, without
any capability, and the report says so.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from app.sandbox import linux

# How many entries of an agent's folder are tried.
_LOOKED_AT: Final = 500


class Spare(NamedTuple):
    """A range of user ids that nobody on the machine uses."""

    first: int
    length: int


# Far above any account; then, for a container that maps only 65,536 ids, below those that others like to use.
_SPARE: Final = (Spare(0x70000000, 0x0F000000), Spare(65000, 500))


def is_spare(uid: int) -> bool:
    """Whether a user id is one that only runs have."""
    return any(candidate.first <= uid < candidate.first + candidate.length for candidate in _SPARE)


def spare() -> Spare | None:
    """Find user ids for runs, where we may change ours; read before the machine's `/proc` is out of sight."""
    if os.geteuid() != 0:
        return None
    extents = [[int(word) for word in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for candidate in _SPARE:
        for inside, _, size in extents:
            if inside <= candidate.first and candidate.first + candidate.length <= inside + size:
                return candidate
    return None


def usable(ids: Spare, needed: Iterable[str]) -> Spare | None:
    """The same range, if its users can read what every run needs to; called once, in the process that forks runs."""
    try:
        os.setgroups([])
        return ids if _unreadable(ids.first, ids.first, needed) is None else None
    except PermissionError:
        return None


class Identity(NamedTuple):
    """User and group of a run, and why they are not its own (empty when they are)."""

    uid: int
    gid: int
    shared: str


def choose(ids: Spare | None, slot: int, agents: Iterable[str]) -> Identity:
    """Pick the identity for a run that reads the folders `agents`: `slot` picks among `ids`. Changes nothing."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        return Identity(uid, gid, "only root can give each run a user of its own")
    if ids is None:
        return Identity(uid, gid, "another user could not read the interpreter here, or changing the user is refused")
    own = ids.first + slot % ids.length
    paths = list(_with_entries(agents))
    unreadable = _unreadable(own, own, paths)
    if unreadable is None:
        return Identity(own, own, "")
    owner = Path(unreadable).stat()
    if _unreadable(owner.st_uid, owner.st_gid, paths) is None:
        return Identity(owner.st_uid, owner.st_gid, f"only user {owner.st_uid} can read {unreadable}")
    return Identity(uid, gid, f"no single user can read {unreadable} and the rest of the agent")


def become(uid: int, gid: int) -> None:
    """Take on the identity for good, and give up every capability; `linux.drop_capability_bounds` went before."""
    if (uid, gid) != (os.geteuid(), os.getegid()):
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    linux.clear_capabilities()


def require_readable(agents: Iterable[str]) -> None:
    """Refuse to go on where the agent would only be "not found"; raises `PermissionError` with the remedy."""
    for path in agents:
        if not _can_read(path):
            raise PermissionError(
                errno.EACCES,
                f"user {os.geteuid()}, as which the agent has to run here, cannot read {path}; make it readable",
            )


def _unreadable(uid: int, gid: int, paths: Iterable[str]) -> str | None:
    """The first path that this identity could not read."""
    os.setegid(gid)
    os.seteuid(uid)
    try:
        return next((path for path in paths if not _can_read(path)), None)
    finally:
        os.seteuid(0)
        os.setegid(0)


def _with_entries(folders: Iterable[str]) -> Iterator[str]:
    """The folders and what can be imported from them directly."""
    for folder in folders:
        yield folder
        if not os.path.isdir(folder):  # noqa: PTH112  in every run
            continue
        with os.scandir(folder) as entries:
            for entry in islice(entries, _LOOKED_AT):
                if not entry.name.startswith(".") and (entry.name.endswith((".py", ".so")) or entry.is_dir()):
                    yield entry.path


def _can_read(path: str) -> bool:
    wanted = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK  # noqa: PTH112 (a path out of reach is no error)
    return os.access(path, wanted, effective_ids=True)
