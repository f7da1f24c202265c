"""What went wrong, for a person and a script alike: one object, drawn as a page or as `application/problem+json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.responses import Response

from app.incidents.errors import FileProblem

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class FileTrouble:
    """What is wrong with one file of an import. `name` and `role` say which; the rest is for a person."""

    name: str
    role: str
    what: str
    expected: str
    remedy: str


def file_trouble(problem: FileProblem) -> FileTrouble:
    """A file's problem as the domain told it."""
    return FileTrouble(problem.name, problem.role, problem.problem, problem.expected, problem.remedy)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something the console refuses: what is wrong, what was expected, what to do; `problems` names files."""

    status: int
    title: str
    what: str
    expected: str = ""
    remedy: str = ""
    problems: tuple[FileTrouble, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The members of RFC 9457 (`title`, `status`, `detail`) and ours."""
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.what,
            "what": self.what,
            "expected": self.expected,
            "remedy": self.remedy,
            "problems": [asdict(problem) for problem in self.problems],
        }

    def response(self) -> Response:
        return json_response(self.as_json(), self.status, dict(self.headers), media_type=MEDIA_TYPE)


def json_response(
    body: object, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = "application/json"
) -> Response:
    """JSON in pure ASCII: records hold lone surrogates, which no encoding but an escape can carry."""
    return Response(json.dumps(body, separators=(",", ":")), status, headers, media_type)


class Refused(Exception):
    """Ends a request with a problem; the handler picks the page or the JSON."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


def not_found(what: str) -> Problem:
    return Problem(
        404, "Not found", what, "the address of something this console keeps", "Look for it in the list of incidents."
    )
