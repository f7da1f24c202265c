"""Says each mistake in a configuration in one line, in the words of the file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


def explain(error: ValidationError, source: Path | None, whole: type[BaseModel]) -> Iterator[str]:
    """Say each mistake in one line, in the words of the file."""
    for mistake in error.errors(include_url=False, include_context=False, include_input=True):
        place = _dotted(mistake["loc"])
        where = f"{source}: {place}" if source is not None else f"the environment: {place}"
        match mistake["type"]:
            case "extra_forbidden":
                yield f"{where} is not a setting; {_nearest(whole, mistake['loc'])}"
            case "missing":
                yield f"{where} is missing; {_description(whole, mistake['loc'])}"
            case "value_error":
                yield f"{where}: {mistake['msg'].removeprefix('Value error, ')}".replace(": :", ":")
            case _:
                message = mistake["msg"]
                yield f"{where}: {message[:1].lower()}{message[1:]}; {_description(whole, mistake['loc'])}"


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _section(whole: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """Find the table that holds the last name of a place, however deep it lies."""
    section = whole
    for name in location[:-1]:
        field = section.model_fields.get(name) if isinstance(name, str) else None
        inner = None if field is None else _table(field.annotation)
        section = section if inner is None else inner
    return section


def _table(annotation: Any) -> type[BaseModel] | None:
    """The table that a setting holds, or a list of; None where it holds a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _table(inner)) is not None), None)


def _nearest(whole: type[BaseModel], location: tuple[int | str, ...]) -> str:
    known = list(_section(whole, location).model_fields)
    guess = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"did you mean {guess[0]}?" if guess else f"expected one of {', '.join(known)}"


def _description(whole: type[BaseModel], location: tuple[int | str, ...]) -> str:
    names = [part for part in location[1:] if isinstance(part, str)]
    field = _section(whole, location).model_fields.get(names[-1]) if names else None
    return f"expected: {field.description}" if field is not None and field.description else "see docs/configuration.md"
