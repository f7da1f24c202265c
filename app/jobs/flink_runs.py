"""Gives inputs to a build of Flink Agents inside its sandbox: the host's side of the driver `flink`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from app.flink.inside.messages import Handling, Policy, Request, Result
from app.flink.rerun.case import Ran
from app.flink.rerun.sound import problem
from app.flink.treatment import Treatment
from app.replay.rerun_pb2 import AgentCode, RerunRequest
from app.sandbox.model import Finished


def handling(resources: Mapping[str, Treatment]) -> dict[str, Handling]:
    """Configured treatments as the child is told them."""
    return {
        name: Handling(policy=Policy(one.policy), answer=one.answer, has_answer=one.has_answer)
        for name, one in resources.items()
    }


class Code(Protocol):
    """What is asked of a configured build."""

    @property
    def name(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def config(self) -> str | None: ...
    @property
    def paths(self) -> Sequence[Path]: ...


class SandboxedBuild:
    """A `Runner` of a build; `confined` runs one request in the build's sandbox."""

    def __init__(self, code: Code, confined: Callable[[RerunRequest], Finished], *, network: bool = False) -> None:
        self._code = code
        self._confined = confined
        self._network = network

    @property
    def build(self) -> str:
        return self._code.name

    def run(self, request: Request) -> Ran:
        """Run to the end, whatever that is. Raises `AgentPathError` and `SandboxError` as the sandbox does."""
        paths = [str(path) for path in self._code.paths]
        code = AgentCode(agent=self._code.agent, config=self._code.config or "", paths=paths)
        payload = request.model_dump_json().encode()
        finished = self._confined(RerunRequest(code=code, payload=payload, allow_network=self._network))
        confinement = {} if finished.confinement is None else finished.confinement.as_json()
        result, ending, detail = None, str(finished.ending), finished.detail
        if finished.result is not None:
            try:
                result = Result.model_validate_json(finished.result.payload)
            except ValidationError as error:
                ending, detail = "garbled_result", f"its answer is none: {error.errors()[0]['msg']}"
            else:
                wrong = problem(request, result)
                if wrong is not None:
                    result, ending, detail = None, "garbled_result", f"its answer does not hang together: {wrong}"
        return Ran(result, ending, detail, finished.printed, finished.refusals, confinement, finished.duration_ms)
