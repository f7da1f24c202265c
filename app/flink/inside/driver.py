"""The driver of the sandbox's child for Flink Agents: load the agent, compile its plan, contain it, feed it."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from app.flink.inside.messages import Handling, Plan, Request, Result, digest
from app.flink.inside.run import plain

if TYPE_CHECKING:
    from app.replay.rerun_pb2 import RerunRequest, RerunResult

NAME: Final = "flink-agents"
_DEFAULT: Final = Handling()


class _BadAgent(Exception):
    """It cannot be loaded or compiled."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def run(request: RerunRequest) -> RerunResult:
    """What the sandbox calls: the request's payload in, the result's payload out."""
    from app.replay.rerun_pb2 import RerunResult

    code = request.code
    result = feed(Request.model_validate_json(request.payload), code.agent, code.config, list(code.paths))
    version = importlib.metadata.version(NAME)
    return RerunResult(payload=result.model_dump_json().encode(), driver=NAME, driver_version=version)


def feed(request: Request, agent: str, config: str = "", paths: list[str] | None = None) -> Result:
    """Run a request with the agent that `agent` (`module:attribute`) names; `config` names a mapping of its options."""
    known: dict[str, Any] = {"framework": importlib.metadata.version(NAME), "python": platform.python_version()}
    try:
        plan = _compile(agent, config, paths or [])
    except _BadAgent as error:
        return Result(**known, refusal=str(error), refusal_kind=error.kind)
    from app.flink.inside.engine import Engine

    engine = Engine(plan, request)
    told = _described(plan, request.handling)
    return Result(**known, plan=told, inputs=[engine.feed(one) for one in request.inputs])


def warm() -> None:
    """Import, in the process that runs are forked from, what every run needs."""
    for name in ("flink_agents.plan.agent_plan", "flink_agents.api.execution_environment", "app.flink.inside.engine"):
        importlib.import_module(name)


def _compile(agent: str, config: str, paths: list[str]) -> Any:
    sys.path[:0] = [path for path in paths if path not in sys.path]
    importlib.invalidate_caches()
    target = _resolve("agent", agent)
    options = _resolve("config", config) if config else {}
    if not isinstance(options, Mapping):
        raise _BadAgent("agent", f"config {config} is a {type(options).__name__}; a mapping of options is expected")
    from flink_agents.api.agents.agent import Agent
    from flink_agents.plan.agent_plan import AgentPlan
    from flink_agents.plan.configuration import AgentConfiguration

    with _told_apart("agent", f"making the agent {agent} failed"):
        made = target() if isinstance(target, type) else target
    if not isinstance(made, Agent):
        raise _BadAgent("agent", f"agent {agent} is a {type(made).__name__}; an Agent, or a class of one, is expected")
    servers = ", ".join(_mcp_servers(made))
    asked = f" (it asks the MCP server {servers} while it is compiled, and no network is allowed)" if servers else ""
    with _told_apart("plan", f"the plan of {agent} cannot be compiled{asked}"):
        return AgentPlan.from_agent(made, AgentConfiguration(dict(options)))


def _mcp_servers(agent: Any) -> Iterator[str]:
    from flink_agents.api.resource import ResourceType

    yield from agent.resources.get(ResourceType.MCP_SERVER, {})
    yield from (name for name, value in type(agent).__dict__.items() if hasattr(value, "_is_mcp_server"))


def _resolve(what: str, reference: str) -> Any:
    module, colon, path = reference.partition(":")
    if not (module and colon and path):
        raise _BadAgent("import", f"{what} {reference!r} is not of the form module:attribute")
    with _told_apart("import", f"{what} {reference}: importing it failed"):
        target: Any = importlib.import_module(module)
    for name in path.split("."):
        if not hasattr(target, name):
            raise _BadAgent("import", f"{what} {reference}: {module} has no attribute {name!r}")
        target = getattr(target, name)
    return target


@contextmanager
def _told_apart(kind: str, what: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:  # whatever it was, nothing of the agent has run yet
        raise _BadAgent(kind, f"{what}: {type(error).__name__}: {error}") from error


def _described(plan: Any, handling: Mapping[str, Handling]) -> Plan:
    from app.flink.inside.resources import listed

    def policy(kind: str, name: str) -> Handling:
        return handling.get(f"{kind}:{name}") or handling.get(kind) or _DEFAULT

    shape = {
        "actions": {name: plain(action.listen_event_types) for name, action in plan.actions.items()},
        "resources": plain(plan.model_dump(mode="json")["resource_providers"]),
        "config": plain(plan.config.get_conf_data() if plan.config else {}),
    }
    return Plan(digest=digest(shape), actions=shape["actions"], resources=listed(plan, policy))
