"""Makes the import name `beam_agents` mean this runtime, in this process only and lazily.

Agent files import that name. Whatever is installed under it, an agent under replay must run on the
runtime that is being observed; and a part that is not here must say so instead of half working.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

ROOT: Final = "beam_agents"
_REMEDY: Final = "remove the import from the agent, or run the replay with the pipeline's own installation"

# Served module -> (module of ours -> the names it gives).
_CLIENT: Final = {
    "app.runtime.model.client": "LLMClient LlmRequest LlmResponse ProviderError ProviderRequestError ProviderTimeout"
    " RateLimitError ServerError"
}
_FACADE: Final = {
    "app.runtime.model.budget": "BudgetExceeded TokenBudget",
    "app.runtime.model.facade": "FacadeResult LlmFacade OutputSchemaError",
    "app.runtime.model.resilience": "CircuitBreaker CircuitOpenError CircuitState RetryPolicy",
    "app.runtime.model.usage": "DecodedResponse TokenUsage",
}
_FAKE: Final = {
    "app.runtime.model.fake": "FakeLLM UnmatchedRequestError fail_then_succeed match_any match_contains"
    " match_model_id raise_error respond_with"
}
_REPLAY_CACHE: Final = {
    "app.runtime.replay_cache": "BLOB_CAP_BYTES MAX_ENTRIES ReplayCache ReplayEntry TTL_MS compute_cache_key"
}
_HITL: Final = {
    "app.runtime.hitl": "DEFAULT_APPROVAL_CHANNEL DEFAULT_HITL_TIMEOUT_MS DEFAULT_INTENT_TTL_MS Deny Drop Escalate"
    " HITL_TIMEOUT_OUTPUT HitlPolicy REASON_HITL_TIMEOUT Route deny intent_expired refuse_expired"
}
_TOOLS: Final = {
    "app.runtime.tools": "IntentInfo SideEffectToolError Tool ToolArgumentError ToolDefinitionError ToolError"
    " ToolNotFoundError ToolRegistry ToolRunner tool"
}
_MEMORY: Final = {
    "app.runtime.memory": "Memory MemoryOverflow",
    "app.runtime.longterm": "LongtermMemory",
    "app.runtime.compaction": "Compactor DropOldestCompactor ExpireHook ExpiringMemory FlushToLongterm"
    " SummarizationView SummarizeCompactor Summarizer",
}

_SURFACE: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "app.runtime.hitl": "HitlPolicy Deny Drop Escalate",
        "app.runtime.outcome": "FallbackContext",
        "app.runtime.surface": "StreamAgent",
        "app.runtime.tools": "tool",
        "app.runtime.transform": "AgentConfig RunAgent RunAgentOutputs ShardKeys shard_key unshard_key",
    },
    "_protos": {
        "app.wire.records": "ActivationErrorRecord AgentEnvelope Continuation LlmCacheBlob LongTermRecord MemoryBlob"
        " StateSnapshot ToolIntent ToolResult TraceEvent"
    },
    "core": {"app.runtime.surface": "AgentContext AgentResult FunctionAgent StreamAgent"},
    "core.agent": {
        "app.runtime.outcome": "Agent Complete FallbackContext Outcome Suspend intent_id_for",
        "app.runtime.surface": "FunctionAgent StreamAgent",
    },
    "core.batching": {
        "app.runtime.batching": "BUFFER_HEADROOM BatchPolicy BatchSettings DEFAULT_MAX_BATCH_SIZE DEFAULT_MAX_WAIT_MS"
        " TRACE_BATCH_SIZE TRACE_BATCH_TRIGGER TRIGGER_SIZE TRIGGER_TIMER buffer_is_full resolve_batch_settings"
        " should_flush_on_size should_flush_on_timer"
    },
    "core.context": {"app.runtime.context": "ActivationContext"},
    "core.migration": {},
    "core.transform": {
        "app.runtime.transform": "AgentConfig RunAgent RunAgentOutputs DefaultSinkResolver UnknownSinkSchemeError"
    },
    "hitl": _HITL,
    "memory": _MEMORY,
    "memory.compaction": _MEMORY,
    "memory.facade": _MEMORY,
    "memory.stores": {
        "app.runtime.stores.base": "InMemoryMemoryStore MemoryRecord MemoryStore",
        "app.runtime.stores.uri": "build_memory_store parse_memory_store_uri",
    },
    "model": {
        **_CLIENT,
        **_FACADE,
        **_FAKE,
        **_REPLAY_CACHE,
        "app.runtime.model.decoders": "anthropic_decode openai_compat_decode",
    },
    "model.client": _CLIENT,
    "model.facade": _FACADE,
    "model.fake": _FAKE,
    "model.replay_cache": _REPLAY_CACHE,
    "tools": _TOOLS,
}
# Agents patch constants of this module, so it has to be the very one that the runtime reads.
_SHARED: Final = {"core.migration": "app.wire.migration"}
# Adapters to other frameworks: named by the root package, never part of this runtime.
_ADAPTERS: Final = {"LangGraphAgent": "langgraph", "PydanticAIAgent": "pydantic-ai", "AdkAgent": "google-adk"}

# Served module -> name -> the module of ours that has it.
_ORIGINS: Final[Mapping[str, Mapping[str, str]]] = {
    part: {name: origin for origin, names in given.items() for name in names.split()}
    for part, given in _SURFACE.items()
}
_PACKAGES: Final = frozenset(part.rpartition(".")[0] for part in _SURFACE)


def install() -> None:
    """Serve `beam_agents` from this runtime; a second call does nothing.

    Raises RuntimeError when another `beam_agents` was imported before, since its objects would mix with ours.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    loaded = sys.modules.get(ROOT)
    if loaded is not None:
        raise RuntimeError(
            f"{ROOT} was already imported from {getattr(loaded, '__file__', None) or 'elsewhere'}:"
            " install the stand-in before anything imports it"
        )
    sys.meta_path.insert(0, _Finder())


def preload() -> None:
    """Import every served module, and look up the names of those of ours that are loaded already."""
    for part, origins in _ORIGINS.items():
        served = importlib.import_module(f"{ROOT}.{part}" if part else ROOT)
        for name, origin in origins.items():
            if origin in sys.modules:
                getattr(served, name)


class _Finder(MetaPathFinder):
    """Answers for every module under the root, so that no installed one is ever looked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, part = fullname.partition(".")
        if root != ROOT:
            return None
        if part not in _SURFACE:
            served = ", ".join(f"{ROOT}.{name}" if name else ROOT for name in _SURFACE)
            raise ModuleNotFoundError(
                f"this runtime does not serve the module {fullname!r}: {_REMEDY}. It serves {served}", name=fullname
            )
        return ModuleSpec(fullname, _Loader(part), is_package=part in _PACKAGES)


class _Loader(Loader):
    def __init__(self, part: str) -> None:
        self._part = part

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Served(spec.name, self._part)

    def exec_module(self, module: ModuleType) -> None:
        shared = _SHARED.get(self._part)
        if shared is not None:
            sys.modules[module.__name__] = importlib.import_module(shared)


class _Served(ModuleType):
    """A module whose names are looked up when they are asked for."""

    def __init__(self, name: str, part: str) -> None:
        super().__init__(name, f"{name}, as this runtime serves it.")
        self._part = part
        self._origins = _ORIGINS[part]
        self.__all__ = [*self._origins, *(() if part else _ADAPTERS)]

    def __getattr__(self, name: str) -> Any:
        origins: Mapping[str, str] = self.__dict__.get("_origins", {})
        if name in origins:
            value = getattr(importlib.import_module(origins[name]), name)
            setattr(self, name, value)
            return value
        part: str = self.__dict__.get("_part", "")
        if not part and name in _ADAPTERS:
            raise ImportError(f"{ROOT}.{name} adapts {_ADAPTERS[name]}, which this runtime does not: {_REMEDY}")
        below = f"{part}.{name}" if part else name
        if below in _SURFACE:
            return importlib.import_module(f"{ROOT}.{below}")
        raise AttributeError(f"this runtime serves no {name!r} in {self.__name__}: {_REMEDY}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._origins})
