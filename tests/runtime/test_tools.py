"""Tools: what may be one, how arguments are read, what is refused in which order."""

import asyncio
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from app.runtime.activation import ActivationResult
from app.runtime.context import ActivationContext
from app.runtime.outcome import Complete
from app.runtime.probe import Answer
from app.runtime.tools import (
    IntentInfo,
    SideEffectToolError,
    ToolArgumentError,
    ToolDefinitionError,
    ToolError,
    ToolNotFoundError,
    ToolRegistry,
    ToolRunner,
    tool,
)
from tests.runtime.running import Recorder, names, run


class Address(BaseModel):
    """A nested model."""

    city: str
    zip: int = 0


@tool
def lookup(name: str, limit: int = 5) -> str:
    """Read-only history lookup."""
    return f"{name}:{limit!r}"


@tool(name="find", description="Finds.")
async def find_it(where: Address, tags: list[str] | None = None) -> Any:
    """Not the description."""
    await asyncio.sleep(0)
    return (where, tags)


@tool(side_effect=True)
def pay(to: str, *, intent: IntentInfo) -> str:
    """Moves money."""
    return f"{to} {intent.intent_id}"


@tool
def breaks() -> None:
    """Raises."""
    raise ConnectionError("no network")


def registry() -> ToolRegistry:
    tools = ToolRegistry()
    for each in (lookup, find_it, pay, breaks):
        tools.register(each)
    return tools


async def using(name: str, arguments: Any, probe: Recorder | None = None) -> tuple[ActivationResult, list[Any]]:
    got: list[Any] = []

    async def agent(ctx: ActivationContext) -> Complete:
        got.append(await ctx.run_tool(name, arguments))
        return Complete()

    return await run(agent, registry=registry(), probe=probe), got


def test_what_a_tool_says_of_itself() -> None:
    assert lookup.schema == {
        "name": "lookup",
        "description": "Read-only history lookup.",
        "parameters": {
            "properties": {
                "name": {"title": "Name", "type": "string"},
                "limit": {"default": 5, "title": "Limit", "type": "integer"},
            },
            "required": ["name"],
            "title": "lookupArgs",
            "type": "object",
        },
    }
    assert (find_it.name, find_it.description, find_it.side_effect) == ("find", "Finds.", False)
    assert find_it.schema["parameters"]["title"] == "findArgs"
    assert [schema["name"] for schema in registry().tools_schema()] == ["lookup", "find", "pay", "breaks"]
    assert (lookup.accepts_intent, pay.accepts_intent) == (False, True)
    assert list(pay.schema["parameters"]["properties"]) == ["to"]
    assert lookup.unwrap()("x") == "x:5"


def test_calling_a_tool_validates_nothing_and_refuses_side_effects() -> None:
    assert lookup("x", limit="seven") == "x:'seven'"
    with pytest.raises(SideEffectToolError):
        pay("x")


def test_a_tool_names_and_annotates_its_parameters() -> None:
    with pytest.raises(ToolDefinitionError, match="no annotation on parameter 'a'"):
        tool(lambda a: a)

    def rest(*args: int) -> None: ...

    def keywords(**kwargs: int) -> None: ...

    def unknown(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def unreadable(a: ActivationContext) -> None: ...

    for function, problem in [
        (rest, r"takes \*args"),
        (keywords, r"takes \*\*kwargs"),
        (unknown, "Nowhere"),
        (unreadable, "cannot be validated"),
    ]:
        with pytest.raises(ToolDefinitionError, match=problem):
            tool(function)
    with pytest.raises(ToolDefinitionError, match="signature"):
        tool(7)  # type: ignore[call-overload]


def test_a_registry_holds_each_name_once() -> None:
    tools = registry()
    with pytest.raises(ToolError, match="'lookup' is already registered"):
        tools.register(lookup)
    with pytest.raises(ToolNotFoundError, match=r"'nope'.*lookup, find, pay, breaks"):
        tools.get("nope")
    with pytest.raises(ToolError, match="not function"):
        tools.register(test_a_registry_holds_each_name_once)  # type: ignore[arg-type]


async def test_arguments_are_coerced_defaults_filled_extras_ignored() -> None:
    result, got = await using("lookup", {"name": "bob", "limit": "7", "extra": 1})
    assert got == ["bob:7"]
    assert names(result.events) == ["ACTIVATION_START", "TOOL_CALL", "ACTIVATION_END"]
    assert dict(result.events[1].attributes) == {"beam_agents.tool_name": "lookup"}
    assert (await using("lookup", {"name": "bob"}))[1] == ["bob:5"]


async def test_nested_models_arrive_as_dicts() -> None:
    assert (await using("find", {"where": {"city": "Rome"}}))[1] == [({"city": "Rome", "zip": 0}, None)]


async def test_annotated_constraints_and_positional_parameters() -> None:
    @tool
    def at_most(n: Annotated[int, Field(le=3)], /, m: int) -> int:
        return n * m

    tools = ToolRegistry()
    tools.register(at_most)
    assert await ToolRunner(tools).run("at_most", {"n": 3, "m": 2}) == 6
    with pytest.raises(ToolArgumentError, match="less_than_equal"):
        await ToolRunner(tools).run("at_most", {"n": 4, "m": 2})


@pytest.mark.parametrize(
    ("name", "arguments", "error", "text"),
    [
        ("nope", {}, ToolNotFoundError, "no tool named 'nope'"),
        (
            "pay",
            {"nonsense": 1},
            SideEffectToolError,
            "tool 'pay' is side_effect=True and cannot be invoked directly; request it through ctx.act(...) instead",
        ),
        (
            "lookup",
            {"nope": "bob"},
            ToolArgumentError,
            "invalid arguments for tool 'lookup': 1 validation error for lookupArgs\nname\n  Field required",
        ),
        ("lookup", ["bob"], ToolArgumentError, "invalid arguments for tool 'lookup'"),
    ],
)
async def test_refusals(name: str, arguments: Any, error: type[ToolError], text: str) -> None:
    probe = Recorder()
    result, _ = await using(name, arguments, probe)
    assert type(result.error) is error
    assert str(result.error).startswith(text)
    assert result.events[0].attributes["beam_agents.failure.last_event"] == "ACTIVATION_START"
    assert probe.of("tool_answer") == []
    assert probe.of("tool_done") == [(name, arguments, None, result.error, True, False, 0)]


def test_an_effectors_intent_is_no_argument() -> None:
    with pytest.raises(ToolArgumentError, match="supplied by the effector"):
        pay.validate({"to": "x", "intent": {}})
    assert pay.validate({"to": "x"}) == {"to": "x"}
    assert pay.unwrap()("x", intent=IntentInfo("i-1", b"k", 0, 1, 0)) == "x i-1"


async def test_tool_spans_count_tools_and_steps_stand_still() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        for _ in range(2):
            with pytest.raises(ToolArgumentError):
                await ctx.run_tool("lookup", {})
            await ctx.run_tool("lookup", {"name": "a"})
            ctx.act("pay", "{}")
        return Complete()

    events = (await run(agent, registry=registry())).events
    assert [event.step_index for event in events] == [0, 0, 0, 1, 1, 2]
    assert len({events[1].span_id, events[3].span_id}) == 2


async def test_a_recorded_answer_stands_in_for_the_tool() -> None:
    probe = Recorder({"breaks": Answer(b"recorded"), "lookup": Answer(error=TimeoutError("then"))})
    result, got = await using("breaks", {}, probe)
    assert (result.status, got) == ("completed", [b"recorded"])
    assert probe.of("tool_done") == [("breaks", {}, b"recorded", None, False, True, 0)]
    failed, _ = await using("lookup", {"name": "a"}, probe)
    assert isinstance(failed.error, TimeoutError)
    assert probe.of("tool_done")[-1][2:] == (None, failed.error, False, True, 0)
    assert probe.of("tool_answer") == [("breaks", {}), ("lookup", {"name": "a"})]


async def test_a_tool_that_raises_is_reported_and_raises() -> None:
    probe = Recorder()
    result, _ = await using("breaks", {}, probe)
    assert isinstance(result.error, ConnectionError)
    assert probe.of("tool_done") == [("breaks", {}, None, result.error, False, False, 0)]


def test_a_tool_of_plain_types_makes_its_model_when_it_is_needed() -> None:
    @tool
    def plain(name: str, limits: list[int] | None = None) -> str:
        return name

    assert "argument_model" not in vars(plain)
    assert plain.schema["parameters"]["title"] == "plainArgs"
    assert "argument_model" in vars(plain)


def test_a_tool_that_cannot_be_validated_fails_where_it_is_declared() -> None:
    class Opaque:
        pass

    with pytest.raises(ToolDefinitionError, match="cannot be validated"):

        @tool
        def opaque(thing: Opaque) -> str:
            return "never"
