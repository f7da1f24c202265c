"""Run agent code in this very process, for tests and measurements: nothing is confined here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from app.replay.code import BadCode, LoadedCode, load_code
from app.replay.rerun import execute
from app.replay.rerun_pb2 import AgentCode, RerunRequest, RerunResult
from app.replay.runner import Ended
from app.wire import migration


class InProcessRunner:
    """A Runner without a sandbox; loads the code once, leaves the import state as it was."""

    def __init__(self) -> None:
        self._loaded: tuple[bytes, LoadedCode] | None = None
        self._version = 0  # the schema version that the agent's code runs under: it may patch it
        self._loop = asyncio.new_event_loop()

    def run(self, request: RerunRequest) -> Ended:
        ours = migration.CURRENT_STATE_SCHEMA_VERSION
        try:
            code = self._code(request.code)
            migration.CURRENT_STATE_SCHEMA_VERSION = self._version
            return Ended(execute(request, code, self._loop))
        except BadCode as error:
            return Ended(RerunResult(outcome=RerunResult.REFUSED, refusal=str(error)))
        finally:
            migration.CURRENT_STATE_SCHEMA_VERSION = ours

    def close(self) -> None:
        self._loop.close()

    def _code(self, code: AgentCode) -> LoadedCode:
        key = code.SerializeToString(deterministic=True)
        if self._loaded is None or self._loaded[0] != key:
            with _own_modules(code):
                self._loaded = key, load_code(code)
                self._version = migration.CURRENT_STATE_SCHEMA_VERSION
        return self._loaded[1]


@contextmanager
def _own_modules(code: AgentCode) -> Iterator[None]:
    """Import the agent's modules afresh, and leave the import state as it was: builds share module names."""
    references = (code.agent, code.registry, code.decode, code.config)
    roots = {reference.partition(":")[0].partition(".")[0] for reference in references if reference}
    shadowed = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in roots}
    before, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if any(file.startswith(folder) for folder in code.paths):
                del sys.modules[name]
        sys.modules.update(shadowed)
