"""The agent behind the real logs of `tests/flink/data`, as they tell it: it counts a key's inputs, and may refund."""

import json

from flink_agents.api.agents.agent import Agent
from flink_agents.api.chat_message import ChatMessage, MessageRole
from flink_agents.api.decorators import action, chat_model_connection, chat_model_setup, tool
from flink_agents.api.events.chat_event import ChatRequestEvent, ChatResponseEvent
from flink_agents.api.events.event import Event, InputEvent, OutputEvent
from flink_agents.api.resource import ResourceDescriptor
from flink_agents.api.runner_context import RunnerContext


class RefundAgent(Agent):
    @chat_model_connection
    @staticmethod
    def service() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="odd.Connection")

    @chat_model_setup
    @staticmethod
    def llm() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="odd.Setup", connection="service", model="mock-1", tools=["issue_refund"])

    @tool
    @staticmethod
    def issue_refund(order_id: str, cents: int) -> str:
        """Pay back."""
        raise AssertionError("nothing may run this")

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        memory = ctx.short_term_memory
        memory.set("count", (memory.get("count") or 0) + 1)
        text = InputEvent.from_event(event).input["text"]
        ctx.send_event(ChatRequestEvent(model="llm", messages=[ChatMessage(role=MessageRole.USER, content=text)]))

    @action(ChatResponseEvent.EVENT_TYPE)
    @staticmethod
    def on_response(event: Event, ctx: RunnerContext) -> None:
        text = ChatResponseEvent.from_event(event).response.content
        ctx.send_event(OutputEvent(output=json.dumps({"n": ctx.short_term_memory.get("count"), "text": text})))


class Miscounting(Agent):
    """The same agent, which counts by two from the second input on."""

    service = RefundAgent.__dict__["service"]
    llm = RefundAgent.__dict__["llm"]
    issue_refund = RefundAgent.__dict__["issue_refund"]
    on_response = RefundAgent.__dict__["on_response"]

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        memory = ctx.short_term_memory
        count = memory.get("count")
        memory.set("count", 1 if count is None else count + 2)
        text = InputEvent.from_event(event).input["text"]
        ctx.send_event(ChatRequestEvent(model="llm", messages=[ChatMessage(role=MessageRole.USER, content=text)]))
