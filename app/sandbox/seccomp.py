"""The kernel's allow-list of system calls (seccomp), written as the small program that the kernel runs on each of them.

The program is assembled once before a fork and installed in it, so a run pays microseconds for it.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from app.sandbox import linux
from app.sandbox.syscalls import ABSENT, ALLOWED, ARCHITECTURES, NETWORK, Numbers

_LOAD: Final = 0x20  # A = the word at an offset of the call's description
_AND: Final = 0x54
_EQUAL: Final = 0x15
_AT_LEAST: Final = 0x35
_ABOVE: Final = 0x25
_RETURN: Final = 0x06

_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_SECCOMP_SET_MODE_FILTER: Final = 1

_OFFSET_NUMBER: Final = 0
_OFFSET_ARCHITECTURE: Final = 4
_AUDIT_ARCHITECTURE: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_ABI: Final = 0x40000000
# Calls numbered above what this table was written against: the C library has a fall-back for each.
_LAST_REVIEWED: Final = 467

_AF_UNIX: Final = 1
_AF_INET: Final = 2
_AF_INET6: Final = 10
_SOCK_TYPE: Final = 0xF
_SOCK_STREAM: Final = 1
_SOCK_DGRAM: Final = 2
_CLONE_THREAD: Final = 0x00010000
_CLONE_NEW: Final = 0x7E020000
_O_TRUNC: Final = 0x200
_O_ACCMODE: Final = 0x3
_WHOLE: Final = 0xFFFFFFFF
# Stands for a process number, which is never that large.
_OWN_PID: Final = 0x7FFFFFF1

_TERMINAL_AND_DESCRIPTOR_IOCTLS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_PRCTL_QUERIES: Final = (3, 15, 16, 21, 39, 0x53564D41)
# Each of these would let a run send signals to, or hear from, processes that are not its own.
_FCNTL_SIGNALLING: Final = (8, 10, 15, 1024, 1026)


def _refuse(error: int) -> int:
    return 0x00050000 | error


class _Test(NamedTuple):
    """One word of one argument, masked, equals a value."""

    argument: int
    value: int
    mask: int = _WHOLE
    high: bool = False

    @property
    def offset(self) -> int:
        return 16 + 8 * self.argument + (4 if self.high else 0)


class _Rule(NamedTuple):
    """What becomes of a call: `then` where all tests of any alternative hold, and `otherwise` elsewhere."""

    alternatives: tuple[tuple[_Test, ...], ...]
    then: int
    otherwise: int


def _any_of(argument: int, values: tuple[int, ...], then: int, otherwise: int) -> _Rule:
    return _Rule(tuple((_Test(argument, value),) for value in values), then, otherwise)


def _rules(*, allow_network: bool) -> dict[str, _Rule]:
    no = _refuse(errno.EPERM)
    only_self = _any_of(0, (_OWN_PID,), _ALLOW, no)
    rules = {
        # Threads yes, processes and namespaces no.
        "clone": _Rule(((_Test(0, _CLONE_THREAD, _CLONE_THREAD | _CLONE_NEW),),), _ALLOW, no),
        # Only connected pairs: a datagram socket could be pointed at somebody else's address.
        "socketpair": _Rule(((_Test(0, _AF_UNIX), _Test(1, _SOCK_STREAM, _SOCK_TYPE)),), _ALLOW, no),
        "kill": only_self,
        "tgkill": only_self,
        "prlimit64": _any_of(0, (0, _OWN_PID), _ALLOW, no),
        "prctl": _any_of(0, _PRCTL_QUERIES, _ALLOW, no),
        "fcntl": _any_of(1, _FCNTL_SIGNALLING, no, _ALLOW),
        "ioctl": _any_of(1, _TERMINAL_AND_DESCRIPTOR_IOCTLS, _ALLOW, _refuse(errno.ENOTTY)),
        # Opening for reading and truncating at once is a write that early Landlock does not see.
        "open": _Rule(((_Test(1, _O_TRUNC, _O_TRUNC | _O_ACCMODE),),), no, _ALLOW),
        "openat": _Rule(((_Test(2, _O_TRUNC, _O_TRUNC | _O_ACCMODE),),), no, _ALLOW),
    }
    if allow_network:
        rules["socket"] = _Rule(
            tuple(
                (_Test(0, family), _Test(1, kind, _SOCK_TYPE))
                for family in (_AF_INET, _AF_INET6)
                for kind in (_SOCK_STREAM, _SOCK_DGRAM)
            ),
            _ALLOW,
            no,
        )
    else:
        rules["sendto"] = _Rule(((_Test(4, 0), _Test(4, 0, high=True)),), _ALLOW, no)
    return rules


class Template:
    """The filter but for the number of the process that will carry it, which the process learns only when it lives."""

    def __init__(self, machine: str, *, allow_network: bool) -> None:
        """Assemble it; `KeyError` for a machine that `syscalls` does not cover."""
        self._code = _assemble(machine, allow_network=allow_network)
        mark = struct.pack("=I", _OWN_PID)
        self._places = [at for at in range(4, len(self._code), 8) if self._code[at : at + 4] == mark]

    def install(self, own_pid: int) -> None:
        """Carry the filter for `own_pid` from here on, in every thread to come; needs `no_new_privs`, for good."""
        code = self.program_for(own_pid)
        body = ctypes.create_string_buffer(code, len(code))
        header = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(body)), 16)
        linux.call("seccomp", _SECCOMP_SET_MODE_FILTER, 0, header)

    def program_for(self, own_pid: int) -> bytes:
        """The filter for the process that sees itself as `own_pid`: it may signal nobody else."""
        code = bytearray(self._code)
        for at in self._places:
            code[at : at + 4] = struct.pack("=I", own_pid)
        return bytes(code)


def _assemble(machine: str, *, allow_network: bool) -> bytes:
    if machine not in ARCHITECTURES:
        raise KeyError(machine)
    column = ARCHITECTURES.index(machine)
    rules = _rules(allow_network=allow_network)
    allowed: Numbers = ALLOWED | NETWORK if allow_network else ALLOWED
    code = [
        *_words(_LOAD, _OFFSET_ARCHITECTURE),
        *_words(_EQUAL, _AUDIT_ARCHITECTURE[machine], 1, 0),
        *_words(_RETURN, _KILL_PROCESS),
        *_words(_LOAD, _OFFSET_NUMBER),
        *_words(_AT_LEAST, _X32_ABI, 0, 1),
        *_words(_RETURN, _refuse(errno.EPERM)),
    ]
    numbers = {number: name for name, columns in allowed.items() if (number := columns[column]) is not None}
    for first, last in _ranges(sorted(number for number, name in numbers.items() if name not in rules)):
        code += _words(_AT_LEAST, first, 0, 2) + _words(_ABOVE, last, 1, 0) + _words(_RETURN, _ALLOW)
    for number, name in numbers.items():
        if name in rules:
            body = b"".join(_body(rules[name]))
            code += [*_words(_EQUAL, number, 0, len(body) // 8), body]
    for columns in ABSENT.values():
        if (number := columns[column]) is not None:
            code += _words(_EQUAL, number, 0, 1) + _words(_RETURN, _refuse(errno.ENOSYS))
    code += _words(_ABOVE, _LAST_REVIEWED, 0, 1) + _words(_RETURN, _refuse(errno.ENOSYS))
    code += _words(_RETURN, _refuse(errno.EPERM))
    return b"".join(code)


def _words(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> list[bytes]:
    return [struct.pack("=HBBI", operation, if_true, if_false, value)]


def _body(rule: _Rule) -> Iterator[bytes]:
    for tests in rule.alternatives:
        # From the test at `index`, a mismatch jumps over what is left of this alternative.
        sizes = [3 if test.mask != _WHOLE else 2 for test in tests]
        for index, test in enumerate(tests):
            yield from _words(_LOAD, test.offset)
            if test.mask != _WHOLE:
                yield from _words(_AND, test.mask)
            yield from _words(_EQUAL, test.value, 0, sum(sizes[index + 1 :]) + 1)
        yield from _words(_RETURN, rule.then)
    yield from _words(_RETURN, rule.otherwise)


def _ranges(numbers: list[int]) -> Iterator[tuple[int, int]]:
    start = previous = numbers[0]
    for number in numbers[1:]:
        if number != previous + 1:
            yield start, previous
            start = number
        previous = number
    yield start, previous
