"""The few kernel calls that Python does not wrap, each raising `OSError` with the name of the measure that failed."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Final

from app.sandbox import syscalls

MACHINE: Final = os.uname().machine

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MNT_DETACH: Final = 2

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38

_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_MOUNT_ATTR_RDONLY: Final = 1
_MOUNT_ATTR_NOSUID: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_M_ARENA_MAX: Final = -8

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
# Six arguments as the kernel's calls have them, so that nothing has to be converted one by one.
_syscall.argtypes = (ctypes.c_long,) * 7
_syscall.restype = ctypes.c_long
# Looked up once here, not once in every fork.
_prctl, _unshare, _mount, _umount = _libc.prctl, _libc.unshare, _libc.mount, _libc.umount2
_PADDING: Final = (0,) * 6


def _checked(result: int, doing: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{doing}: {os.strerror(error)}")
    return result


@cache
def _number(name: str, machine: str) -> int:
    number = syscalls.number(name, machine) if machine in syscalls.ARCHITECTURES else None
    if number is None:
        raise OSError(38, f"{name}: not known on {machine}")
    return number


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Make a raw system call; buffers go by address. Raises `OSError`, `ENOSYS` where there is no such call."""
    # What is passed by address has to outlive the call, which is why it is named.
    kept = [ctypes.create_string_buffer(item) if isinstance(item, bytes) else item for item in arguments]
    return call_with(name, *[item if isinstance(item, int) else ctypes.addressof(item) for item in kept])


def call_with(name: str, *words: int) -> int:
    """The same where everything is a number already, addresses included."""
    return _checked(_syscall(_number(name, MACHINE), *words, *_PADDING[len(words) :]), name)


def prctl(option: int, value: int, doing: str) -> None:
    """Set one attribute of this process."""
    rest = (ctypes.c_ulong(0),) * 3
    _checked(_prctl(option, ctypes.c_ulong(value), *rest), doing)


def unshare(flags: int, doing: str) -> None:
    """Leave the namespaces that `flags` names for fresh ones."""
    _checked(_unshare(flags), doing)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount or bind; paths are absolute."""
    encoded = [os.fsencode(item) if item is not None else None for item in (source, target, kind)]
    _checked(_mount(*encoded, ctypes.c_ulong(flags), data.encode() if data is not None else None), f"mount {target}")


def detach(target: str) -> None:
    """Take a mount and all below it out of view at once."""
    _checked(_umount(os.fsencode(target), MNT_DETACH), f"umount {target}")


def make_tree_read_only(target: str) -> None:
    """Make `target` and every mount below it read-only and deaf to set-uid bits."""
    attributes = ctypes.create_string_buffer(
        (_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID).to_bytes(8, "little") + bytes(24), 32
    )
    call("mount_setattr", _AT_FDCWD, os.fsencode(target), _AT_RECURSIVE, attributes, 32)


def drop_capability_bounds() -> None:
    """See to it that no capability can ever come back; without the right to do so there is none to come back."""
    for capability in range(64):
        if _prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), *(ctypes.c_ulong(0),) * 3) < 0:
            break  # past the last capability of this kernel, or not privileged


def clear_capabilities() -> None:
    """Give up every capability held now."""
    header = ctypes.create_string_buffer(_CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4), 8)
    call("capset", header, ctypes.create_string_buffer(24))


def one_malloc_arena() -> None:
    """Keep threads from reserving 64 MiB of address space each, which the memory limit would count."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
