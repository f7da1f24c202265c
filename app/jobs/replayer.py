"""Replays evidence with a configured build: one warm sandbox per build, so that a replay costs a fork, no start-up."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from app.flink.rerun.case import Runner as FlinkRunner
from app.flink.treatment import Treatment
from app.incidents.inputs import NOTHING, RunInputs, decided, engine_answers
from app.incidents.service import LEDGER_BYTES, EvidenceFile, Report
from app.jobs.flink_replayer import Build as FlinkBuild
from app.jobs.flink_replayer import is_of_flink, replay_log
from app.jobs.flink_runs import SandboxedBuild
from app.replay.engine import Options, replay
from app.replay.provenance import Production, Ran, attributed
from app.replay.rerun_pb2 import AgentCode, RerunRequest
from app.sandbox.drivers import FLINK
from app.sandbox.model import MIB, AgentPathError, Ending, Finished, Limits, SandboxError
from app.sandbox.runner import Sandbox

_LOG: Final = logging.getLogger(__name__)
_KILLED: Final = "(SIGKILL)"


class KilledFromOutside(Exception):
    """The re-run was ended by somebody else, which says nothing about the activation; the text says how."""


class BuildProblem(Exception):
    """A build that cannot be replayed as it is configured; the text names the remedy."""


class Build(Protocol):
    """What is asked of a configured build."""

    @property
    def name(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def registry(self) -> str | None: ...
    @property
    def decode(self) -> str | None: ...
    @property
    def config(self) -> str | None: ...
    @property
    def paths(self) -> Sequence[Path]: ...
    @property
    def interpreter(self) -> Path | None: ...
    @property
    def driver(self) -> str: ...
    @property
    def preload(self) -> Sequence[str]: ...
    @property
    def resources(self) -> Mapping[str, Treatment]: ...
    @property
    def live_from_ms(self) -> int | None: ...
    @property
    def live_to_ms(self) -> int | None: ...
    @property
    def digest(self) -> str | None: ...
    def production(self) -> Production: ...
    def files_digest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Confinement:
    """How agent code is held; `denied` are files that no run may read even inside an agent's folder."""

    unconfined: bool = False
    allow_network: bool = False
    memory_mib: int = 512
    wall_s: float = 60.0
    denied: tuple[str, ...] = ()

    @property
    def limits(self) -> Limits:
        return Limits(wall_s=self.wall_s, cpu_s=math.ceil(self.wall_s), memory_bytes=self.memory_mib * MIB)


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be replayed: the evidence, the seq it was narrowed to, and what is known or supplied beside it.

    `vindicated` are names as in `Verdict.reads`: another build's run on the same evidence reproduced with them.
    `inputs` are recorded tool answers, the decision that a what-if tries, and whether models are asked anew.
    """

    files: Sequence[EvidenceFile]
    seq: int | None = None
    vindicated: frozenset[str] = frozenset()
    inputs: RunInputs = NOTHING
    killed_before: bool = False
    key: bytes | None = None
    sources: Sequence[Mapping[str, Any]] = ()


class Replayer(Protocol):
    """Replays; the worker's tests put others in its place."""

    def digest_of(self, build: str) -> str: ...
    def replay(self, build: str, case: Case, stop: threading.Event) -> Report: ...


@dataclass
class SandboxedReplayer:
    """The real one; its methods may be called from several threads at once."""

    builds: Sequence[Build]
    confinement: Confinement = field(default_factory=Confinement)
    _sandboxes: dict[tuple[str, bool], Sandbox] = field(default_factory=dict, init=False)  # by build, and network
    _digests: dict[str, str] = field(default_factory=dict, init=False)  # as last computed, before a run of the build
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def warm(self) -> None:
        """Start the sandbox of every build, without waiting for it; one that cannot be started fails its own runs."""
        for build in self.builds:
            try:
                self._sandbox(build.name).start()
            except SandboxError as error:
                _LOG.warning("build %s cannot be run: %s", build.name, error)

    def close(self) -> None:
        """End all sandboxes and what still runs in them."""
        with self._lock:
            sandboxes, self._sandboxes = list(self._sandboxes.values()), {}
        for sandbox in sandboxes:
            sandbox.close()

    def digest_of(self, build: str) -> str:
        """Compute the digest of a build's files. Raises `BuildProblem` when they are not those of the configuration."""
        configured = self._build(build)
        found = configured.files_digest()
        if configured.digest is not None and configured.digest != found:
            raise BuildProblem(
                f"the files of build {build!r} are not those that hindcast.toml names: their digest is {found}, and it"
                f" says {configured.digest}; bring the files back, or correct the digest"
            )
        self._digests[build] = found
        return found

    def replay(self, build: str, case: Case, stop: threading.Event) -> Report:
        """Replay; `stop` ends the re-run early.

        Raises `BuildProblem` where the build cannot be run at all, `InputRefused` where nothing waits for a decision,
        `KilledFromOutside` where it was not left to end.
        """
        configured = self._build(build)
        if is_of_flink(case.files) != (configured.driver == FLINK):
            raise BuildProblem(_other_framework(configured))
        if configured.driver == FLINK:
            return self._replay_log(configured, case, stop)
        code = AgentCode(
            agent=configured.agent,
            registry=configured.registry or "",
            decode=configured.decode or "",
            config=configured.config or "",
            paths=[str(path) for path in configured.paths],
        )
        runner = _Run(self._sandbox(build), self.confinement.limits, stop, case.killed_before)
        options = Options(
            case.seq,
            self.confinement.allow_network,
            LEDGER_BYTES,
            tuple(engine_answers(case.inputs.tool_answers)),
            case.vindicated,
        )
        decision = case.inputs.decision
        files = case.files if decision is None else decided(case.files, decision)
        try:
            return self._attributed(configured, replay(files, runner, code, options=options))
        except (AgentPathError, SandboxError, OSError) as error:
            raise BuildProblem(f"build {build!r} cannot be run: {error}") from error

    def _attributed(self, build: Build, report: Report) -> Report:
        """The report with what ran: the build's files, its environment, and how both differ from production's."""
        here = self._sandbox(build.name).environment()
        files = self._digests.get(build.name) or build.files_digest()
        ran = Ran(build.name, files, here.python, here.digest, here.packages)
        return attributed(report, ran, build.production())

    def _replay_log(self, configured: Build, case: Case, stop: threading.Event) -> Report:
        if case.inputs.decision is not None:
            raise BuildProblem("a decision answers an intent of a Beam agent; an event log holds none")

        def runner(build: FlinkBuild) -> FlinkRunner:
            self.digest_of(build.name)
            # A replay is answered from the record: only what is tried has a network, and only where there is to be one.
            network = self.confinement.allow_network and case.inputs.what_if and build.name == configured.name
            held = _Run(self._sandbox(build.name, network=network), self.confinement.limits, stop, case.killed_before)
            return SandboxedBuild(build, held.run, network=network)

        try:
            return replay_log(
                case.files,
                case.sources,
                configured,
                self.builds,
                runner,
                key=case.key,
                answers=case.inputs.tool_answers,
                live=case.inputs.what_if,
            )
        except (AgentPathError, SandboxError) as error:
            raise BuildProblem(f"build {configured.name!r} cannot be run: {error}") from error

    def _build(self, name: str) -> Build:
        for build in self.builds:
            if build.name == name:
                return build
        raise BuildProblem(
            f"this worker's hindcast.toml names no build {name!r}; add it there, restart the worker, and retry"
        )

    def _sandbox(self, name: str, *, network: bool | None = None) -> Sandbox:
        """The sandbox of a build; of Flink Agents it has a network only where that is asked for."""
        build = self._build(name)
        if network is None:
            network = self.confinement.allow_network and build.driver != FLINK
        with self._lock:
            if (name, network) not in self._sandboxes:
                self._sandboxes[name, network] = Sandbox(
                    interpreter=build.interpreter,
                    driver=build.driver,
                    libraries=build.preload,
                    denied=self.confinement.denied,
                    allow_network=network,
                    unconfined=self.confinement.unconfined,
                )
            return self._sandboxes[name, network]


def _other_framework(build: Build) -> str:
    if build.driver == FLINK:
        return f"build {build.name!r} is of Flink Agents, and the evidence is of a Beam agent; choose another build"
    return f"the evidence is an event log of Flink Agents, and build {build.name!r} has the driver {build.driver!r}"


@dataclass(frozen=True, slots=True)
class _Run:
    """The sandbox as the engine sees it: with this run's limits, and its way to be stopped."""

    sandbox: Sandbox
    limits: Limits
    stop: threading.Event
    killed_before: bool

    def run(self, request: RerunRequest) -> Finished:
        finished = self.sandbox.run(request, self.limits, stop=self.stop)
        if finished.ending == Ending.SANDBOX_LOST:
            raise KilledFromOutside(f"{finished.detail}; retry it")
        # Agent code can kill its own process. Who did it shows when it happens again.
        if finished.ending == Ending.KILLED_BY_SIGNAL and _KILLED in finished.detail and not self.killed_before:
            raise KilledFromOutside(
                f"{finished.detail}, most likely from outside: by a person, or by the machine for want of memory;"
                " retry it"
            )
        return finished
