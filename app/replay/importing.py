"""Import an agent as a run would, and do nothing with it: whether a build is fit to be replayed."""

from __future__ import annotations

from collections.abc import Callable

from app.replay.code import BadCode, LoadedCode, import_code, load_code
from app.replay.rerun_pb2 import AgentCode, RerunRequest, RerunResult


def on_ours(request: RerunRequest) -> RerunResult:
    """On our own runtime."""
    return _told(load_code, request)


def on_theirs(request: RerunRequest) -> RerunResult:
    """On whatever the environment holds as `beam_agents`."""
    return _told(import_code, request)


def _told(load: Callable[[AgentCode], LoadedCode], request: RerunRequest) -> RerunResult:
    try:
        load(request.code)
    except BadCode as error:
        return RerunResult(outcome=RerunResult.REFUSED, refusal=str(error))
    return RerunResult(outcome=RerunResult.COMPLETED)
