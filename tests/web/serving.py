"""A console on a port of its own, in a thread of the test's process: for clients that are no coroutine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from tests.waiting import joined


@contextmanager
def serving(app: FastAPI, listener: socket.socket) -> Iterator[str]:
    """Serve on a bound port while the block runs; yields the address."""
    config = uvicorn.Config(app, log_config=None, access_log=False, proxy_headers=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        joined(thread)
