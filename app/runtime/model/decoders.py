"""Decode hooks for two common response bodies, so that usage and text need no agent code."""

from __future__ import annotations

import json

from app.runtime.model.usage import DecodedResponse, TokenUsage


def openai_compat_decode(data: bytes) -> DecodedResponse:
    """Read a chat completion body; raises KeyError, IndexError or ValueError when it is another shape."""
    body = json.loads(data)
    usage = body["usage"]
    return DecodedResponse(
        TokenUsage(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]),
        body["choices"][0]["message"]["content"] or "",
    )


def anthropic_decode(data: bytes) -> DecodedResponse:
    """Read a messages body, whose text is that of all its text blocks; raises as the other decoder does."""
    body = json.loads(data)
    prompt, completion = body["usage"]["input_tokens"], body["usage"]["output_tokens"]
    text = "".join(block["text"] for block in body["content"] if block.get("type") == "text")
    return DecodedResponse(TokenUsage(prompt, completion, prompt + completion), text)
