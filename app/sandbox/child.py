"""The pre-loaded process: imports trusted code once, then forks a confined copy of itself for each run.

Agent code is imported in the copies only, so a changed file is seen by the next run, and no run can leave anything
behind for another. Start it with `python -P -s -S -c "..."` and the arguments that `zygote` passes.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import os
import resource
import select
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from app.sandbox import identity, interpreter, linux, namespaces
from app.sandbox.audit import Watch
from app.sandbox.compiled import Compiled, compile_files
from app.sandbox.confine import ConfinementUnavailableError, Place, confine
from app.sandbox.protocol import (
    CONTROL_DESCRIPTOR,
    FRAME,
    FRAME_ENDINGS,
    RUN,
    Ending,
    Order,
    Start,
    order_in,
    report,
    split_order,
)

_DESCRIPTORS_PER_RUN: Final = 4
_STDOUT, _STDERR = 1, 2


class _Running(NamedTuple):
    """A copy at work: its process, the descriptor that says when it ends, and where the host wants to hear of it."""

    pid: int
    watch: int
    report: int


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
        module, _, function = name.partition(":")
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()
    _load_libraries(start.libraries)
    module, _, function = start.entry.partition(":")
    entry: Callable[[Any], Any] = getattr(importlib.import_module(module), function)
    sys.path.pop()  # the app itself is loaded; what lies beside it is none of the agent's business
    sys.dont_write_bytecode = True
    return entry


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
        self._has_run = False
        self._poller = select.poll()

    def serve(self) -> None:
        """Return when the host has closed its end or is gone."""
        self._poller.register(self._control, select.POLLIN)
        if self._place.apart is not None:
            self._poller.register(self._place.apart.guard, 0)
        self._compiled.serve()
        while True:
            for descriptor, _ in self._poller.poll():
                if descriptor in self._running:
                    self._reap(self._running.pop(descriptor))
                elif descriptor == self._compiled.descriptor:
                    if not self._compiled.receive():
                        self._poller.unregister(descriptor)
                elif descriptor != self._control.fileno() or not self._take_order():
                    return

    def _take_order(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._control, len(RUN), _DESCRIPTORS_PER_RUN)
        if message != RUN:
            return False
        request, result, prints, reporting = descriptors
        try:
            pid = os.fork()
        except OSError as error:
            os.write(reporting, report(failed=f"no process could be made for the run: {error}"))
            os.close(reporting)
        else:
            if pid == 0:
                self._run_forked(request, result, prints, reporting)
            watch = os.pidfd_open(pid)
            self._running[watch] = _Running(pid, watch, reporting)
            self._poller.register(watch, select.POLLIN)
            with suppress(OSError), socket.socket(fileno=os.dup(reporting)) as channel:
                socket.send_fds(channel, [report(forked=True)], [watch])
        # A process that serves one run only has no use for it.
        order = order_in(request) if self._has_run and self._compiled.is_due() else None
        for descriptor in (request, result, prints):
            os.close(descriptor)
        if order is not None:
            self._compile(order)
        self._has_run = True
        return True

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

    def _reap(self, run: _Running) -> None:
        self._poller.unregister(run.watch)
        os.close(run.watch)
        _, status, usage = os.wait4(run.pid, 0)
        cpu_ms = int((usage.ru_utime + usage.ru_stime) * 1000)
        with suppress(OSError):
            os.write(run.report, report(ended=os.waitstatus_to_exitcode(status), cpu_ms=cpu_ms))
        os.close(run.report)

    def _run_forked(self, request: int, result: int, prints: int, reporting: int) -> NoReturn:
        try:
            os.close(self._own_life)
            os.dup2(prints, _STDOUT)
            os.dup2(prints, _STDERR)
            order, data = split_order(_read_all(request))
            os.close(request)
            _Run(self._place, order, self._entry).go(data, result, reporting)
        except BaseException:  # noqa: BLE001
            with suppress(OSError):
                os.write(reporting, report(failed=traceback.format_exc(limit=-3)))
        finally:
            os._exit(1)


class _Run:
    """One run, in its own process."""

    def __init__(self, place: Place, order: Order, entry: Callable[[Any], Any]) -> None:
        self._place = place
        self._order = order
        self._entry = entry

    def go(self, data: bytes, result: int, reporting: int) -> NoReturn:
        """Shut this process in, run, write the result and end."""
        try:
            confined = confine(self._place, self._order, {result, reporting})
        except (ConfinementUnavailableError, OSError) as error:
            os.write(reporting, report(refused=str(error)))
            os._exit(0)
        watch = self._place.watch
        watch.install(scratch=confined.scratch, readable=confined.readable)
        os.write(reporting, report(confined=confined.report))
        os.close(reporting)
        tempfile.tempdir = confined.scratch
        with suppress(Exception):
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        gc.enable()
        ending, payload = self._answer(data, watch)
        _write_all(result, FRAME.pack(bytes.fromhex(self._order.nonce), FRAME_ENDINGS.index(ending), len(payload)))
        _write_all(result, payload)
        os._exit(0)

    def _answer(self, data: bytes, watch: Watch) -> tuple[Ending, bytes]:
        from app.replay.rerun_pb2 import RerunRequest, RerunResult  # imported by now: see `_load`

        ending, answer = Ending.FINISHED, RerunResult()
        try:
            given = self._entry(RerunRequest.FromString(data))
            answer.CopyFrom(given)
        except SystemExit as leaving:
            ending, answer = Ending.EXITED_EARLY, RerunResult(error_detail=f"the agent called exit({leaving.code!r})")
        except MemoryError:
            ending, answer = Ending.MEMORY_LIMIT, RerunResult()
        except BaseException as error:  # noqa: BLE001
            detail = "".join(traceback.format_exception(error, limit=-8))
            ending, answer = Ending.CRASHED, RerunResult(error_type=type(error).__name__, error_detail=detail)
        if ending is Ending.MEMORY_LIMIT:
            _use_reserve()
        _flush()
        answer.refusals.extend(watch.refusals)
        payload = answer.SerializeToString()
        if len(payload) > self._order.result_bytes:
            return Ending.RESULT_TOO_LARGE, RerunResult(error_detail=f"{len(payload)} bytes").SerializeToString()
        return ending, payload


def _use_reserve() -> None:
    """Lift the memory limit by what was kept back for answering."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _read_all(descriptor: int) -> bytes:
    """The whole of a file whose position is not ours to move."""
    size = os.fstat(descriptor).st_size
    data = os.pread(descriptor, size, 0)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), len(data))):
        data += more
    return data


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
