"""A small port beside a process's work, for those who watch it: `/healthz`, `/readyz` and `/metrics`, and nothing else.

It asks for no token, so it listens on the loopback address unless it is told otherwise, and only when asked to.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from app.operations import health
from app.operations.health import Checks

_LOG: Final = logging.getLogger(__name__)
VARIABLE: Final = "HINDCAST_METRICS"
_REQUEST_BYTES: Final = 8192
_PATIENCE_S: Final = 10.0
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}

Metrics = Callable[[], Awaitable[bytes]]


def parse_address(text: str) -> tuple[str, int]:
    """Read `9464`, `0.0.0.0:9464` or `[::]:9464`; a port alone means the loopback address. Raises `ValueError`."""
    found = re.fullmatch(r"(?:(?:\[([0-9a-fA-F:]+)\]|([^:\[\]\s]+)):)?(\d{1,5})", text.strip())
    if found is None or int(found[3]) > 65535:
        raise ValueError(f"{text!r} is not an address for metrics; expected PORT or HOST:PORT, as 0.0.0.0:9464")
    return found[1] or found[2] or "127.0.0.1", int(found[3])


class WatchProblem(Exception):
    """The port cannot be opened; the text says why and what to do."""


@asynccontextmanager
async def listening(address: tuple[str, int] | None, ready: Checks, metrics: Metrics) -> AsyncIterator[int | None]:
    """Answer on `address` for the length of the block; yields the port. None listens nowhere.

    Raises `WatchProblem`.
    """
    if address is None:
        yield None
        return

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _answer(head, ready, metrics))
                await writer.drain()
        writer.close()

    host, port = address
    try:
        server = await asyncio.start_server(serve, host, port, limit=_REQUEST_BYTES)
    except OSError as error:
        raise WatchProblem(
            f"cannot listen on {host} port {port} for metrics: {error.strerror or error}; choose another with --metrics"
            f" or {VARIABLE}"
        ) from error
    taken: int = server.sockets[0].getsockname()[1]
    _LOG.info("health checks and metrics on http://%s:%d/", host, taken)
    try:
        yield taken
    finally:
        server.close()


async def _answer(head: bytes, ready: Checks, metrics: Metrics) -> bytes:
    method, _, rest = head.decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    kind = "application/json"
    if method not in ("GET", "HEAD"):
        code, body = 405, b'{"status": "only GET is answered here"}'
    elif path == "/healthz":
        code, body = health.alive()
    elif path == "/readyz":
        code, body = health.answer(await ready())
    elif path == "/metrics":
        code, body, kind = 200, await metrics(), "text/plain; version=0.0.4; charset=utf-8"
    else:
        code, body = 404, b'{"status": "there are /healthz, /readyz and /metrics"}'
    lines = f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    whole = f"{lines}Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
    return whole if method == "HEAD" else whole + body
