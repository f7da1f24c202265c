"""The kernel's allow-list of paths (Landlock): whatever is not named here cannot be opened, whoever the process is."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable
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


class Rule(NamedTuple):
    """A place (a descriptor opened with `O_PATH`) and the rights at it and beneath."""

    place: int
    rights: int


def rule(path: str, rights: int) -> Rule:
    """Name a place by its file, whatever path leads there later; raises `OSError` where it is not found."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        rights &= _FILE_RIGHTS  # the kernel refuses rights that a file cannot have
    return Rule(place, rights)


def restrict(rules: Iterable[Rule], *, allow_network: bool) -> str:
    """Close the file system but for `rules`.

    Needs `no_new_privs`, cannot be undone, and holds for every thread started later. Returns the name of the
    measure, with the kernel's revision. Raises `OSError` where the kernel has no Landlock.
    """
    revision = version()
    if revision == 0:
        raise OSError(errno.ENOSYS, "landlock: this kernel has none, or it is switched off")
    handled = _FIRST_VERSION_RIGHTS
    for since, right in _LATER_RIGHTS:
        if revision >= since:
            handled |= right
    ruleset = _create(revision, handled, allow_network=allow_network)
    try:
        for place, rights in rules:
            attributes = ctypes.create_string_buffer(_PATH_BENEATH.pack(rights & handled, place), _PATH_BENEATH.size)
            linux.call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, attributes, 0)
        linux.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return f"landlock-{revision}"


def _create(revision: int, handled: int, *, allow_network: bool) -> int:
    network = _TCP if revision >= 4 and not allow_network else 0
    fields = [handled]
    if revision >= 4:
        fields.append(network)
    if revision >= 6:
        fields.append(_SCOPES)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return linux.call("landlock_create_ruleset", buffer, len(attributes), 0)
