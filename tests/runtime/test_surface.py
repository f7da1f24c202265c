"""The object surface: outputs are emitted, intents are checked and canonical."""

import pytest

from app.runtime.context import ActivationContext
from app.runtime.outcome import Complete
from app.runtime.surface import AgentContext, AgentResult, FunctionAgent, StreamAgent
from app.runtime.tools import ToolError, ToolNotFoundError, ToolRegistry, tool
from tests.runtime.running import KEY, NOW, ask, run


@tool
def lookup(name: str) -> str:
    """Read-only."""
    return name.upper()


@tool(side_effect=True)
def pay(to: str) -> None:
    """Moves money."""


TOOLS = ToolRegistry()
TOOLS.register(lookup)
TOOLS.register(pay)


class Desk(StreamAgent):
    """Uses everything once."""

    async def activate(self, ctx: AgentContext) -> None:
        answer = await ctx.call_model(ask("a"))
        ctx.memory.set("seen", ctx.event)
        ctx.emit(answer.response)
        ctx.emit((await ctx.run_tool("lookup", {"name": "bob"})).encode())
        ctx.act("pay", {"to": "é", "amount": 1}, ttl_ms=5)
        with pytest.raises(ToolError, match=r"run it with ctx\.run_tool"):
            ctx.act("lookup", {})
        with pytest.raises(ToolNotFoundError):
            ctx.act("nope", {})
        assert (ctx.entity_key, ctx.seq, ctx.now_ms) == (KEY, 0, NOW)


async def test_an_object_agent_driven_by_hand() -> None:
    results: list[AgentResult] = []

    async def agent(activation: ActivationContext) -> Complete:
        ctx = AgentContext(activation, TOOLS)
        await Desk().activate(ctx)
        results.append(ctx.result)
        return Complete()

    result = await run(agent, registry=TOOLS)
    assert result.error is None
    assert results == [AgentResult((b"pong", b"BOB"), result.intents)]
    assert result.intents[0].args_json == '{"amount":1,"to":"é"}'


async def test_an_object_with_activate_alone_is_not_called() -> None:
    result = await run(Desk())  # type: ignore[arg-type]
    assert result.dead_letter is not None
    assert result.dead_letter.detail.startswith("TypeError(\"'Desk' object is not callable\")")


async def test_a_function_agent_calls_its_function_either_way() -> None:
    async def function(_ctx: object) -> Complete:
        calls.append("called")
        return Complete(b"x")

    calls: list[str] = []
    assert (await run(FunctionAgent(function))).output == b"x"
    await FunctionAgent(function).activate(object())
    assert calls == ["called"] * 2
