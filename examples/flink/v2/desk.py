"""The refund desk with a limit on what it pays back; nothing else is changed."""

from __future__ import annotations

import json

import shop
from flink_agents.api.agents.agent import Agent
from flink_agents.api.chat_message import ChatMessage, MessageRole
from flink_agents.api.decorators import (
    action,
    chat_model_connection,
    chat_model_setup,
    prompt,
    tool,
)
from flink_agents.api.events.chat_event import ChatRequestEvent, ChatResponseEvent
from flink_agents.api.events.event import Event, InputEvent, OutputEvent
from flink_agents.api.prompts.prompt import Prompt
from flink_agents.api.resource import ResourceDescriptor, ResourceType
from flink_agents.api.runner_context import RunnerContext

MOST_CENTS = 5_000


class RefundDesk(Agent):
    """Looks an order up, lets the model decide, and pays back what it decided."""

    @prompt
    @staticmethod
    def desk_prompt() -> Prompt:
        return Prompt.from_messages(
            [
                ChatMessage(
                    role=MessageRole.SYSTEM,
                    content="You work at a refund desk. Be strict. Visit {visit} of customer {customer}.",
                )
            ]
        )

    @chat_model_connection
    @staticmethod
    def desk_service() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="desk_model.DeskConnection")

    @chat_model_setup
    @staticmethod
    def desk_model() -> ResourceDescriptor:
        return ResourceDescriptor(
            clazz="desk_model.DeskModel",
            connection="desk_service",
            model="desk-1",
            prompt="desk_prompt",
            tools=["look_up_order"],
        )

    @tool
    @staticmethod
    def look_up_order(order_id: str) -> str:
        """Look an order up.

        Parameters
        ----------
        order_id : str
            The order, such as order-7.
        """
        return json.dumps(shop.order(order_id))

    @tool
    @staticmethod
    def issue_refund(order_id: str, cents: int) -> str:
        """Pay an order back.

        Parameters
        ----------
        order_id : str
            The order.
        cents : int
            How much, in cents.
        """
        shop.pay_back(order_id, cents)
        return "accepted"

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_message(event: Event, ctx: RunnerContext) -> None:
        message = InputEvent.from_event(event).input
        memory = ctx.short_term_memory
        visit = (memory.get("visits") or 0) + 1
        memory.set("visits", visit)
        memory.set("last.text", message["text"])
        ctx.send_event(
            ChatRequestEvent(
                model="desk_model",
                messages=[ChatMessage(role=MessageRole.USER, content=message["text"])],
                prompt_args={"customer": message["customer"], "visit": visit},
            )
        )

    @action(ChatResponseEvent.EVENT_TYPE)
    @staticmethod
    async def on_answer(event: Event, ctx: RunnerContext) -> None:
        answer = ChatResponseEvent.from_event(event).response.content
        visits = ctx.short_term_memory.get("visits")
        word, _, rest = answer.partition(" ")
        if word != "REFUND":
            ctx.send_event(OutputEvent(output={"say": answer, "visits": visits}))
            return
        order_id, _, cents = rest.partition(" ")
        refund = {"order_id": order_id, "cents": min(int(cents), MOST_CENTS)}
        pay = ctx.get_resource("issue_refund", ResourceType.TOOL)
        receipt = await ctx.durable_execute_async(pay.call, **refund)
        ctx.send_event(Event(type="refund_issued", attributes={**refund, "receipt": receipt}))

    @action("refund_issued")
    @staticmethod
    def on_refund(event: Event, ctx: RunnerContext) -> None:
        memory = ctx.short_term_memory
        refunded = (memory.get("refunded") or 0) + event.get_attr("cents")
        memory.set("refunded", refunded)
        say = f"Refunded {event.get_attr('order_id')}."
        ctx.send_event(OutputEvent(output={"say": say, "visits": memory.get("visits"), "refunded": refunded}))
