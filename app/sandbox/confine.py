"""Shut one run in: called in its process, after the fork and before the first line of the agent's code.

Every measure is the kernel's and cannot be undone from inside. They overlap on purpose: files are closed by Landlock
and, where they can be had, by a mount namespace and a user id that owns nothing; the network by seccomp, Landlock and
a network namespace.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from app.sandbox import identity, interpreter, landlock, linux, namespaces, seccomp
from app.sandbox.audit import Watch
from app.sandbox.protocol import Order, Start

_DESCRIPTORS: Final = 256
_STANDARD: Final = 3
_HIGHEST_DESCRIPTOR: Final = os.sysconf("SC_OPEN_MAX")  # asked before a limit of ours lowers it
# Left for saying how the run ended, once the agent has used up what it may.
RESERVE_BYTES: Final = 32 * 1024 * 1024

_REMEDIES: Final = {
    "no-new-privileges": "run on Linux 3.5 or newer",
    "resource-limits": "lift the restriction on setrlimit",
    "landlock": (
        "run on Linux 5.13 or newer with Landlock among the security modules of the boot option lsm=, and in a"
        " container permit the landlock_* calls"
    ),
    "seccomp": "run on x86_64 or aarch64, with a kernel built with CONFIG_SECCOMP_FILTER",
}


class ConfinementUnavailableError(RuntimeError):
    """A measure that every run needs cannot be had; the text names it, the reason and the remedy."""

    def __init__(self, measure: str, reason: str) -> None:
        super().__init__(
            f"agent code cannot be confined here, so it does not run: {measure} is not available ({reason})."
            f" Remedy: {_REMEDIES[measure]}; or accept the risk and set sandbox.unconfined = true"
        )
        self.measure = measure


class Place:
    """What is the same for every run of one pre-loaded process."""

    def __init__(
        self,
        start: Start,
        *,
        apart: namespaces.Apart | None,
        refused: str,
        ids: identity.Spare | None,
        parent_alive: int,
    ) -> None:
        """`refused` says why there are no namespaces; `parent_alive` reads as ended when this process has died."""
        self.start = start
        self.apart = apart
        self.refused = refused
        self.ids = ids
        self.parent_alive = parent_alive
        self.readable: list[str] = []
        self.places: list[landlock.Place] = []
        self.mapped_bytes = 0
        self.filter: seccomp.Template | None = None
        self.watch = Watch(allow_network=start.allow_network)

    def prepare(self) -> None:
        """Do once what is the same for all runs; the descriptors name files, whatever a run's tree looks like."""
        self.readable = interpreter.readable(self.start.app_root, self.start.rooms, network=self.start.allow_network)
        revision = landlock.version()
        self.places = [landlock.place(path, landlock.READ, revision) for path in self.readable]
        for device in interpreter.DEVICES:
            with suppress(OSError):
                self.places.append(landlock.place(device, landlock.DEVICE, revision))
        if self.ids is not None:
            self.ids = identity.usable(self.ids, self.readable)
        linux.drop_capability_bounds()
        self.measure()
        with suppress(KeyError):  # an unknown machine is reported by each run
            self.filter = seccomp.Template(linux.MACHINE, allow_network=self.start.allow_network)

    def measure(self) -> None:
        """Take what is mapped now for what every run has; its memory limit counts from there."""
        self.mapped_bytes = _mapped_bytes()

    def descriptors(self) -> list[int]:
        """Those that a copy needs until it is confined."""
        return [self.parent_alive, *(place.descriptor for place in self.places)]


class Confined(NamedTuple):
    """What was reached (as `model.Confinement` in JSON), where the run may write, and what it can read."""

    report: dict[str, object]
    scratch: str
    readable: tuple[str, ...]


class _Measures:
    """Collects what is in force; a needed measure that fails ends the run, unless the operator said otherwise."""

    def __init__(self, *, unconfined: bool) -> None:
        self.reached: list[str] = []
        self.missing: list[str] = []
        self.complete = True
        self._unconfined = unconfined

    def note(self, measure: str, missing: str = "") -> None:
        if missing:
            self.missing.append(f"{measure}: {missing}")
        else:
            self.reached.append(measure)

    def need(self, measure: str, apply: Callable[[], str | None]) -> None:
        try:
            self.reached.append(apply() or measure)
        except (OSError, ValueError, KeyError) as error:
            if not self._unconfined:
                raise ConfinementUnavailableError(measure, str(error)) from error
            self.complete = False
            self.missing.append(f"{measure}: {error}")


def confine(place: Place, order: Order, keep: set[int]) -> Confined:
    """Apply every measure that can be had here and say which those are.

    `keep` are the descriptors that stay open beside the standard three. Raises `ConfinementUnavailableError` where
    the baseline cannot be reached, and `OSError` where a step fails that nothing can replace.
    """
    measures = _Measures(unconfined=place.start.unconfined)
    _enter_tree(place, order, measures)
    allowed = _allow_list(place, order)
    who = identity.choose(place.ids, order.slot, [real for _, real in order.places])
    scratch = _open_scratch(place, order, who)
    if scratch:
        allowed.add_path(scratch, landlock.WRITE)
    measures.need("resource-limits", lambda: _limit(order, exclusive=not who.shared))
    identity.become(who.uid, who.gid)
    identity.require_readable(real for _, real in order.places)
    measures.note("own-user", who.shared)
    measures.note("no-capabilities")
    measures.need("no-new-privileges", lambda: linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1, "no_new_privs"))
    die_with(place.parent_alive)
    measures.need("landlock", allowed.enforce)
    close_all_but(keep)
    measures.note("own-descriptors")
    measures.note("empty-environment")
    memory = place.mapped_bytes + order.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory + RESERVE_BYTES))
    measures.need("seccomp", lambda: _filter_calls(place.filter))
    return Confined(
        report={
            "tier": "none" if not measures.complete else "namespaces" if place.apart else "baseline",
            "network": "allowed" if place.start.allow_network else "off",
            "measures": measures.reached,
            "missing": measures.missing,
        },
        scratch=scratch,
        # The process's own code is loaded; its files are opened again only to show a line in an error.
        readable=(
            *place.readable,
            f"{place.start.app_root}/app",
            *sys.path,
            *(path for pair in order.places for path in pair),
            scratch,
            "/dev",
        ),
    )


def _mapped_bytes() -> int:
    """Bytes that the pre-loaded process has mapped: the memory limit counts from here."""
    for root in ("", namespaces.HOST):
        with suppress(OSError):
            return int(Path(root + "/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    raise OSError(errno.ENOENT, "/proc/self/statm cannot be read, so memory cannot be limited")


def _enter_tree(place: Place, order: Order, measures: _Measures) -> None:
    if place.apart is None:
        measures.note("namespaces", place.refused)
        return
    namespaces.enter_run(order.places)
    measures.reached += place.apart.measures
    measures.missing += place.apart.missing
    if place.start.allow_network:
        measures.note("network-namespace", "the operator allowed the network")


def _allow_list(place: Place, order: Order) -> landlock.AllowList:
    """Everything that the run may read; made while we can still reach all of it."""
    allowed = landlock.AllowList(allow_network=place.start.allow_network)
    for known in place.places:
        allowed.add(known)
    for path, whole in order.readable:
        allowed.add_path(path, landlock.READ if whole else landlock.LIST)
    return allowed


def _open_scratch(place: Place, order: Order, who: identity.Identity) -> str:
    """Make the one folder that the run may write to its working directory; empty where there is to be none."""
    if not order.scratch:
        os.chdir("/")
        return ""
    if place.apart is not None:
        namespaces.mount_scratch(who.uid, who.gid, order.scratch_bytes)
        scratch = namespaces.SCRATCH
    else:
        scratch = order.scratch
        if who.uid != os.geteuid():
            os.chown(scratch, who.uid, who.gid)
    os.chdir(scratch)
    return scratch


def _limit(order: Order, *, exclusive: bool) -> None:
    ceilings = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, order.scratch_bytes),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 256),
    ]
    if exclusive:
        # Nobody else has this user id, so the kernel can count its threads; elsewhere the host counts them.
        ceilings.append((resource.RLIMIT_NPROC, order.processes))
    for kind, ceiling in ceilings:
        _, hard = resource.getrlimit(kind)
        allowed = ceiling if hard == resource.RLIM_INFINITY else min(ceiling, hard)
        resource.setrlimit(kind, (allowed, allowed))
    resource.setrlimit(resource.RLIMIT_CPU, (order.cpu_s, order.cpu_s + 1))  # told first, then killed


def die_with(parent_alive: int) -> None:
    """End when the pre-loaded process ends, also where it ended before we could ask for that."""
    linux.prctl(linux.PR_SET_DUMPABLE, 0, "dumpable")  # first: it has a bearing on who may look into this process
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL, "parent death signal")
    watcher = select.poll()
    watcher.register(parent_alive, 0)
    if watcher.poll(0):
        os._exit(1)


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor but the standard three and those of `keep`."""
    start = _STANDARD
    for descriptor in (*sorted(keep), _HIGHEST_DESCRIPTOR):
        os.closerange(start, descriptor)
        start = descriptor + 1


def _filter_calls(template: seccomp.Template | None) -> None:
    if template is None:
        raise OSError(errno.ENOSYS, f"no list of system calls for {linux.MACHINE}")
    template.install(os.getpid())
