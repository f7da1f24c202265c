"""What Python itself reads while a run imports, computed in the child so that another interpreter names its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_LIBRARIES: Final = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/etc/ld.so.cache",
    "/usr/share/zoneinfo",
    "/etc/mime.types",
)
# What resolving a name and checking a certificate read.
_NETWORK: Final = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/ca-trust/extracted",
    "/usr/share/ca-certificates",
)
_ROOMS: Final = ("__init__.py", "wire", "runtime", "replay")

DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def readable(app_root: str, rooms: Iterable[str] = (), *, network: bool) -> list[str]:
    """Paths that every run may read, each existing and named once; `app_root` is the folder that holds `app`.

    `rooms` are folders of `app` beside those that every run may read.
    """
    wanted = [
        *_standard_library(),
        *(entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")),
        *(str(Path(app_root, "app", room)) for room in (*_ROOMS, *rooms)),
        *_LIBRARIES,
        *(_NETWORK if network else ()),
    ]
    return [path for path in dict.fromkeys(wanted) if Path(path).exists()]


def _standard_library() -> Iterator[str]:
    """The folders of its Python part and of its compiled part, which some systems keep apart."""
    import _ctypes

    for file in (os.__file__, getattr(_ctypes, "__file__", None)):
        if file:
            yield str(Path(file).parent)
