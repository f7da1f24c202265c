"""Starts a whole console from nothing, and takes it down again: database, worker, collector, web, a pipeline at work.

The parts run as the processes they are in production; only the broker is in this one. Agent code runs in the pipeline's
process, which knows no database, and in the worker's children. The web process alone holds the start-up token, and none
of them knows the owner's password.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from app.demo.desk import Desk
from app.demo.postgres import APPLICATION, PURGER, EmbeddedPostgres, Urls
from app.demo.processes import die_with, end
from app.settings import Settings

_START_S: Final = 180.0  # ends what hangs; what dies is noticed at once
_PATIENCE_S: Final = 5.0
_PORTS: Final = 20


class WorldError(RuntimeError):
    """Some part of the demo cannot start, or stopped by itself; the text says which and what to do."""


class World:
    """Everything `hindcast demo` runs, from `start` to `stop`; a context manager does both.

    `config` is the file that the children read. With `desk` the support desk of the example is at work: broker,
    pipeline, tickets. Must be started from the main thread, as its children die with it.
    """

    def __init__(self, settings: Settings, config: Path, *, desk: bool = False) -> None:
        self.settings = settings
        self.config = config
        self._postgres = EmbeddedPostgres(settings.home)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._desk = Desk(settings.home / "demo", config) if desk else None

    def start(self) -> Settings:
        """Start all parts; returns the settings with the database in them. The console may still be loading.

        Raises `PostgresError`, `SchemaError` or `WorldError`; whatever was started is then stopped again.
        """
        from app.incidents import schema

        try:
            urls = self._postgres.start()
            try:
                schema.check(urls.app)  # saves loading Alembic when there is nothing to do
            except schema.SchemaError:
                schema.upgrade(urls.owner, application=APPLICATION, purger=PURGER)
            # All load at the same time.
            if self._desk is not None:
                self._desk.forget_former(urls.owner)
                self.config = self._desk.start()
                self._spawn("pipeline", self._desk.command(), self._environment())
            purging = self._environment(urls, HINDCAST_DATABASE_PURGE_URL=urls.purge)
            self._spawn("worker", self._command("worker"), purging)
            address = ["--host", self.settings.console.host, "--port", str(self.settings.console.port)]
            self._spawn(
                "web",
                self._command("serve", *address),
                self._environment(urls, HINDCAST_TOKEN=self.settings.token),
            )
            if self.settings.pipelines:
                # Each start of the desk makes its topics anew, which is no news here.
                self._spawn("collector", self._command("collect", level="error"), self._environment(urls))
        except BaseException:
            self.stop()
            raise
        self.settings = self.settings.with_database(urls.app)
        return self.settings

    def address(self) -> str:
        """Wait until the console answers, and say where; to be called once. Raises `WorldError`."""
        output = self._children["web"].stdout
        assert output is not None
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            ready, _, _ = select.select([output], [], [], 0.1)
            if ready and (line := output.readline()):
                return line.decode().strip()
            self.check()
        raise WorldError(f"the console did not open its port within {_START_S:.0f} s")

    def stop(self) -> None:
        """Stop everything, last started first; the database goes last of all."""
        children, self._children = self._children, {}
        for child in reversed(children.values()):
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)  # to all at once; the wait comes after
        for child in reversed(children.values()):
            end(child, (signal.SIGTERM, signal.SIGKILL), _PATIENCE_S)
            if child.stdout is not None:
                child.stdout.close()
        if self._desk is not None:
            self._desk.stop()
        self._postgres.stop()

    def __enter__(self) -> Settings:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def watch(self) -> None:
        """Wait for ever; raises `WorldError` when a part stops by itself."""
        while True:
            self.check()
            if self._desk is not None:
                self._desk.tick()
            time.sleep(0.25)

    def check(self) -> None:
        """Raise `WorldError` unless every part still runs."""
        for name, child in self._children.items():
            if child.poll() is not None:
                raise WorldError(f"the {name} process stopped with code {child.returncode}; see its messages above")
        if not self._postgres.alive():
            raise WorldError(f"the database stopped by itself; see the log in {self.settings.home / 'postgres'}")

    def _environment(self, urls: Urls | None = None, **more: str) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HINDCAST_")}
        if urls is None:
            return kept
        return {**kept, "HINDCAST_DATABASE_URL": urls.app, "HINDCAST_HOME": str(self.settings.home), **more}

    def _command(self, *arguments: str, level: str = "warning") -> Sequence[str]:
        return ["app.cli", *arguments, "--config", str(self.config), "--log-level", level]

    def _spawn(self, name: str, module: Sequence[str], environment: Mapping[str, str]) -> None:
        self._children[name] = subprocess.Popen(
            [sys.executable, "-m", *module],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Ctrl-C in a terminal reaches us alone, and we stop the parts in order.
            start_new_session=True,
            preexec_fn=die_with(os.getpid(), signal.SIGTERM),
        )


def free_port(host: str, wanted: int) -> int:
    """Find the first free port from `wanted` on; raises `WorldError` when twenty in a row are taken."""
    for port in range(wanted, min(wanted + _PORTS, 65536)):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                attempt.bind((host, port))
                return port
    raise WorldError(f"the ports from {wanted} to {wanted + _PORTS - 1} are all in use; choose one with --port")
