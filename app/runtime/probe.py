"""What a re-run may observe of an activation without changing it: every method does nothing here.

The replay subclasses `Probe`; the pipeline passes None. A probe sees values, never holds up or
alters a byte of what the activation stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.runtime.model.client import LlmRequest
    from app.wire.records import ToolIntent


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded tool answer that stands in for executing the tool: a value, or an error to raise."""

    value: object = None
    error: Exception | None = None


class Probe:
    """Observer of one activation; override what is of interest."""

    def memory_read(self, operation: str, key: str, value: object) -> None:
        """Agent, compactor or summarizer code learned `value` about working memory.

        `operation` is get, ring, keys, entry_size or size_bytes; `key` is empty for keys and
        size_bytes. An absent key reads as None (get, entry_size) or () (ring). `kind` is what an append tells: that a
        ring was there, or nothing (None).
        """

    def memory_write(self, operation: str, key: str, before: bytes | None, after: bytes | None) -> None:
        """`operation` (set, append, delete) changed an encoded entry value; None means absent."""

    def model_request(self, request: LlmRequest, cache_key: str, material: str, step_index: int) -> None:
        """A model call is about to ask the cache; `material` is the text that `cache_key` digests."""

    def model_answer(self, cache_key: str, response: bytes, from_cache: bool, step_index: int) -> None:
        """A model call has its answer, from the cache or from the provider."""

    def cache_unusable(self, cache_key: str, reason: str) -> None:
        """The cache holds an entry for the key and does not serve it: `digest_only` or `expired`."""

    def serving_seen(self, what: str) -> None:
        """Agent code looked at how its model calls were answered: `tally` counts them, `cache` shows the cache."""

    def tool_answer(self, name: str, arguments: Mapping[str, object]) -> Answer | None:
        """Supply a tool's answer in place of running it; None runs it."""
        return None

    def tool_done(
        self,
        name: str,
        arguments: Mapping[str, object],
        value: object,
        error: BaseException | None,
        refused: bool,
        supplied: bool,
        step_index: int,
    ) -> None:
        """A tool run ended; `refused` means that it was turned down before it started."""

    def longterm_read(self, operation: str, key: str) -> None:
        """The activation asked the long-term store: `load` with a key or `search` with a prefix."""

    def intent(self, intent: ToolIntent) -> None:
        """An intent was staged."""
