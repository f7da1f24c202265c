"""Agents that ask the engine for more than it can give, or that try to get around it."""

import asyncio
import json
import socket

from flink_agents.api.agents.agent import Agent
from flink_agents.api.chat_message import ChatMessage
from flink_agents.api.chat_models.chat_model import BaseChatModelConnection, BaseChatModelSetup
from flink_agents.api.decorators import (
    action,
    chat_model_connection,
    chat_model_setup,
    mcp_server,
    tool,
    vector_store,
)
from flink_agents.api.events.chat_event import ChatRequestEvent, ChatResponseEvent
from flink_agents.api.events.context_retrieval_event import (
    ContextRetrievalRequestEvent,
    ContextRetrievalResponseEvent,
)
from flink_agents.api.events.event import Event, InputEvent, OutputEvent
from flink_agents.api.resource import ResourceDescriptor, ResourceType
from flink_agents.api.runner_context import RunnerContext
from flink_agents.api.vector_stores.vector_store import BaseVectorStore

RETRY = {"error-handling-strategy": "retry", "max-retries": 3, "retry-wait-interval": 600}


def output(ctx: RunnerContext, value: object) -> None:
    ctx.send_event(OutputEvent(output=json.dumps(value)))


class Connection(BaseChatModelConnection):
    def chat(self, messages: object, tools: object = None, **kwargs: object) -> ChatMessage:
        raise AssertionError("never asked")


class Setup(BaseChatModelSetup):
    @property
    def model_kwargs(self) -> dict:
        return {"model": self.model}


class Twice(Setup):
    def chat(self, messages: list, *args: object, **kwargs: object) -> ChatMessage:
        super().chat(messages, *args, **kwargs)
        return super().chat(messages, *args, **kwargs)


class Store(BaseVectorStore):
    """Cannot even be made: its methods are missing."""


class LongMemory(Agent):
    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        output(ctx, str(ctx.long_term_memory))


class Sleeper(Agent):
    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    async def on_input(event: Event, ctx: RunnerContext) -> None:
        await asyncio.sleep(0)
        output(ctx, "woke")


class Loop(Agent):
    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    async def on_input(event: Event, ctx: RunnerContext) -> None:
        await asyncio.sleep(1)


class Skilled(Agent):
    @chat_model_setup
    @staticmethod
    def llm() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="odd.Setup", connection="none", model="m", skills=["juggling"])

    @chat_model_connection
    @staticmethod
    def none() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="odd.Connection")

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        ctx.get_resource("llm", ResourceType.CHAT_MODEL)


class Javan(Agent):
    @chat_model_setup
    @staticmethod
    def llm() -> ResourceDescriptor:
        return ResourceDescriptor(
            clazz="flink_agents.api.chat_models.java_chat_model.JavaChatModelSetup", java_clazz="org.example.Llm"
        )

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        ctx.get_resource("llm", ResourceType.CHAT_MODEL)


class Served(Agent):
    @mcp_server
    @staticmethod
    def remote() -> ResourceDescriptor:
        return ResourceDescriptor(
            clazz="flink_agents.integrations.mcp.mcp.MCPServer", endpoint="http://127.0.0.1:9/mcp"
        )

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        output(ctx, "never")


class Swallower(Agent):
    """Goes on, whatever is raised at it."""

    @tool
    @staticmethod
    def ask(what: str) -> str:
        """Ask."""
        return "no"

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        try:
            heard = ctx.get_resource("ask", ResourceType.TOOL).call(what="x")
        except BaseException:  # noqa: BLE001
            heard = "nothing"
        try:
            ctx.short_term_memory.set("heard", heard)
            output(ctx, heard)
        except BaseException:  # noqa: BLE001
            pass
        raise ValueError("and now something else")


class Failing(Agent):
    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        ctx.send_event(Event(type="before", attributes={}))
        raise ValueError("no good")


class Far(BaseChatModelConnection):
    """Its model is behind a network."""

    def chat(self, messages: object, tools: object = None, **kwargs: object) -> ChatMessage:
        socket.create_connection(("models.example", 443), timeout=1)
        raise AssertionError("there is no network here")


class Caller(Agent):
    """Asks a model that is far away; with `ignore` in its options it goes on without an answer."""

    @chat_model_connection
    @staticmethod
    def far() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="odd.Far")

    @chat_model_setup
    @staticmethod
    def llm() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="odd.Setup", connection="far", model="m")

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        output(ctx, "asking")
        ctx.send_event(
            ChatRequestEvent(model="llm", messages=[ChatMessage(content=InputEvent.from_event(event).input)])
        )


IGNORE = {"error-handling-strategy": "ignore"}


class Retrier(Agent):
    @chat_model_connection
    @staticmethod
    def service() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="odd.Connection")

    @chat_model_setup
    @staticmethod
    def llm() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="odd.Setup", connection="service", model="m")

    @chat_model_setup
    @staticmethod
    def twice() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="odd.Twice", connection="service", model="m")

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        text = InputEvent.from_event(event).input
        model = "twice" if text == "twice" else "llm"
        if text == "direct":
            answer = ctx.get_resource("llm", ResourceType.CHAT_MODEL).chat([ChatMessage(content=text)])
            output(ctx, answer.content)
        else:
            ctx.send_event(ChatRequestEvent(model=model, messages=[ChatMessage(content=text)]))

    @action(ChatResponseEvent.EVENT_TYPE)
    @staticmethod
    def on_answer(event: Event, ctx: RunnerContext) -> None:
        told = ChatResponseEvent.from_event(event)
        output(ctx, {"said": told.response.content, "retries": told.retry_count})


def pure(number: int) -> int:
    return number * 2


class Remembering(Agent):
    """Walks through everything that memory can do, and durable functions."""

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    async def on_input(event: Event, ctx: RunnerContext) -> None:
        memory = ctx.short_term_memory
        seen = memory.get("seen") or []
        seen.append(InputEvent.from_event(event).input)  # a copy: memory must not change by this
        kept = memory.get("seen")
        memory.set("seen", seen)
        nested = memory.new_object("person.address")
        nested.set("city", "Oslo")
        reference = memory.set("person.name", "Ada")
        refused = []
        for attempt in (
            lambda: memory.set("person", 1),
            lambda: memory.set("x", object()),
            lambda: memory.new_object("seen"),
        ):
            try:
                attempt()
            except (TypeError, ValueError) as error:
                refused.append(type(error).__name__)
        ctx.sensory_memory.set("once", True)
        ctx.action_metric_group.get_counter("n").inc()
        told = {
            "kept": kept,
            "city": memory.get("person").get("address.city"),
            "name": reference.resolve(ctx),
            "fields": memory.get_fields(),
            "names": memory.get("person").get_field_names(),
            "exists": [memory.is_exist("person.name"), memory.is_exist("nobody")],
            "refused": refused,
            "sync": ctx.durable_execute(pure, 4),
            "async": await ctx.durable_execute_async(pure, 5),
        }
        ctx.send_event(Event(type="checked", attributes=told))

    @action("checked")
    @staticmethod
    def on_checked(event: Event, ctx: RunnerContext) -> None:
        told = dict(event.attributes)
        told["once"] = ctx.sensory_memory.get("once")
        ctx.send_event(OutputEvent(output=told))


class Searching(Agent):
    @vector_store
    @staticmethod
    def books() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="odd.Store")

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        ctx.send_event(ContextRetrievalRequestEvent(query="whales", vector_store="books", max_results=2))

    @action(ContextRetrievalResponseEvent.EVENT_TYPE)
    @staticmethod
    def on_found(event: Event, ctx: RunnerContext) -> None:
        found = ContextRetrievalResponseEvent.from_event(event).documents
        output(ctx, [one.content for one in found])


NOT_AN_AGENT = 7
