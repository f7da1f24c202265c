"""Reads JSON bodies of scripts: what is wrong with type, size or content is one problem that says what was expected."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from app.web.forms import body_of
from app.web.problems import Problem, Refused

_MOST = 64 * 1024
Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, model: type[Body], expected: str, *, most: int = _MOST) -> Body:
    """Read a JSON object of at most `most` bytes as `model`; `expected` is it in words. Raises `Refused`."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Refused(Problem(415, "Wrong content type", f"The body is {media or 'of no type'}.", "application/json"))
    try:
        return model.model_validate_json(await body_of(request, most))
    except ValidationError as error:
        first = error.errors()[0]
        status = 400 if first["type"] == "json_invalid" else 422
        place = ".".join(str(part) for part in first["loc"]) or "body"
        raise Refused(Problem(status, "Invalid request", f"{place}: {first['msg']}.", expected)) from error
