"""Turns view models into HTML: one template environment, one set of filters, one way to answer with a page."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app import __version__, resource
from app.incidents.service import key_text
from app.web import formats
from app.web.problems import Problem

# Agents write text that is no text: no encoding can carry a lone surrogate, so it is shown as what it is, a fault.
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
# The answer to a form that was refused is drawn in place of the page, but under the page's address.
_NO_PLACE: Final = {"HX-Push-Url": "false"}


class Pages:
    """Renders templates for a request. What every page needs (who, CSRF token, asset addresses) is added here."""

    def __init__(self, templates: Path | None = None) -> None:
        self._environment = _environment(templates or resource("templates"))

    def text(self, name: str, request: Request, context: Mapping[str, Any]) -> str:
        """Render a template to HTML."""
        principal = request.scope.get("hindcast.principal")
        return self._environment.get_template(name).render(request=request, principal=principal, **context)

    def page(self, name: str, request: Request, code: int = 200, **context: Any) -> HTMLResponse:
        text = self.text(name, request, context)
        headers = _NO_PLACE if code >= 400 else None
        return HTMLResponse(_SURROGATES.sub("\ufffd", text), code, headers)

    def problem(self, request: Request, problem: Problem) -> Response:
        """Answer with a problem: JSON below `/api/`, a page elsewhere."""
        if request.url.path.startswith("/api/"):
            return problem.response()
        name = "enter.html" if problem.status == 401 else "problem.html"
        if request.url.path.startswith("/s/"):
            name = "share_gone.html"
        context: dict[str, Any] = {"problem": problem}
        if name == "enter.html":
            context |= {"way": request.app.state.identities.mode, "wanted": _wanted(request)}
        response = self.page(name, request, problem.status, **context)
        response.headers.update(problem.headers)
        return response


def _wanted(request: Request) -> str:
    """The page that somebody asked for who has to log in first."""
    path = request.url.path
    if request.method != "GET" or path in ("/enter", "/login", "/login/callback"):
        return "/"
    return f"{path}?{request.url.query}" if request.url.query else path


@cache
def _environment(templates: Path) -> Environment:
    """One environment per folder and process: templates compile once."""
    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(asset=asset, version=__version__, link=_link)
    environment.filters.update(
        breakable=_breakable,
        clocks=formats.clocks,
        capitalize_first=lambda words: words[:1].upper() + words[1:],
        duration=formats.duration,
        iso=formats.iso,
        key_text=key_text,
        number=formats.number,
        plural=formats.plural,
        quoted=lambda name: quote(name, safe="", errors="replace"),
        short=formats.short,
        size=formats.size,
        utc=formats.utc,
    )
    return environment


def _breakable(name: str) -> Markup:
    """A CONSTANT_NAME that may break after its underscores, for narrow columns."""
    return Markup("_<wbr>").join(name.split("_"))


@pass_context
def _link(context: Context, **changes: Any) -> str:
    """The page's own address with some query values changed, None removing one: the URL is the state."""
    query = [(name, value) for name, value in context["request"].query_params.multi_items() if name not in changes]
    for name, value in changes.items():
        if value is not None:
            query += [(name, str(item)) for item in (value if isinstance(value, list | tuple | set) else [value])]
    return f"{context['request'].url.path}?{urlencode(query)}" if query else str(context["request"].url.path)


@cache
def asset(name: str) -> str:
    """The address of a static file, with a piece of its digest: browsers may keep it, and never keep it too long."""
    digest = hashlib.sha256((resource("static") / name).read_bytes()).hexdigest()[:10]
    return f"/static/{name}?v={digest}"
