"""A refund desk written as a LangGraph graph: it looks an order up, asks for a refund, and says so."""

from beam_agents import LangGraphAgent
from beam_agents.adapters.langgraph import BeamToolNode
from beam_agents.tools.registry import ToolRegistry, tool
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition


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

MODEL = ChatOpenAI(model="desk-1", api_key="none", base_url="http://model.example/v1", max_retries=0)


def schema(name, *parameters):
    properties = {parameter: {"type": "string"} for parameter in parameters}
    shape = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": shape}}


SCHEMAS = [schema("order_lookup", "order"), schema("refund", "order", "amount")]


async def think(state):
    return {"messages": [await MODEL.bind(tools=SCHEMAS).ainvoke(state["messages"])]}


def decode_event(payload):
    return {"messages": [HumanMessage(payload.decode())]}


def encode_output(state):
    return state["messages"][-1].content.encode()


_graph = StateGraph(MessagesState)
_graph.add_node("think", think)
_graph.add_node("tools", BeamToolNode([order_lookup, refund]))
_graph.add_edge(START, "think")
_graph.add_conditional_edges("think", tools_condition)
_graph.add_edge("tools", "think")
_agent = LangGraphAgent(_graph, decode_event=decode_event, encode_output=encode_output, chat_models=[MODEL])


async def AGENT(ctx):  # noqa: N802  the name that builds give
    """By its name, for a chat model's connections cannot be pickled."""
    return await _agent(ctx)
