"""Run agent code in this very process, for tests and measurements: nothing is confined here."""

from __future__ import annotations

import asyncio
import sys

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
            before, path = set(sys.modules), list(sys.path)
            try:
                self._loaded = key, load_code(code)
                self._version = migration.CURRENT_STATE_SCHEMA_VERSION
            finally:
                sys.path[:] = path
                _forget(set(sys.modules) - before, code)
        return self._loaded[1]


def _forget(added: set[str], code: AgentCode) -> None:
    """Drop the agent's own modules, so that another build's of the same name can be imported."""
    for name in added:
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        if any(file.startswith(path) for path in code.paths):
            del sys.modules[name]
