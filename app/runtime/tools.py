"""Tools an agent may run: plain functions whose arguments are validated against their annotations.

A side-effect tool is only ever described here: its effect is an intent, carried out elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints, overload

from app.runtime.arguments import can_be_a_field, plain_arguments
from app.runtime.signatures import REQUIRED, Declared, Parameter, evident

if TYPE_CHECKING:
    from pydantic import BaseModel

    from app.runtime.probe import Probe

INTENT_PARAMETER: Final = "intent"

_PLAIN: Final[tuple[Any, ...]] = (str, int, float, bool, bytes, list, dict, tuple, type(None), Any)
_CONTAINERS: Final[tuple[Any, ...]] = (list, dict, tuple, Union, UnionType)


class ToolError(Exception):
    """Something is wrong with a tool, its registration or its use."""


class ToolDefinitionError(ToolError):
    """A function cannot be a tool as it is declared."""


class ToolNotFoundError(ToolError):
    """No tool of that name is registered."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        super().__init__(f"no tool named {name!r} is registered; registered are: {', '.join(known) or 'none'}")
        self.name = name


class ToolArgumentError(ToolError):
    """The arguments do not fit the tool's parameters."""

    def __init__(self, name: str, problem: object) -> None:
        super().__init__(f"invalid arguments for tool {name!r}: {problem}")
        self.name = name


class SideEffectToolError(ToolError):
    """A side-effect tool was about to run inside an activation."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"tool {name!r} is side_effect=True and cannot be invoked directly; request it through ctx.act(...) instead"
        )
        self.name = name


@dataclass(frozen=True)
class IntentInfo:
    """What an effector tells a side-effect tool about the intent it carries out."""

    intent_id: str
    entity_key: bytes
    seq: int
    step_index: int
    attempt: int


class Tool:
    """A described function; calling it calls the function without validating anything."""

    def __init__(self, function: Callable[..., Any], name: str, description: str, *, side_effect: bool) -> None:
        self._function = function
        self.name = name
        self.description = description
        self.side_effect = side_effect
        parameters, hints = evident(function) or _declared(function, name)
        self.accepts_intent = side_effect and _takes_intent(parameters, hints)
        if self.accepts_intent:
            parameters = [parameter for parameter in parameters if parameter.name != INTENT_PARAMETER]
        self._positional = tuple(parameter.name for parameter in parameters if parameter.positional_only)
        types = {parameter.name: hints[parameter.name] for parameter in parameters}
        defaults = {parameter.name: parameter.default for parameter in parameters if parameter.default is not REQUIRED}
        self._fields = types, defaults
        self._plain = plain_arguments(types, defaults)
        # A model costs milliseconds, and a re-run may never need it. Plain types always make one; any other is
        # tried at once, for a tool that cannot be validated must fail where it is declared.
        if self._plain is None and not (all(map(_is_plain, types.values())) and all(map(can_be_a_field, types))):
            _ = self.argument_model

    @cached_property
    def argument_model(self) -> type[BaseModel]:
        """The Pydantic model that the arguments are validated with."""
        return _argument_model(self.name, *self._fields)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """Name, description and the JSON schema of the arguments, as a model is told of the tool."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.argument_model.model_json_schema(),
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as it is; raises SideEffectToolError for a side-effect tool."""
        if self.side_effect:
            raise SideEffectToolError(self.name)
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, side_effect={self.side_effect})"

    def unwrap(self) -> Callable[..., Any]:
        """The function itself."""
        return self._function

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Coerce arguments to the annotations; unknown ones are ignored, nested models become dicts.

        Raises ToolArgumentError.
        """
        given = dict(arguments) if isinstance(arguments, Mapping) else arguments
        if self.accepts_intent and INTENT_PARAMETER in given:
            raise ToolArgumentError(self.name, f"{INTENT_PARAMETER!r} is supplied by the effector")
        if self._plain is not None and type(given) is dict:
            values = self._plain.read(given)
            if values is not None:
                return values
        from pydantic import ValidationError

        try:
            model = self.argument_model.model_validate(given)
        except ValidationError as error:
            raise ToolArgumentError(self.name, error) from error
        return model.model_dump()

    async def invoke(self, values: dict[str, Any]) -> Any:
        """Call the function with validated values and await it if need be."""
        positional = [values.pop(name) for name in self._positional]
        result = self._function(*positional, **values)
        return await result if inspect.isawaitable(result) else result


def _declared(function: Callable[..., Any], name: str) -> Declared:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"tool {name!r} is not a function with a readable signature: {error}") from error
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ToolDefinitionError(f"tool {name!r} takes {parameter}: name and annotate each parameter instead")
        if parameter.annotation is parameter.empty:
            raise ToolDefinitionError(f"tool {name!r} has no annotation on parameter {parameter.name!r}")
    found = [
        Parameter(one.name, one.default, one.kind is one.POSITIONAL_ONLY, one.kind is one.KEYWORD_ONLY)
        for one in parameters
    ]
    return Declared(found, _hints(function, name))


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise ToolDefinitionError(f"the annotations of tool {name!r} cannot be resolved: {error}") from error


def _is_plain(hint: Any) -> bool:
    """Whether a type surely makes a model: scalars, and containers or unions of them."""
    if hint in _PLAIN:
        return True
    return get_origin(hint) in _CONTAINERS and all(map(_is_plain, get_args(hint)))


def _takes_intent(parameters: list[Parameter], hints: dict[str, Any]) -> bool:
    return any(
        parameter.name == INTENT_PARAMETER and parameter.keyword_only and hints.get(INTENT_PARAMETER) is IntentInfo
        for parameter in parameters
    )


def _argument_model(name: str, types: Mapping[str, Any], defaults: Mapping[str, Any]) -> type[BaseModel]:
    from pydantic import create_model
    from pydantic.errors import PydanticUserError

    fields: dict[str, Any] = {field: (hint, defaults.get(field, ...)) for field, hint in types.items()}
    try:
        return create_model(f"{name}Args", **fields)
    except (NameError, TypeError, ValueError, PydanticUserError) as error:
        raise ToolDefinitionError(f"the parameters of tool {name!r} cannot be validated: {error}") from error


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, side_effect: bool = False
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    side_effect: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool, bare or with options; name and description default to its own.

    Raises ToolDefinitionError unless every parameter is named and annotated.
    """

    def wrap(wrapped: Callable[..., Any]) -> Tool:
        own_name = str(getattr(wrapped, "__name__", type(wrapped).__name__))
        text = (inspect.getdoc(wrapped) or "") if description is None else description
        return Tool(wrapped, own_name if name is None else name, text, side_effect=side_effect)

    return wrap if function is None else wrap(function)


class ToolRegistry:
    """The tools of one agent by name."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    def register(self, tool: Tool) -> Tool:
        """Add a tool and return it; raises ToolError for what is no tool or a name that is taken."""
        _require_tool(tool)
        if tool.name in self._tools:
            raise ToolError(f"a tool named {tool.name!r} is already registered")
        self._tools[tool.name] = tool
        return tool

    def get(self, name: str) -> Tool:
        """The tool of a name; raises ToolNotFoundError."""
        found = self._tools.get(name)
        if found is None:
            raise ToolNotFoundError(name, tuple(self._tools))
        return found

    def tools_schema(self) -> list[dict[str, Any]]:
        """The schema of every tool in order of registration."""
        return [tool.schema for tool in self._tools.values()]


def _require_tool(candidate: object) -> None:
    if not isinstance(candidate, Tool):
        raise ToolError(f"register takes a function decorated with @tool, not {type(candidate).__name__}")


class ToolRunner:
    """Runs read-only tools of a registry: look up, refuse side effects, validate, call."""

    def __init__(self, registry: ToolRegistry | None = None, *, probe: Probe | None = None) -> None:
        self._registry = ToolRegistry() if registry is None else registry
        self._probe = probe

    async def run(self, name: str, arguments: Mapping[str, Any], *, step_index: int = 0) -> Any:
        """The tool's answer; raises ToolError subclasses or what the tool raised."""
        probe = self._probe
        try:
            tool = self._registry.get(name)
            if tool.side_effect:
                raise SideEffectToolError(name)
            values = tool.validate(arguments)
        except ToolError as error:
            if probe is not None:
                probe.tool_done(name, arguments, None, error, True, False, step_index)
            raise
        if probe is None:
            return await tool.invoke(values)
        return await self._observed(probe, tool, arguments, values, step_index)

    async def _observed(
        self, probe: Probe, tool: Tool, arguments: Mapping[str, Any], values: dict[str, Any], step_index: int
    ) -> Any:
        answer = probe.tool_answer(tool.name, arguments)
        supplied = answer is not None
        try:
            if answer is None:
                value = await tool.invoke(values)
            elif answer.error is not None:
                raise answer.error
            else:
                value = answer.value
        except BaseException as error:
            probe.tool_done(tool.name, arguments, None, error, False, supplied, step_index)
            raise
        probe.tool_done(tool.name, arguments, value, None, False, supplied, step_index)
        return value
