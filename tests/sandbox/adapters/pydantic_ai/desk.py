"""The refund desk once more, as an agent of Pydantic AI."""

from beam_agents import PydanticAIAgent
from beam_agents.tools.registry import ToolRegistry, tool
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


@tool()
def order_lookup(order: str) -> str:
    """What an order cost."""
    return f"order {order}: 48.00 EUR"


@tool(side_effect=True)
def refund(order: str, amount: str) -> str:
    """Pay money back."""
    raise AssertionError("an effector pays, never the pipeline")


TOOLS = ToolRegistry()
TOOLS.register(order_lookup)
TOOLS.register(refund)

MODEL = OpenAIChatModel("desk-1", provider=OpenAIProvider(base_url="http://model.example/v1", api_key="none"))
_agent = PydanticAIAgent(Agent(MODEL, instructions="You are a refund desk."), tools=[order_lookup, refund])


async def AGENT(ctx):  # noqa: N802  the name that builds give
    """By its name, for a chat model's connections cannot be pickled."""
    return await _agent(ctx)
