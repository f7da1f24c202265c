"""One input with all that bears on its verdict, and what the host knows of the child that ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from app.flink.inside.messages import Handling, InputResult, Request, Result
from app.flink.rerun.recorded import Recorded

ENGINE: Final = "hindcast-flink"
# What a verdict may say for its reason; words of ours, which pass where names and values are hidden.
CODES: Final = frozenset(
    {
        "agent_refused", "blocked", "confined", "cpu_limit", "crashed", "diverged", "exited_early", "garbled_result",
        "killed_by_signal", "memory_limit", "memory_unknown", "model_request", "next_missing", "no_answer", "no_input",
        "no_one_run", "plan_refused", "process_limit", "processed_answer", "record_unproven", "refused_confinement",
        "request_unproven", "result_too_large", "run_missing", "sandbox_lost", "scratch_limit", "stand_in",
        "time_limit", "truncated", "unfinished", "unsupported", "what_if",
    }
)  # fmt: skip
MODES: Final = frozenset({"replay", "what-if"})


class Proof(StrEnum):
    """How it is known that a model was asked what it was asked when the run was recorded.

    The log has requests before prompt, tools and parameters are added; only a build tells the rest.
    """

    OWN = "it is the build that made the record"
    COMPARED = "each whole request was held against that of the build that made the record"
    NONE = "nobody said which build made the record"


class Source(StrEnum):
    """Where the short-term memory of an input comes from."""

    LOG = "the log, at the beginning of the run"
    RERUN = "the re-run of all inputs before it, each of which came out as recorded"
    FORWARD = "the re-run of the inputs before it in the log, each of which came out as recorded"
    EMPTY = "empty: the record begins where the job began"
    ASSUMED = "taken to be empty: the record does not say"
    GROWN = "the re-run of the inputs before it, each of which came out as recorded, from one taken to be empty"
    CARRIED = "the re-run of the inputs before it, not all of which came out as recorded"
    GAP = "the re-run of those inputs before it that the log holds"

    @property
    def known(self) -> bool:
        """Whether it is what the run really had. That a log lacks no input of a key, only a capture says."""
        return self in (Source.LOG, Source.RERUN, Source.EMPTY)


class Confinement(Protocol):
    def as_json(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Ran:
    """How the child ended. `result` is there exactly where it answered; `refusals` name what the sandbox refused."""

    result: Result | None
    ending: str = "finished"
    detail: str = ""
    printed: str = ""
    refusals: tuple[str, ...] = ()
    confinement: Mapping[str, Any] = field(default_factory=dict)
    duration_ms: float = 0.0


class Runner(Protocol):
    """Runs a request with one build, confined."""

    @property
    def build(self) -> str: ...
    def run(self, request: Request) -> Ran: ...


@dataclass(frozen=True)
class Options:
    """What the operator says beside the log.

    `live` makes it a what-if; `begins_empty` says that the log begins where the job began; `memory` is short-term
    memory by key and path where a record does not begin there.
    """

    live: bool = False
    begins_empty: bool = False
    memory: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    supplied: tuple[Any, ...] = ()
    handling: Mapping[str, Handling] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One re-run input: the record, what came out, and what it rests on.

    `reference` is the same input run by the build that made the record, where that is another one; `vouched` says
    that it came out as recorded. `lost` names the inputs of its key before it of which nobody knows what they left.
    """

    recorded: Recorded
    result: InputResult
    ran: Ran
    build: str
    memory: Source
    proof: Proof
    live: bool = False
    reference: InputResult | None = None
    reference_build: str = ""
    vouched: bool = True
    next_memory: Mapping[str, Any] | None = None
    lost: tuple[str, ...] = ()
