"""What one activation runs under: the pipeline's settings, resolved, with live objects in the place of URIs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from app.runtime.compaction import DropOldestCompactor
from app.runtime.hitl import HitlPolicy

if TYPE_CHECKING:
    from app.runtime.compaction import Compactor, Summarizer
    from app.runtime.model.usage import Decode
    from app.runtime.stores.base import MemoryStore
    from app.runtime.tools import ToolRegistry

DEFAULT_ACTIVATION_TIMEOUT_S: Final = 30.0
DEFAULT_CANCEL_GRACE_S: Final = 5.0


@dataclass(frozen=True)
class ActivationSettings:
    """The defaults are the pipeline's; times in seconds of the wall clock, None for no timeout."""

    hitl_policy: HitlPolicy = field(default_factory=HitlPolicy)
    activation_timeout_s: float | None = DEFAULT_ACTIVATION_TIMEOUT_S
    cancel_grace_s: float = DEFAULT_CANCEL_GRACE_S
    compactor: Compactor | None = field(default_factory=DropOldestCompactor)
    summarizer: Summarizer | None = None
    max_tokens_per_activation: int | None = None
    longterm_store: MemoryStore | None = None


@dataclass(frozen=True)
class AgentHooks:
    """The agent's code and what it runs with: any async callable, its model, tools and decode hook."""

    agent: Callable[..., Any]
    provider: Any = None
    registry: ToolRegistry | None = None
    decode: Decode | None = None
    config: ActivationSettings = field(default_factory=ActivationSettings)
