"""Token counts and what a decode hook reads; apart from the facade, which most agents never load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from app.runtime import trace


@dataclass(frozen=True)
class TokenUsage:
    """Token counts as the provider states them; the total need not be the sum."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True)
class DecodedResponse:
    """What a decode hook reads from response bytes."""

    usage: TokenUsage
    text: str


Decode: TypeAlias = Callable[[bytes], DecodedResponse]


def call_attributes(model_id: str, *, cache_hit: bool, billed: bool, usage: TokenUsage | None) -> dict[str, str]:
    """The attributes that every LLM_CALL carries; token counts only where they are known."""
    attributes = {
        trace.OPERATION: "chat",
        trace.REQUEST_MODEL: model_id,
        trace.CACHE_HIT: "true" if cache_hit else "false",
        trace.BILLED: "true" if billed else "false",
    }
    if usage is not None:
        attributes[trace.INPUT_TOKENS] = str(usage.prompt_tokens)
        attributes[trace.OUTPUT_TOKENS] = str(usage.completion_tokens)
    return attributes
