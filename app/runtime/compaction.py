"""Keeping working memory small: by dropping, by summarising, and by saving what a TTL wipe would lose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

from app.runtime.memory import Memory
from app.wire.records import MemoryBlob, serialize

if TYPE_CHECKING:
    from app.runtime.model.client import LlmRequest, LlmResponse
    from app.runtime.stores import MemoryStore

DEFAULT_TARGET_BYTES: Final = 524_288
DEFAULT_TRIGGER_BYTES: Final = 786_432
PROTECTED_PREFIX: Final = "__langgraph__/"


@runtime_checkable
class Compactor(Protocol):
    """Makes room when a cap is reached; synchronous, and free of the caps while it runs."""

    def compact(self, memory: Memory) -> None: ...


@runtime_checkable
class SummarizationView(Protocol):
    """What a summarizer works on: the memory and the model."""

    @property
    def memory(self) -> Memory: ...

    async def call_model(self, request: LlmRequest) -> LlmResponse: ...


@runtime_checkable
class Summarizer(Protocol):
    """Runs after the agent when working memory has at least `trigger_bytes`."""

    @property
    def trigger_bytes(self) -> int: ...

    async def compact(self, view: SummarizationView) -> None: ...


class DropOldestCompactor:
    """Deletes entries least recently used first until `target_bytes`, sparing protected key prefixes."""

    def __init__(
        self,
        *,
        target_bytes: int = DEFAULT_TARGET_BYTES,
        protected_prefixes: Sequence[str] = (PROTECTED_PREFIX,),
    ) -> None:
        if target_bytes < 0:
            raise ValueError(f"target_bytes must be 0 or more, not {target_bytes}")
        self.target_bytes = target_bytes
        self.protected_prefixes = tuple(protected_prefixes)

    def compact(self, memory: Memory) -> None:
        """Delete until the target is met or only protected entries are left."""
        for key in memory.keys():  # noqa: SIM118 - Memory is no mapping
            if memory.size_bytes <= self.target_bytes:
                return
            if not key.startswith(self.protected_prefixes):
                memory.delete(key)


class SummarizeCompactor:
    """Folds the older items of the source rings into one model-written summary.

    `build_request(old items, previous summary or None)` makes the request, `extract_summary(response
    bytes)` reads the answer. `compact` raises ValueError when the summary is not shorter than what it
    replaces.
    """

    def __init__(
        self,
        *,
        build_request: Callable[[tuple[bytes, ...], bytes | None], LlmRequest],
        extract_summary: Callable[[bytes], bytes],
        source_keys: Sequence[str],
        summary_key: str = "summary",
        keep_recent: int = 8,
        trigger_bytes: int = DEFAULT_TRIGGER_BYTES,
    ) -> None:
        if not source_keys:
            raise ValueError("source_keys must name at least one ring to summarise")
        if keep_recent < 0:
            raise ValueError(f"keep_recent must be 0 or more, not {keep_recent}")
        self.build_request = build_request
        self.extract_summary = extract_summary
        self.source_keys = tuple(source_keys)
        self.summary_key = summary_key
        self.keep_recent = keep_recent
        self.trigger_bytes = trigger_bytes

    async def compact(self, view: SummarizationView) -> None:
        """Summarise what is older than the newest `keep_recent` items of each ring; no old items, no call."""
        memory = view.memory
        old: list[bytes] = []
        kept: list[tuple[str, tuple[bytes, ...]]] = []
        for key in self.source_keys:
            items = memory.ring(key)
            split = max(len(items) - self.keep_recent, 0)
            if split:
                old.extend(items[:split])
                kept.append((key, items[split:]))
        if not old:
            return
        response = await view.call_model(self.build_request(tuple(old), memory.get(self.summary_key)))
        summary = self.extract_summary(response.response)
        folded = sum(len(item) for item in old)
        if len(summary) >= folded:
            raise ValueError(f"the summary has {len(summary)} bytes, the {len(old)} items it replaces have {folded}")
        for key, items in kept:
            memory.delete(key)
            for item in items:
                memory.append(key, item, max_items=len(items))
        memory.set(self.summary_key, summary)


@dataclass(frozen=True)
class ExpiringMemory:
    """Working memory that a TTL wipe is about to take; `seq` is the commit counter."""

    entity_key: bytes
    seq: int
    blob: MemoryBlob
    expired_at_ms: int


ExpireHook: TypeAlias = "Callable[[MemoryStore, ExpiringMemory], Awaitable[None]]"


@dataclass(frozen=True)
class FlushToLongterm:
    """An expire hook that saves the whole blob's deterministic bytes under one long-term key."""

    key: str = "working_memory"

    async def __call__(self, store: MemoryStore, expiry: ExpiringMemory) -> None:
        """Save the blob; a stored record of a higher counter stays."""
        from app.runtime.stores import MemoryRecord

        await store.save(
            MemoryRecord(expiry.entity_key, self.key, serialize(expiry.blob), expiry.seq, expiry.expired_at_ms)
        )
