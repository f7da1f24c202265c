"""Readable errors for what the kernel refuses anyway, and a note of what a run tried.

An audit hook is no barrier: code that goes past Python goes past it. It turns "Operation not permitted" into a
sentence that an agent's author understands, and the report can say what a tool tried to do.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any, Final

PREFIX: Final = "replay sandbox: "

# The host drops these again for files that do not exist: not finding them is no refusal.
READ: Final = "read "
TRIED: Final = "tried to "

_MOST: Final = 32
_LONGEST: Final = 300
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_AF_UNIX: Final = 1

Arguments = tuple[Any, ...]


class Watch:
    """Notes what one run tries and is refused: in order, each once, and only so many. Made before the fork."""

    def __init__(self, *, allow_network: bool) -> None:
        self.refusals: list[str] = []
        self._scratch = ""
        self._readable: tuple[str, ...] = ()
        self._own_pid = 0
        self._handlers = self._paths() | self._programs() | ({} if allow_network else self._network())

    def install(self, *, scratch: str, readable: tuple[str, ...]) -> None:
        """Watch this process from here on; cannot be undone.

        `readable` are the folders and files that a run opens without anyone's interest.
        """
        self._scratch, self._readable, self._own_pid = scratch, readable, os.getpid()
        handlers = self._handlers

        def hook(event: str, arguments: Arguments) -> None:
            handler = handlers.get(event)
            if handler is not None:
                handler(arguments)

        sys.addaudithook(hook)

    def _note(self, tried: str) -> None:
        text = TRIED + tried[:_LONGEST]
        if len(self.refusals) < _MOST and text not in self.refusals:
            self.refusals.append(text)

    def _refuse(self, rule: str, tried: str) -> None:
        self._note(tried)
        raise PermissionError(errno.EPERM, f"{PREFIX}{rule} (tried to {tried[:_LONGEST]})")

    def _network(self) -> dict[str, Callable[[Arguments], None]]:
        def off(what: str) -> Callable[[Arguments], None]:
            return lambda arguments: self._refuse("network is off", what.format(*map(_plain, arguments)))

        return {
            "socket.__new__": self._new_socket,
            "socket.connect": off("connect to {1}"),
            "socket.bind": off("listen at {1}"),
            "socket.sendto": off("send to {1}"),
            "socket.getaddrinfo": off("resolve the name {0}"),
            "socket.gethostbyname": off("resolve the name {0}"),
            "socket.gethostbyaddr": off("resolve the address {0}"),
            "socket.getnameinfo": off("resolve the address {0}"),
        }

    def _new_socket(self, arguments: Arguments) -> None:
        # The pair that an event loop wakes itself with is wrapped, not made, by this call.
        frame = sys._getframe(2)  # noqa: SLF001
        if frame.f_locals.get("fileno") is None:
            family = "a Unix socket" if arguments[1] == _AF_UNIX else "a network socket"
            self._refuse("network is off", f"open {family}")

    def _programs(self) -> dict[str, Callable[[Arguments], None]]:
        def off(what: str) -> Callable[[Arguments], None]:
            return lambda arguments: self._refuse("starting programs is off", what.format(*map(_plain, arguments)))

        return {
            "subprocess.Popen": off("start {1}"),
            "os.system": off("start {0}"),
            "os.exec": off("start {0}"),
            "os.posix_spawn": off("start {0}"),
            "os.spawn": off("start {1}"),
            "os.fork": off("fork"),
            "os.forkpty": off("fork"),
            "pty.spawn": off("start {0}"),
            "os.kill": self._signal,
            "os.killpg": lambda arguments: self._refuse("other processes are out of reach", "signal a group"),
        }

    def _signal(self, arguments: Arguments) -> None:
        if arguments[0] != self._own_pid:
            self._refuse("other processes are out of reach", f"signal process {_plain(arguments[0])}")

    def _paths(self) -> dict[str, Callable[[Arguments], None]]:
        def changing(what: str, *positions: int) -> Callable[[Arguments], None]:
            def check(arguments: Arguments) -> None:
                for position in positions:
                    path = _absolute(arguments[position])
                    if path is not None and not _lies_in(path, (self._scratch,)):
                        self._refuse("files outside its scratch folder cannot be changed", f"{what} {path}")

            return check

        return {
            "open": self._open,
            "os.mkdir": changing("make the folder", 0),
            "os.remove": changing("remove", 0),
            "os.rmdir": changing("remove the folder", 0),
            "os.rename": changing("rename", 0, 1),
            "os.link": changing("link", 1),
            "os.symlink": changing("link", 1),
            "os.truncate": changing("cut", 0),
        }

    def _open(self, arguments: Arguments) -> None:
        path, _, flags = arguments
        place = _absolute(path)
        if place is None or place == "/dev/null" or not isinstance(flags, int):
            return
        if flags & _WRITING:
            if not _lies_in(place, (self._scratch,)):
                self._refuse("files outside its scratch folder cannot be changed", f"write {place}")
        elif not _lies_in(place, self._readable) and not _lies_in(os.path.realpath(place), self._readable):
            # Not raised: a program that looks for a file in many places expects to be told that it is not there.
            self._note(READ + place)


def _lies_in(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(place + "/") for place in places)


def _absolute(path: object) -> str | None:
    """The path that a call means; None for a descriptor, and for a relative path, which begins in scratch."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str) or not path.startswith("/"):
        return None
    return os.path.normpath(path)


def _plain(value: object) -> str:
    """A value as text; never trusts the value's own idea of it beyond the plain types."""
    if isinstance(value, bytes):
        value = os.fsdecode(value)
    if isinstance(value, tuple) and len(value) >= 2 and type(value[0]) is str and type(value[1]) is int:
        return f"{value[0]}:{value[1]}"  # an address
    if isinstance(value, str | int | float | tuple | list):
        return repr(value)[:_LONGEST] if not isinstance(value, str) else value
    return f"<{type(value).__name__}>"
