"""Decodes records for a search with a hook of the agent's author, in the sandbox; the worker's second kind of job."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.incidents import decodings
from app.incidents.service import Store
from app.jobs.replayer import Build, BuildProblem, Confinement
from app.replay.hooks import read_answer, requested
from app.replay.rerun_pb2 import AgentCode
from app.sandbox.model import AgentPathError, SandboxError
from app.sandbox.runner import Sandbox

_LOG: Final = logging.getLogger(__name__)
_ENTRY: Final = "app.replay.hooks:run"

Answer = tuple[bytes | None, str | None]
"""The envelope that a record is, or why it could not be decoded; both None where it is none."""


@dataclass
class HookRunner:
    """The real one: a pre-loaded process for the hooks of each build, forked per job, in the build's interpreter."""

    builds: Sequence[Build]
    confinement: Confinement = field(default_factory=Confinement)
    _sandboxes: dict[str, Sandbox] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def decode(self, hook: str, records: Sequence[tuple[bytes, bytes | None]], build: str = "") -> list[Answer]:
        """Decode. Raises `BuildProblem` where the hook cannot be run at all."""
        chosen = [one for one in self.builds if not build or one.name == build]
        if not chosen:
            raise BuildProblem(f"this worker's hindcast.toml names no build {build!r} in which to look for the hook")
        code = AgentCode(agent=hook, paths=[str(path) for path in chosen[0].paths])
        try:
            finished = self._open(chosen[0]).run(requested(code, records), self.confinement.limits)
        except (AgentPathError, SandboxError) as error:
            raise BuildProblem(f"the hook {hook} cannot be run: {error}") from error
        result = finished.result
        if result is None or result.refusal or len(result.outputs) != len(records):
            told = result.refusal if result is not None and result.refusal else finished.detail or finished.ending
            raise BuildProblem(f"the hook {hook} cannot be run: {told}")
        return [read_answer(answer) for answer in result.outputs]

    def close(self) -> None:
        """End the processes; harmless when repeated."""
        with self._lock:
            sandboxes, self._sandboxes = list(self._sandboxes.values()), {}
        for sandbox in sandboxes:
            sandbox.close()

    def _open(self, build: Build) -> Sandbox:
        with self._lock:
            if build.name not in self._sandboxes:
                self._sandboxes[build.name] = Sandbox(
                    interpreter=build.interpreter,
                    driver=build.driver,
                    entry=_ENTRY,
                    preload=(),
                    denied=self.confinement.denied,
                    unconfined=self.confinement.unconfined,
                )
            return self._sandboxes[build.name]


@dataclass
class DecodeTask:
    """What a worker does with the id of a search that has records to decode."""

    store: Store
    runner: HookRunner | None

    async def __call__(self, gathering_id: str, build: str) -> None:
        """Decode what waits, and note what came of each record; a hook that fails fails each of them."""
        async with self.store.read() as session:
            waiting = await decodings.waiting_records(session, gathering_id)
        for hook in sorted({one.hook for one in waiting}):
            mine = [one for one in waiting if one.hook == hook]
            answers = await self._decode(hook, [(one.value, one.key) for one in mine], build)
            async with self.store.write() as session:
                for one, (envelope, error) in zip(mine, answers, strict=True):
                    await decodings.note(session, one.id, envelope, error)

    async def _decode(self, hook: str, records: Sequence[tuple[bytes, bytes | None]], build: str) -> list[Answer]:
        runner = self.runner
        try:
            if runner is None:
                raise BuildProblem("this worker runs no hooks")
            return await asyncio.to_thread(runner.decode, hook, records, build)
        except BuildProblem as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  the search waits for an answer
            _LOG.exception("the hook %s failed", hook)
            problem = f"the hook {hook} failed: {type(error).__name__}: {error}"
        return [(None, problem)] * len(records)
