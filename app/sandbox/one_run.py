"""One run in its own process: shut in, then the agent's code, then the result."""

from __future__ import annotations

import gc
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from app.sandbox.audit import Watch
from app.sandbox.confine import ConfinementUnavailableError, Place, confine
from app.sandbox.errand import send_all
from app.sandbox.protocol import FRAME, FRAME_ENDINGS, Ending, Order, report, split_order

_STDOUT, _STDERR = 1, 2


def serve(place: Place, entry: Callable[[Any], Any], descriptors: list[int]) -> NoReturn:
    """Make the run that the descriptors (see `Order`) stand for, and end."""
    request, result, prints, reporting = descriptors
    try:
        os.dup2(prints, _STDOUT)
        os.dup2(prints, _STDERR)
        order, data = split_order(_read_all(request))
        os.close(request)
        _Run(place, order, entry).go(data, result, reporting)
    except BaseException:  # noqa: BLE001
        with suppress(OSError):
            os.write(reporting, report(failed=traceback.format_exc(limit=-3)))
    finally:
        os._exit(1)


class _Run:
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
        send_all(result, FRAME.pack(bytes.fromhex(self._order.nonce), FRAME_ENDINGS.index(ending), len(payload)))
        send_all(result, payload)
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
