"""The kernel's allow-list of paths (Landlock): whatever is not named here cannot be opened, whoever the process is."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from functools import cache
from typing import Final, NamedTuple

from app.sandbox import linux

_CREATE_RULESET_VERSION: Final = 1
_PATH_BENEATH: Final = struct.Struct("=Qi")
_RULE_PATH_BENEATH: Final = 1

_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_REMOVE_DIR: Final = 1 << 4
_REMOVE_FILE: Final = 1 << 5
_MAKE_DIR: Final = 1 << 7
_MAKE_REG: Final = 1 << 8
_MAKE_SYM: Final = 1 << 12
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_IOCTL_DEV: Final = 1 << 15

_FIRST_VERSION_RIGHTS: Final = (1 << 13) - 1
_LATER_RIGHTS: Final = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV))
_TCP: Final = 0b11  # bind and connect
_SCOPES: Final = 0b11  # abstract Unix sockets and signals stay inside

_FILE_RIGHTS: Final = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
READ: Final = _READ_FILE | _READ_DIR
LIST: Final = _READ_DIR
DEVICE: Final = _READ_FILE | _WRITE_FILE
WRITE: Final = READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SYM | _REFER | _TRUNCATE


def version() -> int:
    """Which revision of Landlock the kernel offers; 0 where it offers none."""
    try:
        return linux.call("landlock_create_ruleset", 0, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


@cache
def handled(revision: int) -> int:
    """The rights that a kernel with this revision of Landlock knows."""
    rights = _FIRST_VERSION_RIGHTS
    for since, right in _LATER_RIGHTS:
        if revision >= since:
            rights |= right
    return rights


class Place(NamedTuple):
    """A file or folder (a descriptor opened with `O_PATH`), and what the kernel is told of the rights there."""

    descriptor: int
    rule: ctypes.Array[ctypes.c_char]
    address: int  # of the rule


def place(path: str, rights: int, revision: int) -> Place:
    """Name a place by its file, whatever path leads there later; raises `OSError` where it is not found."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _FILE_RIGHTS  # the kernel refuses rights that a file cannot have
    packed = _PATH_BENEATH.pack(rights & handled(revision), descriptor)
    rule = ctypes.create_string_buffer(packed, len(packed))
    return Place(descriptor, rule, ctypes.addressof(rule))


class AllowList:
    """The places that a process is about to be restricted to. Without Landlock it is empty, and `enforce` fails."""

    def __init__(self, *, allow_network: bool) -> None:
        self.revision = version()
        self._handled = handled(self.revision)
        self._ruleset = -1 if self.revision == 0 else self._create(allow_network=allow_network)

    def _create(self, *, allow_network: bool) -> int:
        fields = [self._handled]
        if self.revision >= 4:
            fields.append(0 if allow_network else _TCP)
        if self.revision >= 6:
            fields.append(_SCOPES)
        attributes = struct.pack(f"={len(fields)}Q", *fields)
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        return linux.call("landlock_create_ruleset", buffer, len(attributes), 0)

    def add(self, allowed: Place) -> None:
        """Allow one place."""
        if self._ruleset >= 0:
            linux.call_with("landlock_add_rule", self._ruleset, _RULE_PATH_BENEATH, allowed.address, 0)

    def add_path(self, path: str, rights: int) -> None:
        """Allow one place, found now."""
        found = place(path, rights, self.revision)
        self.add(found)
        os.close(found.descriptor)

    def enforce(self) -> str:
        """Close the file system but for these places, for this thread and every one started later, for good.

        Needs `no_new_privs`. Returns the name of the measure, with the kernel's revision. Raises `OSError` where the
        kernel has no Landlock.
        """
        if self._ruleset < 0:
            raise OSError(errno.ENOSYS, "landlock: this kernel has none, or it is switched off")
        linux.call("landlock_restrict_self", self._ruleset, 0)
        os.close(self._ruleset)
        return f"landlock-{self.revision}"
