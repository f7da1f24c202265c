"""The folder that a run may write to on the baseline tier: made, measured and removed by the host.

What lies in it was made by code that nobody vouches for, so nothing here follows links or trusts depth or modes.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_MOST_ENTRIES: Final = 10_000


def make() -> str:
    """An empty folder that only we can enter; the run gets it as its own."""
    return tempfile.mkdtemp(prefix="hindcast-run-")


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


def remove(folder: str) -> None:
    """Remove it whatever it holds: deep trees are lifted to the top level by level instead of being descended."""
    with suppress(OSError):
        Path(folder).rmdir()
        return
    with suppress(FileNotFoundError):
        Path(folder).chmod(0o700)
        while _remove_one_level(folder):
            pass
        Path(folder).rmdir()


def _remove_one_level(folder: str) -> bool:
    """Delete files, lift the contents of folders one level up; whether anything is left."""
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            Path(entry.path).unlink()
            continue
        Path(entry.path).chmod(0o700)
        with os.scandir(entry.path) as inner:
            for item in inner:
                if item.is_dir(follow_symlinks=False):
                    # A folder can be moved only by one who may write to it.
                    Path(item.path).chmod(0o700)
                    Path(item.path).rename(Path(folder, secrets.token_hex(8)))
                else:
                    Path(item.path).unlink()
        Path(entry.path).rmdir()
    return bool(entries)
