"""The other agent surface: an object with `activate`, whose context emits outputs and checks what it asks for.

The pipeline calls `agent(ctx)` with an ActivationContext and never `activate`; this surface is for code
that drives such an agent itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.runtime.tools import ToolError, ToolRegistry
from app.wire.identity import canonical_json

if TYPE_CHECKING:
    from app.runtime.context import ActivationContext
    from app.runtime.memory import Memory
    from app.runtime.model.client import LlmRequest, LlmResponse
    from app.wire.records import ToolIntent


@dataclass(frozen=True)
class AgentResult:
    """What an agent emitted and asked for."""

    outputs: tuple[bytes, ...] = ()
    intents: tuple[ToolIntent, ...] = ()


class AgentContext:
    """An activation for a StreamAgent: outputs are emitted, intents name registered side-effect tools."""

    def __init__(self, activation: ActivationContext, registry: ToolRegistry) -> None:
        self._activation = activation
        self._registry = registry
        self._outputs: list[bytes] = []

    @property
    def entity_key(self) -> bytes:
        """The raw key bytes."""
        return self._activation.entity_key

    @property
    def seq(self) -> int:
        """The activation's sequence number."""
        return self._activation.seq

    @property
    def now_ms(self) -> int:
        """The activation's clock in epoch milliseconds."""
        return self._activation.now_ms

    @property
    def event(self) -> bytes:
        """The event's bytes; raises TypeError in a batch."""
        return self._activation.single_event

    @property
    def memory(self) -> Memory:
        """The key's working memory."""
        return self._activation.memory

    @property
    def result(self) -> AgentResult:
        """Outputs and intents so far."""
        return AgentResult(tuple(self._outputs), self._activation.staged_intents)

    def emit(self, output: bytes) -> None:
        """Add an output."""
        self._outputs.append(output)

    async def call_model(self, request: LlmRequest) -> LlmResponse:
        """Answer a request from the cache or the provider."""
        return await self._activation.call_model(request)

    async def run_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run a read-only tool."""
        return await self._activation.run_tool(name, arguments)

    def act(self, tool_name: str, arguments: Mapping[str, Any], *, ttl_ms: int | None = None) -> str:
        """Stage an intent for a registered side-effect tool, its arguments as canonical JSON; returns its id.

        Raises ToolNotFoundError, ToolError for a read-only tool, TypeError or ValueError for arguments
        that are no JSON.
        """
        if not self._registry.get(tool_name).side_effect:
            raise ToolError(f"tool {tool_name!r} is read-only: run it with ctx.run_tool(...)")
        return self._activation.act(tool_name, canonical_json(dict(arguments)), ttl_ms=ttl_ms)


class StreamAgent(ABC):
    """An agent as an object."""

    @abstractmethod
    async def activate(self, ctx: AgentContext) -> None:
        """Handle one activation."""


class FunctionAgent:
    """A plain async function as an agent object; calling either way calls the function."""

    def __init__(self, function: Callable[[Any], Awaitable[Any]]) -> None:
        self._function = function

    async def __call__(self, ctx: Any) -> Any:
        return await self._function(ctx)

    async def activate(self, ctx: Any) -> None:
        """Handle one activation."""
        await self._function(ctx)
