"""The short ways of reading a tool and its arguments: they give what Pydantic, `inspect` and `typing` give."""

import functools
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from app.runtime import arguments, tools
from app.runtime.arguments import can_be_a_field, plain_arguments
from app.runtime.signatures import REQUIRED, evident
from app.runtime.tools import Tool, ToolArgumentError, ToolDefinitionError, tool

SCALARS: list[Any] = [str, int, float, bool, bytes, type(None)]


class Loud(str):
    """A string that is none of ours."""


class Answer(BaseModel):
    """What an untyped argument could hold in a test of the pipeline."""

    text: str


def types() -> st.SearchStrategy[Any]:
    scalars = st.sampled_from(SCALARS)

    def wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            inner.map(lambda one: list[one]),  # type: ignore[valid-type]
            inner.map(lambda one: dict[str, one]),  # type: ignore[valid-type]
            inner.map(lambda one: dict[int, one]),  # type: ignore[valid-type]
            inner.map(lambda one: tuple[one, ...]),  # type: ignore[valid-type]
            inner.map(lambda one: Optional[one]),  # noqa: UP045
            st.tuples(inner, inner).map(lambda two: Union[two[0], two[1]]),  # noqa: UP007
        )

    return st.recursive(st.one_of(scalars, st.sampled_from([list, dict, Any])), wider, max_leaves=4)


def values() -> st.SearchStrategy[Any]:
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.binary(max_size=3),
        st.text(st.characters(exclude_categories=()), max_size=3),  # lone surrogates too
        st.sampled_from(["7", "1.5", "true", "on", 2**200, Loud("x"), Answer(text="x")]),
    )
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=2).map(tuple),
            st.dictionaries(st.one_of(st.text(max_size=2), st.integers()), inner, max_size=3),
        ),
        max_leaves=4,
    )


def fitting(hint: Any) -> st.SearchStrategy[Any]:
    """Mostly values of a type, so that not every example is refused."""
    return st.one_of(_of(hint), _of(hint), _of(hint), values())


def _of(hint: Any) -> st.SearchStrategy[Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return values()
    if hint is list or origin is list:
        return st.lists(_of(inner[0]) if inner else values(), max_size=3)
    if hint is dict or origin is dict:
        key, item = inner or (str, Any)
        return st.dictionaries(_of(key), _of(item), max_size=3)
    if origin is tuple:
        return st.lists(_of(inner[0]), max_size=2).map(tuple)
    if inner:
        return st.one_of(*map(_of, inner))
    return st.from_type(hint)


def made(hints: dict[str, Any], defaults: dict[str, Any]) -> FunctionType:
    """A function with these parameters, all of them keyword-only."""
    space: dict[str, Any] = {}
    parameters = ", ".join(f"{name}=None" if name in defaults else name for name in hints)
    exec(f"def made({'*, ' if hints else ''}{parameters}): ...", space)
    function: FunctionType = space["made"]
    function.__annotations__, function.__kwdefaults__ = dict(hints), dict(defaults)
    return function


def outcome(action: Callable[[], Any]) -> tuple[Any, ...]:
    """What came of it, warnings included, in a form where equal means the same to a tool."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            told = form(action())
        except (ToolArgumentError, ToolDefinitionError) as error:
            told = (type(error), str(error))
    return told, [(each.category, str(each.message)) for each in caught]


def form(value: Any) -> Any:
    """A value with the types of all its parts and the order of its keys; what is not a number equals itself."""
    if isinstance(value, dict):
        return dict, [(form(key), form(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [form(item) for item in value]
    if isinstance(value, float):
        return float, "nan" if math.isnan(value) else value, math.copysign(1, value)
    return type(value), value


def by_pydantic(one: Tool, given: dict[str, Any]) -> Any:
    try:
        return one.argument_model.model_validate(given).model_dump()
    except ValidationError as error:
        raise ToolArgumentError(one.name, error) from error


@st.composite
def calls(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Types, defaults and arguments of one call."""
    names = draw(st.lists(st.sampled_from(["card", "limit", "text", "where"]), unique=True, max_size=3))
    hints = {name: draw(types()) for name in names}
    defaults = {name: draw(fitting(hint)) for name, hint in hints.items() if draw(st.booleans())}
    asked = {name: draw(fitting(hint)) for name, hint in hints.items() if draw(st.integers(0, 4))}
    extra = draw(st.dictionaries(st.sampled_from(["more", "limit"]), values(), max_size=1))
    return hints, defaults, {**extra, **asked} if draw(st.booleans()) else {**asked, **extra}


@settings(max_examples=150, deadline=None)
@given(calls())
def test_arguments_are_read_as_pydantic_reads_them(call: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    hints, defaults, asked = call
    one = tool(made(hints, defaults))
    assert outcome(lambda: one.validate(asked)) == outcome(lambda: by_pydantic(one, asked))


EXACT: list[tuple[Any, Any]] = [
    (str, "\ud800"),
    (int, 2**200),
    (float, float("nan")),
    (bool, True),
    (int | bool, True),
    (Optional[list[str]], ["a"]),  # noqa: UP045
    (list[int | str] | None, [1, "a"]),
    (dict[str, list[float]], {"b": [1.0], "a": []}),
    (Any, {"a": [1, None, {"b": b"x"}]}),
    (list, [[1], "a"]),
    (dict, {"z": 1, "a": [2]}),
]


@pytest.mark.parametrize(("hint", "value"), EXACT, ids=str)
def test_what_fits_exactly_needs_no_model_and_is_copied(hint: Any, value: Any) -> None:
    one = tool(made({"x": hint}, {}))
    got = one.validate({"x": value, "more": 1})
    assert "argument_model" not in one.__dict__
    assert form(got) == form(by_pydantic(one, {"x": value}))
    assert got["x"] is not value or not isinstance(value, list | dict)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, "7"),
        (int, True),
        (float, 1),
        (str, Loud("x")),
        (list[int], (1, 2)),
        (list[int], [1, "2"]),
        (dict[str, int], {"a": "1"}),
        (dict[str, int], {1: 1}),
        (list[int] | list[str], ["1"]),
        (tuple[int, ...], [1]),
        (Literal["a"], "a"),
        (Annotated[int, Field(le=3)], 3),
        (Any, Answer(text="x")),
    ],
    ids=str,
)
def test_everything_else_is_pydantics(hint: Any, value: Any) -> None:
    one = tool(made({"x": hint}, {}))
    assert outcome(lambda: one.validate({"x": value})) == outcome(lambda: by_pydantic(one, {"x": value}))
    assert "argument_model" in one.__dict__


def test_a_deep_or_endless_value_is_pydantics() -> None:
    one = tool(made({"x": Any}, {}))
    endless: list[Any] = []
    endless.append(endless)
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    for value in (deep, endless):
        assert repr(one.validate({"x": value})) == repr(by_pydantic(one, {"x": value}))


def test_a_default_belongs_to_each_call() -> None:
    kept = {"a": [1]}
    one = tool(made({"x": dict[str, list[int]]}, {"x": kept}))
    one.validate({})["x"]["a"].append(2)
    assert one.validate({}) == {"x": {"a": [1]}}
    kept["a"].append(3)  # as Pydantic: the default is the object, not what it was
    assert one.validate({}) == by_pydantic(one, {}) == {"x": {"a": [1, 3]}}


@pytest.mark.parametrize("default", [Field(le=3), Field(default=1, gt=0), ..., "five", None], ids=repr)
def test_a_default_that_is_more_than_a_value_is_pydantics(default: Any) -> None:
    one = tool(made({"x": int}, {"x": default}))
    for asked in ({}, {"x": 4}, {"x": 3}):
        assert outcome(lambda asked=asked: one.validate(asked)) == outcome(  # type: ignore[misc]
            lambda asked=asked: by_pydantic(one, asked)  # type: ignore[misc]
        )


def test_every_name_that_a_model_has_already_is_known() -> None:
    names = {name for kind in (BaseModel, type(BaseModel)) for name in dir(kind)}
    taken = {name for name in names if not name.startswith("__") and hasattr(BaseModel, name)}
    assert [name for name in taken if can_be_a_field(name)] == []
    assert can_be_a_field("card")


@pytest.mark.parametrize("name", ["copy", "schema", "register", "model_config", "model_dump"])
def test_a_name_that_a_model_has_already_is_told_of_where_the_tool_is_declared(name: str) -> None:
    told, warned = outcome(lambda: tool(made({name: str}, {})).name)
    assert warned or told[0] is ToolDefinitionError


def test_a_name_that_a_model_keeps_for_itself_is_no_field() -> None:
    one = tool(made({"_hidden": str, "x": int}, {}))
    assert one.validate({"_hidden": "a", "x": 1}) == {"x": 1}


def test_pydantic_is_not_loaded_for_what_needs_none_of_it() -> None:
    code = (
        "import sys\n"
        "from app.runtime.tools import tool\n"
        "@tool\n"
        "def look_up(card: str, limit: int = 5) -> str: return card\n"
        "assert look_up.validate({'card': 'c'}) == {'card': 'c', 'limit': 5}\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


class Callee:
    """Something callable that is no function."""

    def __call__(self, a: int, b: str = "x") -> str:
        return b * a


def positional(a: int, b: str = "x", /, c: float = 1.0, *, d: bool, e: bytes = b"") -> None: ...
def quoted(a: "int", b: "str" = "x", c: "None" = None) -> "bool": ...  # type: ignore[empty-body]
def untyped(a: Any, b: list = [], c: dict = {}) -> None: ...  # type: ignore[type-arg]  # noqa: B006
def nothing() -> None: ...
def silent(): ...  # type: ignore[no-untyped-def]
def bare(a): ...  # type: ignore[no-untyped-def]
def partly(a: int, b): ...  # type: ignore[no-untyped-def]
def optional(a: int | None = None) -> None: ...
def quoted_union(a: "int | None" = None) -> None: ...
def unknown_answer(a: int) -> "Nowhere": ...  # type: ignore[name-defined]  # noqa: F821
def rest(a: int, *more: int) -> None: ...
def keywords(a: int, **more: int) -> None: ...
def renamed(a: "int") -> None: ...


FUNCTIONS: list[Any] = [
    *(positional, quoted, untyped, nothing, silent, bare, partly, optional, quoted_union, unknown_answer, rest),
    *(keywords, wrapped(positional), Callee(), Callee().__call__, functools.partial(positional, 1), len, 7),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: getattr(each, "__name__", type(each).__name__))
def test_a_function_is_read_as_the_long_way_reads_it(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> Any:
        one = tools.Tool(function, "it", "", side_effect=False)
        types, defaults = one._fields
        return list(types.items()), defaults, one._positional, one.schema

    short = outcome(read)
    monkeypatch.setattr(tools, "evident", lambda _: None)
    assert short == outcome(read)


def test_only_the_plainest_functions_are_read_the_short_way() -> None:
    short = [getattr(each, "__name__", "") for each in FUNCTIONS if evident(each) is not None]
    assert short == ["positional", "quoted", "untyped", "nothing", "silent"]
    found = evident(positional)
    assert found is not None
    assert [each.name for each in found.parameters if each.default is REQUIRED] == ["a", "d"]


def test_a_module_may_call_something_else_int() -> None:
    space: dict[str, Any] = {"int": str}
    exec("def renamed(a: 'int') -> None: ...", space)
    assert tool(space["renamed"]).schema["parameters"]["properties"]["a"]["type"] == "string"


def test_what_is_plain_is_decided_by_the_types_themselves() -> None:
    class Equal(type):
        """Types that claim to equal every other."""

        def __eq__(cls, other: object) -> bool:
            return True

        def __hash__(cls) -> int:
            return hash(str)

    class Odd(metaclass=Equal):
        """No string at all."""

    assert plain_arguments({"x": Odd}, {}) is None
    assert plain_arguments({"x": Annotated[str, []]}, {}) is None  # cannot be hashed
    assert arguments.plain_arguments({"x": str}, {}) is not None
