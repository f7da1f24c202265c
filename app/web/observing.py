"""What is counted and told of each request: its route, status and time, and the ids that its log lines carry."""

from __future__ import annotations

import re
import secrets
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.operations import logs, metrics

_INCIDENT: Final = re.compile(r"/incidents/(inc_[\w-]{1,32})(?:/runs/(\d{1,9}))?")
_REPLAY: Final = re.compile(r"/replays/(run_[\w-]{1,32})")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observed:
    """Wraps the whole console. Streams count as open pages, not as requests that take long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        status = 500
        stream = False

        async def observe(message: Message) -> None:
            nonlocal status, stream
            if message["type"] == "http.response.start":
                status = message["status"]
                stream = any(value.startswith(b"text/event-stream") for _, value in message.get("headers", ()))
                if stream:
                    metrics.STREAMS.inc()
            await send(message)

        try:
            with logs.about(request=secrets.token_hex(4), **_ids(scope["path"])):
                await self._app(scope, receive, observe)
        finally:
            route = getattr(scope.get("route"), "path", "(none)")
            method = scope["method"] if scope["method"] in _METHODS else "(other)"
            metrics.REQUESTS.labels(method, route, str(status)).inc()
            if stream:
                metrics.STREAMS.dec()
            else:
                metrics.REQUEST_SECONDS.labels(route).observe(time.perf_counter() - begun)


def _ids(path: str) -> dict[str, str | None]:
    """Which incident and run a path is about; a run of an incident is told by its number there."""
    if found := _INCIDENT.search(path):
        return {"incident": found[1], "number": found[2]}
    found = _REPLAY.search(path)
    return {"run": found[1] if found else None}
