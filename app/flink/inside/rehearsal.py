"""A throwaway agent that is fed once in the process that runs are forked from, so that no run does it first."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.chat_message import ChatMessage, MessageRole
from flink_agents.api.chat_models.chat_model import BaseChatModelConnection, BaseChatModelSetup
from flink_agents.api.decorators import action, chat_model_connection, chat_model_setup, prompt, tool
from flink_agents.api.events.chat_event import ChatRequestEvent, ChatResponseEvent
from flink_agents.api.events.event import Event, InputEvent, OutputEvent
from flink_agents.api.prompts.prompt import Prompt
from flink_agents.api.resource import ResourceDescriptor
from flink_agents.api.runner_context import RunnerContext

from app.flink.inside import driver
from app.flink.inside.messages import (
    Exchange,
    Handling,
    Input,
    Policy,
    Request,
    Result,
    ToolAnswer,
    digest,
    message_as_logged,
    request_as_logged,
    tool_digest,
)

_WORDS = "rehearse é"
_CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"where": _WORDS}}}


class Connection(BaseChatModelConnection):
    """Never asked."""

    def chat(self, messages: Any, tools: Any = None, **kwargs: Any) -> Any:
        raise AssertionError("a contained connection asks nobody")


class Setup(BaseChatModelSetup):
    @property
    def model_kwargs(self) -> dict[str, Any]:
        return {"model": self.model}


class Rehearsal(Agent):
    """Does once what most agents do."""

    @prompt
    @staticmethod
    def words() -> Prompt:
        return Prompt.from_messages([ChatMessage(role=MessageRole.SYSTEM, content="{word}")])

    @chat_model_connection
    @staticmethod
    def service() -> ResourceDescriptor:
        return ResourceDescriptor(clazz=f"{__name__}.Connection")

    @chat_model_setup
    @staticmethod
    def model() -> ResourceDescriptor:
        return ResourceDescriptor(
            clazz=f"{__name__}.Setup", connection="service", model="m", prompt="words", tools=["look"]
        )

    @tool
    @staticmethod
    def look(where: str, count: int = 1) -> str:
        """Look.

        Parameters
        ----------
        where : str
            Where to.
        count : int
            How often.
        """
        raise AssertionError("a contained tool is not run")

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        text = InputEvent.from_event(event).input
        ctx.short_term_memory.set("seen.text", text)
        ctx.send_event(
            ChatRequestEvent(model="model", messages=[ChatMessage(content=text)], prompt_args={"word": text})
        )

    @action(ChatResponseEvent.EVENT_TYPE)
    @staticmethod
    async def on_answer(event: Event, ctx: RunnerContext) -> None:
        said = ChatResponseEvent.from_event(event).response.content
        seen = await ctx.durable_execute_async(str, ctx.short_term_memory.get("seen.text"))
        ctx.send_event(OutputEvent(output={"said": said, "seen": seen}))


def rehearse() -> None:
    """Feed the agent once; where that fails, each run will say for itself what is wrong."""
    with suppress(Exception):
        rehearsed()


def rehearsed() -> Result:
    """Feed it one input with a tool call in it."""
    asked = [message_as_logged({"content": _WORDS})]
    calls = message_as_logged({"role": "assistant", "tool_calls": [_CALL]})
    more = [*asked, calls, message_as_logged({"role": "tool", "content": "seen"})]
    exchanges = [
        Exchange(digest=digest(request_as_logged("model", messages, {"word": _WORDS})), answer=answer)
        for messages, answer in ((asked, calls), (more, message_as_logged({"role": "assistant", "content": "done"})))
    ]
    answer = ToolAnswer(tool="look", digest=tool_digest("look", {"where": _WORDS}), value="seen")
    allowed = {"function": Handling(policy=Policy.ALLOW)}
    request = Request(
        handling=allowed, inputs=[Input(key="k", seq=0, value=_WORDS, exchanges=exchanges, tools=[answer])]
    )
    result = driver.feed(Request.model_validate_json(request.model_dump_json()), f"{__name__}:Rehearsal")
    result.model_dump_json()
    return result
