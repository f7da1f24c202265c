"""What a function says of its parameters, read the short way where that surely gives the same as the long one."""

from __future__ import annotations

from inspect import CO_VARARGS, CO_VARKEYWORDS
from inspect import Parameter as Inspected
from types import FunctionType, NoneType
from typing import Any, Final, NamedTuple

REQUIRED: Final = Inspected.empty

_EVIDENT: Final = (str, int, float, bool, bytes, list, dict, NoneType, Any)
_BUILTINS: Final[dict[str, Any]] = {each.__name__: each for each in (str, int, float, bool, bytes, list, dict)} | {
    "None": NoneType
}
_UNCLEAR: Final = object()


class Parameter(NamedTuple):
    """One parameter; `default` is `REQUIRED` where there is none."""

    name: str
    default: Any
    positional_only: bool
    keyword_only: bool


class Declared(NamedTuple):
    """The parameters in order, and the types of at least these by name."""

    parameters: list[Parameter]
    hints: dict[str, Any]


def evident(function: Any) -> Declared | None:
    """Read an undecorated function whose annotations are bare built-in types; None for every other.

    Looking at such a function with `inspect` and `typing` takes longer than all else that is done with it.
    """
    if type(function) is not FunctionType or function.__dict__:
        return None
    code = function.__code__
    hints = {name: _evident(given, function.__globals__) for name, given in function.__annotations__.items()}
    count, own = code.co_argcount, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    clear = not any(hint is _UNCLEAR for hint in hints.values()) and all(name in hints for name in own)
    if code.co_flags & (CO_VARARGS | CO_VARKEYWORDS) or not clear:
        return None
    given = function.__defaults__ or ()
    defaults = {**dict(zip(own[count - len(given) : count], given, strict=True)), **(function.__kwdefaults__ or {})}
    parameters = [
        Parameter(name, defaults.get(name, REQUIRED), at < code.co_posonlyargcount, at >= count)
        for at, name in enumerate(own)
    ]
    return Declared(parameters, hints)


def _evident(annotation: Any, names: dict[str, Any]) -> Any:
    if isinstance(annotation, str):
        return _UNCLEAR if annotation in names else _BUILTINS.get(annotation, _UNCLEAR)
    if annotation is None:
        return NoneType
    return annotation if any(annotation is each for each in _EVIDENT) else _UNCLEAR
