"""Stands in for the re-run: imports the named function from the agent's paths and calls it, inside the fork.

Its keyword arguments are the JSON object in `entity_key`; what it returns comes back as text.
"""

import importlib
import json
import os
import signal
import sys

from app.replay.rerun_pb2 import RerunRequest, RerunResult


def run(request: RerunRequest) -> RerunResult:
    sys.path[:0] = request.code.paths
    module, _, name = request.code.agent.partition(":")
    function = getattr(importlib.import_module(module), name)
    value = function(**json.loads(request.entity_key or b"{}"))
    return RerunResult(outcome=RerunResult.COMPLETED, error_detail=str(value))


def not_a_result(_request: RerunRequest) -> str:
    return "something else"


def kill_self_with(_request: RerunRequest) -> RerunResult:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still here")
