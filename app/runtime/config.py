"""A pipeline's configuration, checked when it is written rather than when the pipeline starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from app.runtime.batching import BatchPolicy, BatchSettings, resolve_batch_settings
from app.runtime.compaction import DropOldestCompactor
from app.runtime.hitl import HitlPolicy
from app.runtime.settings import DEFAULT_ACTIVATION_TIMEOUT_S, DEFAULT_CANCEL_GRACE_S, ActivationSettings, AgentHooks
from app.runtime.sinks import SinkResolver, parse_sink_uri
from app.runtime.stores.uri import build_memory_store, parse_memory_store_uri

if TYPE_CHECKING:
    from app.runtime.compaction import Compactor, ExpireHook, Summarizer
    from app.runtime.model.usage import Decode
    from app.runtime.stores.base import MemoryStore
    from app.runtime.tools import ToolRegistry

DEFAULT_TTL_MS: Final = 3_600_000
_SINK_FIELDS: Final = ("intents_to", "traces_to", "errors_to", "snapshots_to")


@dataclass(frozen=True)
class AgentConfig:
    """What an agent's pipeline runs with; `provider_factory` is called once per setup of a worker.

    Times ending in `_s` are seconds of the wall clock, those ending in `_ms` milliseconds. Raises
    ValueError naming the field that does not fit.
    """

    provider_factory: Callable[[], Any]
    _: KW_ONLY
    decode: Decode | None = None
    activation_timeout_s: float = DEFAULT_ACTIVATION_TIMEOUT_S
    ttl_ms: int = DEFAULT_TTL_MS
    cancel_grace_s: float = DEFAULT_CANCEL_GRACE_S
    hitl_policy: HitlPolicy = field(default_factory=HitlPolicy)
    tool_registry: ToolRegistry | None = None
    intents_to: str | None = None
    traces_to: str | None = None
    errors_to: str | None = None
    snapshots_to: str | None = None
    sink_resolver: SinkResolver | None = None
    longterm_memory: str | None = None
    compactor: Compactor | None = field(default_factory=DropOldestCompactor)
    summarizer: Summarizer | None = None
    on_expire: ExpireHook | None = None
    batch_policy: BatchPolicy = BatchPolicy.NONE
    max_batch_size: int | None = None
    max_wait_ms: int | None = None
    max_buffered_events: int | None = None
    max_tokens_per_activation: int | None = None

    def __post_init__(self) -> None:
        for name in ("activation_timeout_s", "ttl_ms", "cancel_grace_s", "max_tokens_per_activation"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"AgentConfig.{name} must be above 0, not {value}")
        if self.max_tokens_per_activation is not None and self.decode is None:
            raise ValueError("AgentConfig.max_tokens_per_activation needs decode: tokens are counted by it")
        if self.on_expire is not None and self.longterm_memory is None:
            raise ValueError("AgentConfig.on_expire needs longterm_memory: it saves into that store")
        # A resolver of the pipeline's own may know addresses that we do not.
        if self.sink_resolver is None:
            for name in _SINK_FIELDS:
                uri = getattr(self, name)
                if uri is not None:
                    parse_sink_uri(uri, field=name)
        if self.longterm_memory is not None:
            parse_memory_store_uri(self.longterm_memory, field="longterm_memory")
        self.batch_settings()

    def batch_settings(self) -> BatchSettings | None:
        """The resolved batching numbers, None under BatchPolicy.NONE."""
        return resolve_batch_settings(
            self.batch_policy, self.max_batch_size, self.max_wait_ms, self.max_buffered_events
        )

    def open_store(self) -> MemoryStore | None:
        """Open the configured long-term store, None without one; raises RuntimeError for a missing client."""
        if self.longterm_memory is None:
            return None
        return build_memory_store(*parse_memory_store_uri(self.longterm_memory, field="longterm_memory"))

    def activation_settings(self, longterm_store: MemoryStore | None = None) -> ActivationSettings:
        """What each activation runs under, given the opened long-term store."""
        return ActivationSettings(
            hitl_policy=self.hitl_policy,
            activation_timeout_s=self.activation_timeout_s,
            cancel_grace_s=self.cancel_grace_s,
            compactor=self.compactor,
            summarizer=self.summarizer,
            max_tokens_per_activation=self.max_tokens_per_activation,
            longterm_store=longterm_store,
        )

    def hooks(self, agent: Callable[..., Any], longterm_store: MemoryStore | None = None) -> AgentHooks:
        """Call the provider factory and bring agent, model, tools and settings together."""
        return AgentHooks(
            agent=agent,
            provider=self.provider_factory(),
            registry=self.tool_registry,
            decode=self.decode,
            config=self.activation_settings(longterm_store),
        )
