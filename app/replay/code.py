"""Load the agent's code in the process that runs it: import references, hooks and configuration."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.replay.rerun_pb2 import AgentCode
from app.replay.steadiness import may_vary
from app.runtime import standin


class BadCode(Exception):
    """The code cannot be loaded: the invocation is bad, nothing was run."""


@dataclass(frozen=True)
class LoadedCode:
    """Live objects of one agent build; absent hooks are None, absent configuration is empty."""

    agent: Any
    registry: Any
    decode: Any
    config: Mapping[str, Any]
    may_vary: bool = False


def load_code(code: AgentCode) -> LoadedCode:
    """Import what the references name, on our runtime; raises BadCode saying which one failed and why."""
    standin.install()
    return import_code(code)


def import_code(code: AgentCode) -> LoadedCode:
    """The same, with whatever the environment holds as `beam_agents`."""
    loaded_before = len(sys.modules)
    for path in reversed(code.paths):
        if path not in sys.path:
            sys.path.insert(0, path)
        # Only these: what else is cached is right, and going through all of it costs as much as a small agent.
        finder: Any = sys.path_importer_cache.get(path)
        if finder is not None:
            finder.invalidate_caches()
    return LoadedCode(
        agent=_resolve("agent", code.agent, required=True),
        registry=_resolve("registry", code.registry),
        decode=_resolve("decode", code.decode),
        config=_config(_resolve("config", code.config)),
        may_vary=may_vary(code.paths, loaded_before),
    )


def check_reference(what: str, reference: str) -> None:
    """Refuse a reference that is not `module:attribute`; needs no import."""
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise BadCode(f"--{what} {reference!r} is not of the form module:attribute")


def _resolve(what: str, reference: str, *, required: bool = False) -> Any:
    if not reference and not required:
        return None
    check_reference(what, reference)
    module_name, _, path = reference.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.split(".")[0] == error.name.split(".")[0]:
            raise BadCode(
                f"--{what} {reference}: no module {error.name!r} on the agent path; check --agent-path"
            ) from error
        raise BadCode(f"--{what} {reference}: importing it failed: {error}") from error
    except BaseException as error:
        raise BadCode(f"--{what} {reference}: importing it failed: {type(error).__name__}: {error}") from error
    for name in path.split("."):
        try:
            target = getattr(target, name)
        except AttributeError as error:
            raise BadCode(f"--{what} {reference}: {module_name} has no attribute {name!r}") from error
    return target


def _config(config: Any) -> Mapping[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise BadCode(f"--config names a {type(config).__name__}; a mapping of AgentConfig arguments is expected")
    return config
