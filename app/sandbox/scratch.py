"""The folder that a run may write to on the baseline tier: made, measured and removed by the host.

What lies in it was made by code that nobody vouches for, so nothing here follows links or trusts depth or modes.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "hindcast-run-"
_SETTLED_S: Final = 60.0
_MOST_ENTRIES: Final = 10_000


@contextmanager
def folder() -> Iterator[str]:
    """An empty folder for one run, which only we can enter; removed at the end, whatever lies in it then."""
    path = tempfile.mkdtemp(prefix=_PREFIX)
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # says that its host lives
            yield path
        finally:
            os.close(lock)
    finally:
        remove(path)


def sweep() -> None:
    """Remove what hosts that were killed have left behind: old folders that nobody holds."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as found:
        for entry in found:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_if_left(entry)


def _remove_if_left(entry: os.DirEntry[str]) -> None:
    from app.sandbox import identity  # seldom needed, and not free to load

    status = entry.stat(follow_symlinks=False)
    ours = status.st_uid == os.geteuid() or identity.is_spare(status.st_uid)
    if not ours or not stat.S_ISDIR(status.st_mode) or time.time() - status.st_ctime < _SETTLED_S:
        return
    lock = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(entry.path)
    finally:
        os.close(lock)


def exceeds(folder: str, size: int) -> bool:
    """Whether it holds more than `size` bytes or 10,000 entries; stops counting there."""
    total = entries = 0
    pending = [folder]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as found:  # what vanishes meanwhile does not count
            for entry in found:
                entries += 1
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                if total > size or entries > _MOST_ENTRIES:
                    return True
    return False


def remove(path: str) -> None:
    """Remove it whatever it holds: deep trees are lifted to the top level by level instead of being descended."""
    with suppress(OSError):
        os.rmdir(path)  # noqa: PTH106  after every run
        return
    with suppress(FileNotFoundError):
        top = _open_folder(path, None)
        try:
            while _remove_one_level(top):
                pass
        finally:
            os.close(top)
        Path(path).rmdir()


def _remove_one_level(top: int) -> bool:
    """Delete files, lift the contents of folders one level up; whether anything is left."""
    entries = _entries(top)
    for name, is_folder in entries:
        if not is_folder:
            os.unlink(name, dir_fd=top)
            continue
        inner = _open_folder(name, top)
        try:
            for item, is_inner_folder in _entries(inner):
                if is_inner_folder:
                    # A folder can be moved only by one who may write to it.
                    os.close(_open_folder(item, inner))
                    os.rename(item, secrets.token_hex(8), src_dir_fd=inner, dst_dir_fd=top)
                else:
                    os.unlink(item, dir_fd=inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)
    return bool(entries)


def _entries(place: int) -> list[tuple[str, bool]]:
    with os.scandir(place) as found:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]


def _open_folder(name: str, place: int | None) -> int:
    """Open a folder that we may not enter yet, and never what a link in its stead points to."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    try:
        itself = f"/proc/self/fd/{handle}"
        Path(itself).chmod(0o700)
        return os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)
