"""The console as a process: an open port, the address that opens it, and uvicorn behind both."""

from __future__ import annotations

import errno
import signal
import socket
from typing import TYPE_CHECKING

import uvicorn

from app.operations import tracing
from app.web.app import create_app

if TYPE_CHECKING:
    from app.settings import Settings


class AddressProblem(Exception):
    """The console cannot listen where it was told to; the text says why and what to do."""


def serve(settings: Settings, watch: tuple[str, int] | None = None) -> None:
    """Serve the console until SIGTERM or SIGINT; prints its address, token and all, once the port is open.

    The database must be migrated. `watch` is the address for metrics. Raises `AddressProblem`.
    """
    with open_port(settings.console.host, settings.console.port) as listener:
        config = uvicorn.Config(
            create_app(settings, watch=watch),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `console.proxies` says who is believed, and nothing in the environment
            # Event streams never end by themselves, and a page finds its run again after a restart.
            timeout_graceful_shutdown=2,
        )
        server = uvicorn.Server(config)

        def stop(*_: object) -> None:
            server.should_exit = True

        # Before uvicorn's own handlers are there, and after: it sends itself once more what it received.
        signal.signal(signal.SIGTERM, stop)
        print(address(settings, listener.getsockname()[1]), flush=True)
        server.run(sockets=[listener])
        tracing.stop()


def open_port(host: str, port: int) -> socket.socket:
    """Bind and listen; port 0 takes any. Raises `AddressProblem` that tells a port in use from a wrong address."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise AddressProblem(f"console.host {host!r} is not an address: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(target)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            remedy = "stop the program that has it, or choose another (--port 0 takes any free one)"
            raise AddressProblem(f"port {port} of {host} is in use; {remedy}") from error
        raise AddressProblem(f"cannot listen on {host} port {port}: {error.strerror}; see console.host") from error
    return listener


def address(settings: Settings, port: int) -> str:
    """Write the address that opens the console, with the start-up token where that is the way in."""
    host = settings.console.host
    if host in ("0.0.0.0", "::"):  # noqa: S104  compared, not bound
        host = next(iter(settings.console.allowed_hosts), "localhost")
    base = settings.public_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return f"{base}/enter?token={settings.token}" if settings.access.mode in (None, "token") else f"{base}/"
