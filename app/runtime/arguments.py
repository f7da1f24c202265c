"""Arguments that need no coercion: each already is, exactly, what a plain annotation asks for.

Pydantic's answer to such arguments is those arguments. Building its model takes longer than a short activation does,
so it is built only for what is left: other types, values to be coerced, and whatever is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

# How deep an untyped value is followed.
_DEEPEST: Final = 50
_SCALARS: Final = frozenset((str, int, float, bool, bytes, NoneType))
# What a model has already, or keeps for itself: a field of that name is refused or warned about.
_TAKEN: Final = frozenset((
    "construct", "copy", "dict", "from_orm", "json", "mro", "parse_file", "parse_obj", "parse_raw", "register",
    "schema", "schema_json", "update_forward_refs", "validate",
))  # fmt: skip
_KEPT: Final = ("_", "model_")


class _NotExactly(Exception):
    """This value is for Pydantic."""


Take = Callable[[Any], Any]


class PlainArguments:
    """The parameters of one tool, all of them plain: see `plain_arguments`."""

    def __init__(self, takes: Mapping[str, Take], defaults: Mapping[str, Any]) -> None:
        self._takes = takes
        self._defaults = defaults

    def read(self, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the tool is called with, in the order of its parameters; None where Pydantic has to look."""
        values = {}
        try:
            for name, take in self._takes.items():
                values[name] = take(given[name] if name in given else self._defaults[name])
        except (_NotExactly, KeyError):
            return None
        return values


def plain_arguments(hints: Mapping[str, Any], defaults: Mapping[str, Any]) -> PlainArguments | None:
    """Parameters by name with their types, and the defaults of those that have one; None where one is not plain."""
    takes = {name: _take(hint) for name, hint in hints.items()}
    plain = {name: take for name, take in takes.items() if take is not None and can_be_a_field(name)}
    if len(plain) < len(takes) or not all(_takes(plain[name], value) for name, value in defaults.items()):
        return None
    return PlainArguments(plain, defaults)


def can_be_a_field(name: str) -> bool:
    """Whether a model takes a field of this name without a word."""
    return name not in _TAKEN and not name.startswith(_KEPT)


def _takes(take: Take, value: Any) -> bool:
    try:
        take(value)
    except _NotExactly:
        return False
    return True


def _take(hint: Any) -> Take | None:
    """A function that gives a value back, containers as fresh ones; None for a type that is not plain."""
    if hint is Any:
        return _take_untyped
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    scalars = frozenset(kind for kind in _SCALARS for member in members if member is kind)
    containers = {}
    for member in members:
        if not any(member is kind for kind in scalars):
            kind = list if member is list else dict if member is dict else get_origin(member)
            take = _container(kind, get_args(member))
            # Of two that Python builds alike, which one Pydantic takes depends on what is inside.
            if take is None or kind in containers:
                return None
            containers[kind] = take
    return _one_of(scalars, containers)


def _container(kind: Any, arguments: tuple[Any, ...]) -> Take | None:
    keyed = kind is dict and (not arguments or arguments[0] is str)
    inner = _take(arguments[-1] if arguments else Any) if kind is list or keyed else None
    if inner is None:
        return None
    return partial(_dict_of if keyed else _list_of, inner)


def _list_of(inner: Take, value: list[Any]) -> list[Any]:
    return [inner(item) for item in value]


def _dict_of(inner: Take, value: dict[Any, Any]) -> dict[str, Any]:
    if all(type(key) is str for key in value):
        return {key: inner(item) for key, item in value.items()}
    raise _NotExactly


def _one_of(scalars: frozenset[type], containers: Mapping[type, Take]) -> Take:
    def take(value: Any) -> Any:
        kind = type(value)
        if kind in scalars:
            return value
        if kind in containers:
            return containers[kind](value)
        raise _NotExactly

    return take


def _take_untyped(value: Any, deep: int = 0) -> Any:
    """The same for what JSON can hold."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if deep < _DEEPEST:
        if kind is list:
            return [_take_untyped(item, deep + 1) for item in value]
        if kind is dict and all(type(key) is str for key in value):
            return {key: _take_untyped(item, deep + 1) for key, item in value.items()}
    raise _NotExactly
