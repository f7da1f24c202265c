"""The pre-loaded process: imports trusted code once, then forks a confined copy of itself for each run.

Agent code is imported in the copies only, so a changed file is seen by the next run, and no run can leave anything
behind for another. Start it with `python -P -s -S -c "..."` and the arguments that `zygote` passes.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from app.sandbox import identity, interpreter, linux, namespaces, one_run
from app.sandbox.ahead import Waiting, fork_ahead
from app.sandbox.compiled import Compiled, compile_files
from app.sandbox.confine import Place, close_all_but, confine, die_with
from app.sandbox.errand import send_all
from app.sandbox.pages import Pages, gather, populate, sight, written
from app.sandbox.protocol import CONTROL_DESCRIPTOR, DESCRIPTORS_PER_RUN, RUN, Order, Start, order_in, report

# A process that is never idle learns what makes runs cheaper all the same, some orders later.
_BUSY_ORDERS: Final = 16


class _Running(NamedTuple):
    """A copy at work: its process, the descriptor that says when it ends, and where the host wants to hear of it."""

    pid: int
    watch: int
    report: int
    ahead: Waiting | None  # as which it began


def main() -> None:
    """Prepare everything that runs share, then serve the host until it goes away."""
    gc.disable()  # loading makes next to no garbage, and looking for it takes longer than many runs
    start = Start.decode(sys.argv[1])
    sys.argv[:] = [""]
    os.environ.clear()
    os.umask(0o022)
    os.closerange(CONTROL_DESCRIPTOR + 1, os.sysconf("SC_OPEN_MAX"))
    control = socket.socket(fileno=CONTROL_DESCRIPTOR)
    control.set_inheritable(False)
    linux.one_malloc_arena()
    _be_first_to_go()
    sys.path += [*start.import_path, start.app_root]
    ids = identity.spare()
    apart, refused = _go_apart(start)
    entry = _load(start)
    alive, own_life = os.pipe()
    place = Place(start, apart=apart, refused=refused, ids=ids, parent_alive=alive)
    place.prepare()
    gc.freeze()  # a collection in a run would otherwise copy every page that it only looks at
    _Zygote(control, place, entry, own_life).serve()


def _be_first_to_go() -> None:
    """Let the kernel end this process and its runs before anything else when memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _go_apart(start: Start) -> tuple[namespaces.Apart | None, str]:
    if not start.namespaces:
        return None, "switched off"
    try:
        shown = interpreter.readable(start.app_root, start.rooms, network=start.allow_network)
        own = [path for path in start.import_path if Path(path).exists()]
        whole = [*shown, *own, str(Path(start.app_root, "app"))]
        return namespaces.enter(whole, network=start.allow_network, control=CONTROL_DESCRIPTOR), ""
    except namespaces.NamespacesRefusedError as refusal:
        return None, str(refusal)


def _load(start: Start) -> Callable[[Any], Any]:
    """Import what runs need; `module` is imported, `module:function` is called as well to warm it up."""
    _restore_site_builtins()
    for name in ("app.replay.rerun_pb2", *start.preload):
        _called(name)
    _load_libraries(start.libraries)
    module, _, function = start.entry.partition(":")
    entry: Callable[[Any], Any] = getattr(importlib.import_module(module), function)
    sys.path.pop()  # the app itself is loaded; what lies beside it is none of the agent's business
    sys.dont_write_bytecode = True
    return entry


def _called(name: str) -> None:
    """Import what is named `module`, and call what is named `module:function`."""
    module, _, function = name.partition(":")
    loaded = importlib.import_module(module)
    if function:
        getattr(loaded, function)()


def _load_libraries(names: list[str]) -> None:
    """Import what the build's own environment is to have loaded before any run; ends the process where it cannot."""
    # A pool of threads would not be there in the forked copies.
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ.update(alone)
    before = _threads()  # a driver's own are known to do no harm
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001  whatever it was, the operator has to hear of it
            sys.exit(f"preload names {name!r}, which cannot be imported: {type(error).__name__}: {error}")
        if _threads() > before:
            sys.exit(
                f"preload names {name!r}, which starts threads when it is imported; they would be missing in every run,"
                " so leave it out of preload: the agent can still import it"
            )
    for name in alone:
        del os.environ[name]


def _threads() -> int:
    for root in ("", namespaces.HOST):
        with suppress(OSError):
            return len(os.listdir(root + "/proc/self/task"))  # noqa: PTH208
    return threading.active_count()


def _restore_site_builtins() -> None:
    """Give agent code `exit` and `quit`, which Python's start-up adds and ours leaves out for speed."""
    import _sitebuiltins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))


class _Zygote:
    """Takes orders from the host, one copy per order, several at a time; executes nothing itself."""

    def __init__(self, control: socket.socket, place: Place, entry: Callable[[Any], Any], own_life: int) -> None:
        self._control = control
        self._place = place
        self._entry = entry
        self._own_life = own_life
        self._running: dict[int, _Running] = {}
        self._compiled = Compiled()
        self._orders = 0
        self._latest: Order | None = None  # that somebody had a use for
        self._pages = Pages()
        self._waiting: Waiting | None = None
        self._poller = select.poll()
        self._ended: set[int] = set()  # descriptors of copies that were let go since it was asked

    def serve(self) -> None:
        """Return when the host has closed its end or is gone."""
        self._poller.register(self._control, select.POLLIN)
        if self._place.apart is not None:
            self._poller.register(self._place.apart.guard, 0)
        self._compiled.serve()
        while True:
            self._ended.clear()
            for descriptor, _ in self._poller.poll():
                if descriptor in self._ended:  # its number may be another's by now
                    continue
                if descriptor in self._running:
                    self._reap(self._running.pop(descriptor))
                elif self._waiting is not None and descriptor == self._waiting.watch:
                    self._give_up(self._waiting)
                elif descriptor == self._compiled.descriptor:
                    self._take_compiled(descriptor)
                elif descriptor == self._pages.descriptor:
                    if not self._pages.receive():
                        self._poller.unregister(descriptor)
                        self._look_ahead()
                elif descriptor == self._control.fileno():
                    if not self._take_order():
                        return
                elif self._place.apart is not None and descriptor == self._place.apart.guard:
                    return

    def _take_order(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._control, len(RUN), DESCRIPTORS_PER_RUN)
        if message != RUN:
            return False
        self._begin(descriptors, self._waiting)
        self._orders += 1
        if self._orders > 1 and self._compiled.is_due():  # a process that serves one run only has no use for it
            self._latest = order_in(descriptors[0])
            self._compile(self._latest)
        for descriptor in descriptors[:-1]:
            os.close(descriptor)
        self._look_ahead()
        return True

    def _begin(self, descriptors: list[int], waiting: Waiting | None) -> None:
        """Have one run made, by the copy that waits or else by a new one; the last descriptor is kept until it ends."""
        *_, reporting = descriptors
        if waiting is not None:
            self._waiting = None
            try:
                waiting.hand_over(descriptors)
            except OSError:
                self._end(waiting)
                waiting = None
        if waiting is not None:
            pid, watch = waiting.pid, waiting.watch
        else:
            try:
                pid = os.fork()
            except OSError as error:
                os.write(reporting, report(failed=f"no process could be made for the run: {error}"))
                os.close(reporting)
                return
            if pid == 0:
                os.close(self._own_life)
                one_run.serve(self._place, self._entry, descriptors)
            watch = os.pidfd_open(pid)
            self._poller.register(watch, select.POLLIN)
        self._running[watch] = _Running(pid, watch, reporting, waiting)
        with suppress(OSError), socket.socket(fileno=os.dup(reporting)) as channel:
            socket.send_fds(channel, [report(forked=True)], [watch])

    def _look_ahead(self) -> None:
        """See to it that a copy waits for the next order, unless others want the processor now."""
        if self._waiting is None and self._pages.is_settled() and len(self._running) <= 1:
            with suppress(OSError):
                self._waiting = fork_ahead(self._prepare_ahead, partial(one_run.serve, self._place, self._entry))
                self._poller.register(self._waiting.watch, select.POLLIN)

    def _prepare_ahead(self, keep: int) -> None:
        """Do, in a copy that waits, what a run does before it knows what to run; nobody else's channels stay open."""
        close_all_but({keep, *self._place.descriptors()})
        die_with(self._place.parent_alive)
        populate(self._pages.ranges)

    def _give_up(self, waiting: Waiting) -> None:
        self._waiting = None
        self._end(waiting)

    def _end(self, waiting: Waiting) -> None:
        """End a copy that waits, if it has not ended by itself."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(waiting.watch, signal.SIGKILL)
        self._poller.unregister(waiting.watch)
        self._ended.add(waiting.watch)
        os.close(waiting.watch)
        os.waitpid(waiting.pid, 0)
        waiting.close()

    def _take_compiled(self, descriptor: int) -> None:
        known = len(self._compiled.code)
        if not self._compiled.receive():
            self._poller.unregister(descriptor)
            if self._waiting is not None and len(self._compiled.code) != known:
                self._give_up(self._waiting)  # it would compile again what is compiled now
                self._look_ahead()

    def _compile(self, order: Order) -> None:
        """Have the agent's files compiled while the runs go on, by a process that is confined as they are."""

        def compile_confined(send: int) -> None:
            os.close(self._own_life)
            confine(self._place, order._replace(slot=order.slot + 1, scratch=""), {send})
            warnings.simplefilter("ignore")  # they are the importing run's to print
            compile_files([given for given, _ in order.places], self._compiled.code, send)

        self._compiled.begin(compile_confined)
        if self._compiled.descriptor is not None:
            self._poller.register(self._compiled.descriptor, select.POLLIN)

    def _learn_pages(self, order: Order) -> None:
        """Have a throwaway run made, confined as all are, which sends the pages that it wrote."""

        def rehearse_confined(send: int) -> None:
            os.close(self._own_life)
            seen = sight()
            nobodys = order._replace(places=[], readable=[], scratch="", slot=order.slot + 2)
            confine(self._place, nobodys, {send, seen.pagemap})
            for name in [*self._place.start.preload, *self._place.start.later][-1:]:
                _called(name)  # the rehearsal; what else there is only loads, and writes what runs do not
            send_all(send, written(seen))

        self._load_later()
        gather()
        self._pages.learn(rehearse_confined)
        if self._pages.descriptor is not None:
            self._poller.register(self._pages.descriptor, select.POLLIN)

    def _load_later(self) -> None:
        with self._compiled.set_aside():
            for name in self._place.start.later:
                with suppress(Exception):  # what cannot be had is a run's to say
                    _called(name)
        self._place.measure()
        gc.freeze()

    def _reap(self, run: _Running) -> None:
        self._poller.unregister(run.watch)
        os.close(run.watch)
        _, status, usage = os.wait4(run.pid, 0)
        if run.ahead is not None:
            left = run.ahead.left()
            if left is not None:  # it died before it looked, and nothing was begun
                self._begin([*left, run.report], None)
            run.ahead.close()
            if left is not None:
                return
        cpu_ms = int((usage.ru_utime + usage.ru_stime) * 1000)
        with suppress(OSError):
            os.write(run.report, report(ended=os.waitstatus_to_exitcode(status), cpu_ms=cpu_ms))
        os.close(run.report)
        at_leisure = not self._running or self._orders >= _BUSY_ORDERS
        if self._latest is not None and self._pages.is_due() and at_leisure:
            self._learn_pages(self._latest)
        self._look_ahead()
