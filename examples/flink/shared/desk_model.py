"""The example's chat model: it answers by rules, so that a recording can be made anywhere and means the same."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from flink_agents.api.chat_message import ChatMessage, MessageRole
from flink_agents.api.chat_models.chat_model import BaseChatModelConnection, BaseChatModelSetup


class DeskConnection(BaseChatModelConnection):
    """Stands where a provider's connection would stand; a real one would ask a service."""

    def chat(self, messages: Sequence[ChatMessage], tools: list[Any] | None = None, **kwargs: Any) -> ChatMessage:
        last = messages[-1]
        if last.role == MessageRole.TOOL:
            return self._decide(messages, json.loads(last.content))
        asked = re.search(r"order-(\d+)", last.content)
        if asked is None:
            return _says("Good day! Which order is this about?")
        call = {"name": "look_up_order", "arguments": {"order_id": asked[0]}}
        return ChatMessage(
            role=MessageRole.ASSISTANT,
            content="Let me look at that order.",
            tool_calls=[{"id": f"call-{asked[1]}-{len(messages)}", "type": "function", "function": call}],
        )

    def _decide(self, messages: Sequence[ChatMessage], order: dict[str, Any]) -> ChatMessage:
        generous = any(m.role == MessageRole.SYSTEM and "generous" in m.content for m in messages)
        if order["status"] == "delivered" and not generous:
            return _says(f"{order['order_id']} was delivered, so I cannot refund it.")
        return _says(f"REFUND {order['order_id']} {order['cents']}")


class DeskModel(BaseChatModelSetup):
    """The set-up: which connection, which prompt, which tools."""

    temperature: float = 0.0

    @property
    def model_kwargs(self) -> dict[str, Any]:
        return {"model": self.model, "temperature": self.temperature}


def _says(text: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.ASSISTANT, content=text)
