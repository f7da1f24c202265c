"""The names of the Beam transform: importable everywhere, usable only where there is a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from app.runtime.config import AgentConfig
from app.runtime.sinks import BEAM_REMEDY, DefaultSinkResolver, UnknownSinkSchemeError

__all__ = [
    "AgentConfig",
    "DefaultSinkResolver",
    "RunAgent",
    "RunAgentOutputs",
    "ShardKeys",
    "UnknownSinkSchemeError",
    "shard_key",
    "unshard_key",
]


@dataclass(frozen=True)
class RunAgentOutputs:
    """The collections that RunAgent yields."""

    output: Any
    intents: Any
    traces: Any
    errors: Any
    snapshots: Any
    dead_letter: Any


class RunAgent:
    """The pipeline transform; building one here says what is missing."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        _refuse("RunAgent")


class ShardKeys:
    """The key-sharding transform; building one here says what is missing."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        _refuse("ShardKeys")


def shard_key(*args: object, **kwargs: object) -> NoReturn:
    """Raises RuntimeError: the layout of a sharded key is the pipeline's own."""
    _refuse("shard_key")


def unshard_key(*args: object, **kwargs: object) -> NoReturn:
    """Raises RuntimeError: the layout of a sharded key is the pipeline's own."""
    _refuse("unshard_key")


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(f"{name} belongs to the pipeline: {BEAM_REMEDY}")
