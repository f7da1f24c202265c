"""The port through which a re-run is asked for: the sandbox in production, this process in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from app.replay.rerun_pb2 import RerunRequest, RerunResult

FINISHED: Final = "finished"


class Confinement(Protocol):
    """How the agent was held: which tier, which measures."""

    def as_json(self) -> Mapping[str, Any]: ...


class Finished(Protocol):
    """How one run ended. `result` is there exactly when `ending` is `finished`.

    Other endings are named after their cause: time_limit, cpu_limit, memory_limit, exited_early,
    killed_by_signal, result_too_large, refused_confinement; `detail` is a sentence about it.
    """

    @property
    def result(self) -> RerunResult | None: ...
    @property
    def ending(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def printed(self) -> str: ...
    @property
    def confinement(self) -> Confinement | None: ...


class Runner(Protocol):
    """Runs one activation from recorded inputs."""

    def run(self, request: RerunRequest) -> Finished: ...


@dataclass(frozen=True)
class Unconfined:
    """No confinement at all, said in so many words."""

    def as_json(self) -> Mapping[str, Any]:
        return {"tier": "none", "measures": [], "missing": []}


@dataclass(frozen=True)
class Ended:
    """A plain Finished."""

    result: RerunResult | None
    ending: str = FINISHED
    detail: str = ""
    printed: str = ""
    confinement: Confinement | None = field(default_factory=Unconfined)
