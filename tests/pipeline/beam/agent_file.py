"""An agent as its author writes it: it imports `beam_agents`, which only a pipeline's process knows."""

from beam_agents.core.agent import Complete
from beam_agents.model.fake import FakeLLM, match_any, respond_with
from beam_agents.tools import ToolRegistry, tool


def make_provider() -> FakeLLM:
    return FakeLLM([(match_any(), respond_with(b"pong"))])


@tool
def shout(text: str, times: int = 1) -> str:
    """Say it loudly."""
    return text.upper() * times


TOOLS = ToolRegistry()
TOOLS.register(shout)


async def agent(ctx):  # type: ignore[no-untyped-def]
    said = await ctx.run_tool("shout", {"text": ctx.single_event.decode(), "times": "2"})
    return Complete(output=said.encode())
