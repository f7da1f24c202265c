"""What a confined run may use, how it was confined, and how it ended: values that pages, reports and tests read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from app.sandbox.protocol import Ending

if TYPE_CHECKING:
    from app.replay.rerun_pb2 import RerunResult

MIB: Final = 1024 * 1024

Tier = Literal["namespaces", "baseline", "none"]


class SandboxError(RuntimeError):
    """The sandbox itself is broken (its process does not start): not the fault of the code that was to run."""


class AgentPathError(ValueError):
    """A search path that must not be opened to agent code; the text names it, the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use before it is ended.

    `memory_bytes` is what the run may add to the pre-loaded process, `output_bytes` how much of stdout and stderr
    is kept (the rest is discarded), `processes` the number of threads: new processes are refused altogether.
    """

    wall_s: float = 60.0
    cpu_s: int = 60
    memory_bytes: int = 512 * MIB
    output_bytes: int = 64 * 1024
    processes: int = 64
    scratch_bytes: int = 64 * MIB
    result_bytes: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class Confinement:
    """What kept one run apart: the tier reached, each measure in force, and each that could not be had and why."""

    tier: Tier
    measures: tuple[str, ...]
    missing: tuple[str, ...] = ()
    network: Literal["off", "allowed"] = "off"

    def as_json(self) -> dict[str, object]:
        """The same as plain JSON values."""
        return {
            "tier": self.tier,
            "network": self.network,
            "measures": list(self.measures),
            "missing": list(self.missing),
        }


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of one run.

    `result` is set exactly after `finished`. `detail` is one sentence for a person, empty after `finished`.
    `refusals` are things the run tried and was refused, in order, each once. `discarded_bytes` counts what it printed
    beyond the limit. `confinement` is None only where the run ended before it was confined, and then none of the
    agent's code has run.
    """

    result: RerunResult | None
    ending: Ending
    detail: str = ""
    printed: str = ""
    discarded_bytes: int = 0
    refusals: tuple[str, ...] = field(default=())
    confinement: Confinement | None = None
    duration_ms: float = 0.0
    cpu_ms: int = 0


__all__ = ["MIB", "AgentPathError", "Confinement", "Ending", "Finished", "Limits", "SandboxError", "Tier"]
