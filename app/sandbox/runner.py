"""Run one activation where it can reach nothing: the host's side of the sandbox."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from google.protobuf.message import DecodeError

from app.replay.rerun_pb2 import RerunRequest, RerunResult
from app.sandbox import channels, drivers, paths, scratch, zygote
from app.sandbox.audit import READ, TRIED
from app.sandbox.model import Ending, Finished, Limits, SandboxError
from app.sandbox.protocol import FRAME, FRAME_ENDINGS, NONCE_BYTES, Order, Start, order_and_request
from app.sandbox.supervise import Outcome, Supervisor
from app.sandbox.zygote import Zygote, ZygoteGoneError

if TYPE_CHECKING:
    from app.sandbox.environment import Environment

# A run that ignores the warning is killed, and the two clocks that count a second of its time differ a little.
_CPU_ACCOUNTED_MS: Final = 800
DEFAULT_LIMITS: Final = Limits()


class Sandbox:
    """One pre-loaded process for one agent build, and the runs that are forked from it.

    `run` may be called from several threads at once; each call is a process of its own. A pre-loaded process that
    dies is replaced by the next run, and so is one whose `interpreter` has other packages now. `denied` are files that
    no run may read even where they lie inside an agent's folder. `driver` names what runs the activations; `entry` and
    `preload` (modules to import before any run, or functions to call: `module:function`) are the driver's unless
    given; `later` are more of them, for a process that most likely serves one run and then serves others all the same.
    `libraries` are modules of the environment that are imported before any run as well.
    `namespaces=False` keeps to the baseline tier. `unconfined` runs the code even where the baseline cannot
    be reached, and is only ever the operator's explicit word (setting `sandbox.unconfined`).
    """

    def __init__(
        self,
        *,
        interpreter: Path | None = None,
        driver: str = drivers.DEFAULT,
        entry: str | None = None,
        preload: Iterable[str] | None = None,
        later: Iterable[str] = (),
        libraries: Iterable[str] = (),
        import_path: Iterable[str] | None = None,
        denied: Iterable[str] = (),
        allow_network: bool = False,
        unconfined: bool = False,
        namespaces: bool = True,
    ) -> None:
        self._driver = driver
        chosen = drivers.driver(driver)
        self._interpreter = _unlinked(interpreter) if interpreter else Path(sys.executable)
        # Our own interpreter has what we need, and a path that is given was looked at by whoever gives it.
        self._looks = interpreter is not None and import_path is None
        self._allow_network = allow_network
        self._denied = tuple(denied)
        self._start = Start(
            entry=entry or chosen.entry,
            preload=list(chosen.warm if preload is None else preload),
            later=list(later),
            libraries=list(libraries),
            import_path=zygote.import_path() if import_path is None else list(import_path),
            app_root=paths.app_root(),
            rooms=list(chosen.rooms),
            namespaces=namespaces,
            allow_network=allow_network,
            unconfined=unconfined,
        )
        self._lock = threading.Lock()
        self._environment: Environment | None = None
        self._zygote: Zygote | None = None
        self._outdated: list[Zygote] = []
        self._closed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process that the host started, for whoever watches over it; None while there is none."""
        living = self._zygote
        return None if living is None else living.pid

    def start(self) -> None:
        """Begin to load, and return at once; `run` does so itself where this was not called."""
        self._live_zygote()

    def environment(self) -> Environment:
        """The interpreter that runs are made in and what is installed there, as the latest process found it.

        Raises `SandboxError` where it cannot run replays.
        """
        with self._lock:
            if self._environment is None:
                from app.sandbox import environment  # our own interpreter is looked at only when asked for

                own = None if self._looks else environment.own(self._start.import_path)
                self._environment = own or environment.look_at(self._interpreter)
            return self._environment

    def close(self) -> None:
        """End the pre-loaded process and every run; safe to call twice."""
        with self._lock:
            self._closed = True
            living = [*self._outdated, *([] if self._zygote is None else [self._zygote])]
            self._outdated, self._zygote = [], None
        for one in living:
            one.close()

    def run(
        self, request: RerunRequest, limits: Limits = DEFAULT_LIMITS, *, stop: threading.Event | None = None
    ) -> Finished:
        """Run one request to its end, whatever that is; `stop` cancels it within a tenth of a second.

        Raises `AgentPathError` for a search path that must not be opened, `ValueError` for a request that wants the
        network from a sandbox without it, and `SandboxError` where the pre-loaded process does not start.
        """
        if request.allow_network and not self._allow_network:
            raise ValueError(
                "the request allows the network and this sandbox does not; create it with allow_network=True"
            )
        places = paths.agent_paths(request.code.paths)
        readable = [item for _, real in places for item in paths.readable(real, self._denied)]
        data = request.SerializeToString()
        begun = time.monotonic()
        with scratch.folder() as folder:
            nonce = secrets.token_bytes(NONCE_BYTES)
            order = Order(
                places=places,
                readable=readable,
                scratch=folder,
                slot=secrets.randbits(32),
                nonce=nonce.hex(),
                cpu_s=limits.cpu_s,
                memory_bytes=limits.memory_bytes,
                processes=limits.processes,
                scratch_bytes=limits.scratch_bytes,
                result_bytes=limits.result_bytes,
            )
            outcome = self._attempt(order_and_request(order, data), folder, limits, stop)
        return _conclude(outcome, nonce, limits, (time.monotonic() - begun) * 1000)

    def _attempt(self, request: bytes, folder: str, limits: Limits, stop: threading.Event | None) -> Outcome:
        """Follow the order; once more with a new process where the old one had died before it took the order."""
        complaint = ""
        for _ in range(2):
            with self._held() as living, channels.open_for(request) as (ours, theirs):
                try:
                    living.send(theirs.descriptors())
                except ZygoteGoneError:
                    outcome = Outcome(stuck=True)
                else:
                    theirs.close()
                    outcome = Supervisor(ours, folder, limits, stop).follow()
            if outcome.stuck or not outcome.taken:
                complaint = self._abandon(living)
            if outcome.taken:
                return outcome
        raise SandboxError(f"the sandbox does not start: {complaint or 'its process ended without a word'}")

    @contextmanager
    def _held(self) -> Iterator[Zygote]:
        """A live process, which is not ended meanwhile because it has become outdated."""
        living = self._live_zygote()
        with self._lock:
            living.holders += 1
        try:
            yield living
        finally:
            with self._lock:
                living.holders -= 1
            self._end_outdated()

    def _live_zygote(self) -> Zygote:
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._zygote is not None and not self._zygote.alive():
                self._zygote.close()
                self._zygote = None
            if self._looks and self._environment is not None and not self._environment.is_current():
                self._outdated += [] if self._zygote is None else [self._zygote]
                self._zygote = self._environment = None
            if self._zygote is None:
                self._zygote = Zygote(self._interpreter, self._looked_at())
                scratch.sweep()  # while it loads
            living = self._zygote
        self._end_outdated()
        return living

    def _looked_at(self) -> Start:
        """How to start a process in the interpreter as it is now; raises `InterpreterError` where it cannot serve."""
        if not self._looks:
            return self._start
        from app.sandbox.environment import look_at

        found = look_at(self._interpreter)
        found.require(self._driver, drivers.driver(self._driver))
        self._environment = found
        return self._start._replace(import_path=list(found.import_path))

    def _end_outdated(self) -> None:
        with self._lock:
            over = [one for one in self._outdated if one.holders == 0]
            self._outdated = [one for one in self._outdated if one.holders > 0]
        for one in over:
            one.close()

    def _abandon(self, living: Zygote) -> str:
        """Never use this process again; returns what it had to say."""
        with self._lock:
            if self._zygote is living:
                self._zygote = None
        living.close()
        return living.complaints()


def _conclude(outcome: Outcome, nonce: bytes, limits: Limits, duration_ms: float) -> Finished:
    """Name the ending: what the host did comes first, then what the run itself said, then how its process died."""
    said, result = _read_frame(outcome.frame, nonce)
    if outcome.refused:
        ending, detail = Ending.REFUSED_CONFINEMENT, outcome.refused
    elif outcome.cause is not None and said is None:
        ending, detail = outcome.cause, _limit_reached(outcome.cause, limits)
    elif said is not None:
        ending, detail = said, _own_words(said, result, limits)
    else:
        ending, detail = _from_death(outcome, limits)
    refusals = _true_refusals(result)
    return Finished(
        result=result if ending is Ending.FINISHED else None,
        ending=ending,
        detail=detail,
        printed=outcome.printed.decode(errors="replace"),
        discarded_bytes=outcome.discarded,
        refusals=refusals,
        confinement=outcome.confinement,
        duration_ms=duration_ms,
        cpu_ms=outcome.cpu_ms,
    )


def _read_frame(frame: bytearray, nonce: bytes) -> tuple[Ending | None, RerunResult | None]:
    """What the run said of itself; nothing where it said nothing whole."""
    if len(frame) < FRAME.size:
        return (Ending.GARBLED_RESULT, None) if frame else (None, None)
    seen, code, length = FRAME.unpack_from(frame)
    if seen != nonce or code >= len(FRAME_ENDINGS) or length < len(frame) - FRAME.size:
        return Ending.GARBLED_RESULT, None
    if length > len(frame) - FRAME.size:
        return None, None
    try:
        return FRAME_ENDINGS[code], RerunResult.FromString(bytes(frame[FRAME.size :]))
    except DecodeError:
        return Ending.GARBLED_RESULT, None


def _true_refusals(result: RerunResult | None) -> tuple[str, ...]:
    """What the run was refused, without the files that are not there for anybody; a run cannot tell the two apart."""
    if result is None:
        return ()
    reading = TRIED + READ
    kept = [
        text for text in result.refusals if not text.startswith(reading) or os.path.lexists(text.removeprefix(reading))
    ]
    del result.refusals[:]
    result.refusals.extend(kept)
    return tuple(kept)


def _limit_reached(cause: Ending, limits: Limits) -> str:
    return {
        Ending.TIME_LIMIT: f"it ran for more than {limits.wall_s:g} s",
        Ending.PROCESS_LIMIT: f"it started more than {limits.processes} threads",
        Ending.SCRATCH_LIMIT: f"it wrote more than {limits.scratch_bytes} bytes, or 10,000 files",
        Ending.RESULT_TOO_LARGE: f"its result is larger than {limits.result_bytes} bytes",
        Ending.CANCELLED: "it was cancelled",
    }[cause]


def _own_words(said: Ending, result: RerunResult | None, limits: Limits) -> str:
    words = result.error_detail if result is not None else ""
    if said is Ending.FINISHED:
        return ""
    if said is Ending.MEMORY_LIMIT:
        return f"it needed more than {limits.memory_bytes} bytes of memory"
    if said is Ending.RESULT_TOO_LARGE:
        return f"its result is larger than {limits.result_bytes} bytes ({words})"
    return words or "what it returned is not a result"


def _from_death(outcome: Outcome, limits: Limits) -> tuple[Ending, str]:
    code = outcome.exit_code
    if outcome.failed:
        return Ending.SANDBOX_LOST, outcome.failed
    if code is None:
        return Ending.SANDBOX_LOST, "the sandbox's own process ended during the run"
    if code >= 0:
        return Ending.EXITED_EARLY, f"its process ended with status {code} before it gave a result"
    if -code == signal.SIGXCPU or (-code == signal.SIGKILL and outcome.cpu_ms >= limits.cpu_s * _CPU_ACCOUNTED_MS):
        return Ending.CPU_LIMIT, f"it used more than {limits.cpu_s} s of processor time"
    return Ending.KILLED_BY_SIGNAL, f"its process was killed by signal {-code} ({_signal_name(-code)})"


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return "unknown"


def _unlinked(interpreter: Path) -> Path:
    """An interpreter by its folder's own name, since a link to that is not there in the sandbox.

    The program itself stays a link: by it, Python finds the environment.
    """
    return interpreter.parent.resolve() / interpreter.name
