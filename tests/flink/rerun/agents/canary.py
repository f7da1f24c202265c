"""An agent whose only tool leaves traces: a file, and a connection."""

import json
import os
import socket
from pathlib import Path

from flink_agents.api.agents.agent import Agent
from flink_agents.api.decorators import action, tool
from flink_agents.api.events.event import Event, InputEvent, OutputEvent
from flink_agents.api.resource import ResourceType
from flink_agents.api.runner_context import RunnerContext


class Canary(Agent):
    @tool
    @staticmethod
    def sing(song: str) -> str:
        """Sing."""
        Path(os.environ["CANARY"]).write_text(song)
        socket.create_connection(("127.0.0.1", int(os.environ["CANARY_PORT"])), timeout=10).close()
        return "sung"

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    def on_input(event: Event, ctx: RunnerContext) -> None:
        song = InputEvent.from_event(event).input
        heard = ctx.get_resource("sing", ResourceType.TOOL).call(song=song)
        ctx.send_event(OutputEvent(output=json.dumps({"heard": heard})))


def draw(pot: str, most: int = 6) -> int:
    """A number that nobody could know, and a trace."""
    Path(os.environ["CANARY"]).write_text(pot)
    return int.from_bytes(os.urandom(6)) % most + 1_000


class Drawing(Agent):
    """Its job keeps what was drawn, so that a recovery does not draw again."""

    @action(InputEvent.EVENT_TYPE)
    @staticmethod
    async def on_input(event: Event, ctx: RunnerContext) -> None:
        pot = InputEvent.from_event(event).input
        if pot == "waiting":
            drawn = await ctx.durable_execute_async(draw, pot, most=9)
        else:
            drawn = ctx.durable_execute(draw, pot)
        ctx.send_event(OutputEvent(output={"drawn": drawn}))
