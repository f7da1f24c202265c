"""A view of the machine in which there is no network, no other process and no file but the listed ones.

Where the kernel grants it, the pre-loaded process lives in namespaces of its own. Three processes take part: the
*guard*, which the host starts and which waits outside; a *helper*, which enters the namespaces and ends; and the
*zygote*, the first process inside. When a step is refused the guard, which never entered anything, goes on as the
zygote itself, on the baseline tier.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from app.sandbox import linux
from app.sandbox.interpreter import DEVICES

# The machine's own tree: still there for the zygote, gone from every run.
HOST: Final = "/.host"
# One name for all runs, each of which has a scratch folder of its own there.
SCRATCH: Final = "/scratch"

_SCRATCH_ENTRIES: Final = 10_000
_MEASURES: Final = ("user-namespace", "mount-namespace", "pid-namespace", "ipc-namespace")
_ADOPTED: Final = b"adopted"
_APART: Final = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
_MOUNT_POINTS: Final = ("/tmp", "/mnt", "/media", "/srv", "/opt")  # noqa: S108


class NamespacesRefusedError(Exception):
    """Namespaces cannot be had here; the text says which step was refused."""


class Apart(NamedTuple):
    """What the zygote reached, and the descriptor that reads as ended once its guard has died."""

    guard: int
    measures: tuple[str, ...]
    missing: tuple[str, ...]


def enter(paths: Iterable[str], *, network: bool, control: int) -> Apart:
    """Go on in a process apart from the machine, whose tree shows `paths` (read from `HOST`) and nothing else.

    Returns in the zygote only. The guard closes `control`, waits and exits. Raises `NamespacesRefusedError` in the
    caller, which is then as it was. Needs a process with one thread.
    """
    to_guard, from_inside = os.pipe()
    to_inside, from_guard = os.pipe()
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1, "subreaper")
    helper = os.fork()
    if helper == 0:
        os.close(to_guard)
        os.close(from_guard)
        return _go_inside(paths, network=network, tell=from_inside, hear=to_inside)
    os.close(from_inside)
    os.close(to_inside)
    refusal = _help(to_guard, from_guard)
    os.close(to_guard)
    if refusal is None:
        os.close(control)
        os.waitpid(helper, 0)
        os.write(from_guard, _ADOPTED)  # only now is the zygote our child
        _wait_for_all()
        os._exit(0)
    os.close(from_guard)
    _wait_for_all()
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 0, "subreaper")
    raise NamespacesRefusedError(refusal)


def enter_run(places: Iterable[tuple[str, str]]) -> None:
    """Give one run its own tree, read-only: the zygote's, the agent's `places`, and nothing of the machine."""
    linux.unshare(linux.CLONE_NEWNS, "mount namespace of a run")
    for given, real in places:
        _bind(real, real)
        if given != real:
            _bind(real, given)
    linux.detach(HOST)
    linux.make_tree_read_only("/")


def mount_scratch(uid: int, gid: int, size: int) -> None:
    """Give one run an empty folder in memory, `size` bytes at most, that ends with it."""
    options = f"size={size},nr_inodes={_SCRATCH_ENTRIES},mode=700,uid={uid},gid={gid}"
    linux.mount("scratch", SCRATCH, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, options)


def _help(hear: int, tell: int) -> str | None:
    """Map the user ids of the process inside, which only one outside may do; returns what was refused."""
    while True:
        word, _, rest = os.read(hear, 4096).decode(errors="replace").partition(" ")
        if word == "map":
            try:
                _map_users(int(rest))
            except OSError as error:
                return f"mapping user ids: {error}"
            os.write(tell, b"mapped")
        elif word == "ready":
            return None
        else:
            return rest or "the process inside ended without a word"


def _map_users(pid: int) -> None:
    """Map every user id to itself where we may (root), and our own otherwise: inside, numbers stay as they are."""
    process = Path("/proc", str(pid))
    for kind, own in (("gid_map", os.getegid()), ("uid_map", os.geteuid())):
        if os.geteuid() == 0:
            lines = [line.split() for line in Path("/proc/self", kind).read_text().splitlines()]
            mapping = "".join(f"{inside} {inside} {count}\n" for inside, _, count in lines)
        else:
            if kind == "gid_map":
                (process / "setgroups").write_text("deny")
            mapping = f"{own} {own} 1\n"
        (process / kind).write_text(mapping)


def _go_inside(paths: Iterable[str], *, network: bool, tell: int, hear: int) -> Apart:
    try:
        missing = _unshare(network=network)
        if not missing:
            os.write(tell, f"map {os.getpid()}".encode())
            if os.read(hear, 16) != b"mapped":
                os._exit(1)
        if os.fork():
            os._exit(0)
        _build_tree(list(paths))
        os.write(tell, b"ready")
        os.close(tell)
        # The guard's death is ours, and ours that of every run: we are the first process of its namespace.
        if os.read(hear, 16) != _ADOPTED:
            os._exit(1)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL, "parent death signal")
    except OSError as error:
        _fail(tell, str(error))
    reached = _MEASURES[1:] if missing else _MEASURES
    return Apart(hear, reached if network else (*reached, "network-namespace"), missing)


def _unshare(*, network: bool) -> tuple[str, ...]:
    """Leave the machine's namespaces; says what is missing where root has to do without user namespaces."""
    flags = _APART if network else _APART | linux.CLONE_NEWNET
    try:
        linux.unshare(flags | linux.CLONE_NEWUSER, "namespaces")
    except OSError as error:
        if os.geteuid() != 0:
            raise
        linux.unshare(flags, "namespaces")
        return (f"user-namespace: {error}",)
    return ()


def _fail(tell: int, reason: str) -> NoReturn:
    os.write(tell, f"failed {reason}".encode()[:4000])
    os._exit(1)


def _wait_for_all() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _build_tree(paths: list[str]) -> None:
    """Swap the root for an empty one in memory that shows `paths`, writable for now: the zygote caches bytecode."""
    places = [(path, os.path.realpath(path)) for path in (*paths, *DEVICES)]
    point = next((place for place in _MOUNT_POINTS if Path(place).is_dir()), None)
    if point is None:
        raise OSError(2, f"none of {', '.join(_MOUNT_POINTS)} exists to mount on")
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("hindcast", point, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=4m,mode=755")
    Path(point + HOST).mkdir()
    linux.call("pivot_root", os.fsencode(point), os.fsencode(point + HOST))
    os.chdir("/")
    Path(SCRATCH).mkdir()
    # Shorter first: what lies in a place already shown needs no mount of its own.
    for given, real in sorted(places, key=lambda place: len(place[0])):
        if not _is_shown(given):
            _bind(real, given)


def _is_shown(path: str) -> bool:
    return os.path.exists(path) and not _is_our_own(path)  # noqa: PTH110


def _is_our_own(path: str) -> bool:
    """Whether `path` is part of the empty tree: a folder that exists only as a way to something."""
    return os.stat(path).st_dev == os.stat("/").st_dev  # noqa: PTH116


def _bind(source: str, target: str) -> None:
    """Show what the machine has at `source` (a real path) at `target`."""
    origin = HOST + source
    if not os.path.exists(target):  # noqa: PTH110  in every run, where a `Path` costs as much as the mount
        if Path(origin).is_dir():
            Path(target).mkdir(parents=True, exist_ok=True)
        else:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(target).touch()
    linux.mount(origin, target, None, linux.MS_BIND | linux.MS_REC)
