"""Which agent a pipeline process runs: references to its parts, imported with `beam_agents` meaning this runtime."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.runtime import standin
from app.runtime.config import AgentConfig


class BadReference(Exception):
    """A part of the agent cannot be imported; the text names the reference, the problem and the remedy."""


@dataclass(frozen=True)
class CodeReferences:
    """An agent's parts as `module:attribute`, empty where it has none; `paths` are searched first.

    `config` names a mapping of AgentConfig arguments other than the three that have a reference of their own.
    """

    agent: str
    provider: str
    registry: str = ""
    decode: str = ""
    config: str = ""
    paths: tuple[str, ...] = ()


def load(code: CodeReferences) -> tuple[Callable[..., Any], AgentConfig]:
    """Import the parts; from here on this process runs agent code.

    Raises BadReference for what cannot be imported, ValueError for a configuration that does not fit.
    """
    standin.install()
    sys.path[:0] = [path for path in code.paths if path not in sys.path]
    importlib.invalidate_caches()
    config = _resolve("config", code.config)
    if config is not None and not isinstance(config, Mapping):
        raise BadReference(
            f"config {code.config} is a {type(config).__name__}, expected a mapping of AgentConfig arguments"
        )
    return _resolve("agent", code.agent), AgentConfig(
        _resolve("provider", code.provider),
        decode=_resolve("decode", code.decode),
        tool_registry=_resolve("registry", code.registry),
        **(config or {}),
    )


def _resolve(what: str, reference: str) -> Any:
    if not reference:
        return None
    module, _, attribute = reference.partition(":")
    if not module or not attribute:
        raise BadReference(f"{what} {reference!r} is not of the form module:attribute")
    try:
        target: Any = importlib.import_module(module)
    except Exception as error:
        raise BadReference(
            f"{what} {reference} cannot be imported: {type(error).__name__}: {error}; check the search paths"
        ) from error
    for name in attribute.split("."):
        if not hasattr(target, name):
            raise BadReference(f"{what} {reference}: {module} has no {name!r}")
        target = getattr(target, name)
    return target
