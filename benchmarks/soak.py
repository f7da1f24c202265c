"""`make soak SECONDS=600`: a whole installation under traffic, exports, replays and random kills; then everything is
counted. Nothing may be lost, nothing recorded twice, nothing stuck, and memory must be flat.

One console and one worker are never killed, and their memory is watched; their twins, the collectors, sandboxes and the
database are killed with SIGKILL, again and again. The order of what happens follows from the seed that is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from confluent_kafka import Producer

from app.demo.broker import EmbeddedBroker
from app.demo.desk import example
from app.demo.postgres import APPLICATION, EmbeddedPostgres
from app.demo.traffic import EVENTS, NEVER_CAME, PIPELINE, TOPICS, Ticket
from app.incidents import schema
from app.wire.records import serialize
from benchmarks.soak_count import Promised, count
from tests.faults.fleet import SCENARIO, Fleet, descendants
from tests.golden.scenarios import scenario

TOKEN: Final = "a-token-for-the-soak"
TICKETS_A_SECOND: Final = 8.0
REPLAY_EVERY_S: Final = 0.7
EXPORT_EVERY_S: Final = 3.0
KILL_EVERY_S: Final = 6.0
START_S: Final = 300.0
SETTLE_S: Final = 600.0
SAMPLE_S: Final = 1.0


@dataclass
class Installation:
    """Database, broker, pipeline, two consoles, two workers, two collectors."""

    home: Path
    chance: random.Random
    server: EmbeddedPostgres = field(init=False)
    fleet: Fleet = field(init=False)
    broker: EmbeddedBroker = field(default_factory=lambda: EmbeddedBroker(TOPICS))
    parts: dict[str, tuple[list[str], subprocess.Popen[str]]] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        self.server = EmbeddedPostgres(self.home / "state")
        urls = self.server.start()
        schema.upgrade(urls.owner, application=APPLICATION)
        self.broker.start()
        folder = self.home / "fleet"
        folder.mkdir()
        self.fleet = Fleet(folder, urls.app, lease_s=5.0)
        self._configure(folder / "hindcast.toml")
        self.pipeline = self._pipeline()
        for name in ("web-a", "web-b"):
            self._start(name, ["serve", "--port", "0"])
        for name in ("worker-a", "worker-b"):
            self._start(name, ["worker", "--jobs", "2"])
        for name in ("collector-a", "collector-b"):
            self._start(name, ["collect"])

    def _configure(self, file: Path) -> None:
        told = (example() / "hindcast.toml").read_text()
        told = told.replace('"127.0.0.1:9092"', f'"{self.broker.address}"')
        for build in ("v1", "v2"):
            told = told.replace(f'paths = ["{build}"]', f'paths = ["{example() / build}"]')
        file.write_text(file.read_text() + "\n" + told)

    def _pipeline(self) -> subprocess.Popen[bytes]:
        told = [("agent", "AGENT"), ("provider", "make_provider"), ("registry", "TOOLS"), ("decode", "decode")]
        options = [f"--{name}=refunds.agent:{attribute}" for name, attribute in (*told, ("config", "CONFIG"))]
        options += [f"--path={example() / 'v1'}", f"--brokers={self.broker.address}", "--topics=refunds"]
        options += [f"--journal={self.home / 'refunds.journal'}", "--log-level=error"]
        return subprocess.Popen([sys.executable, "-m", "app.pipeline", *options])

    def _start(self, name: str, words: list[str]) -> None:
        process = self.fleet.start(*words, "--log-level", "error", HINDCAST_TOKEN=TOKEN)
        self.parts[name] = (words, process)
        if words[0] == "serve":
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "/enter" in line, f"{name} did not start: {line!r}"
            self.bases[name] = line.partition("/enter")[0]

    def check(self) -> None:
        """Whoever was not killed must live, and whoever was comes back."""
        for name, (words, process) in list(self.parts.items()):
            if process.poll() is not None:
                if name not in ("web-b", "worker-b", "collector-a", "collector-b"):
                    raise RuntimeError(f"{name} ended by itself with {process.returncode}:\n{self._last(words[0])}")
                self._start(name, words)
        assert self.pipeline.poll() is None, "the pipeline ended by itself"

    def _last(self, command: str) -> str:
        return (self.fleet.folder / f"{command}.log").read_text()[-6000:]

    def kill(self) -> None:
        """Kill something at random."""
        ways: list[tuple[str, int, Callable[[], None]]] = [
            ("worker", 3, lambda: self._kill("worker-b")),
            ("console", 1, lambda: self._kill("web-b")),
            ("collector", 2, lambda: self._kill(self.chance.choice(("collector-a", "collector-b")))),
            ("sandbox or run", 3, self._kill_below_worker),
            ("worker, gently", 1, lambda: self.parts["worker-b"][1].terminate()),
            ("database", 1, self._kill_database),
        ]
        name, _, way = self.chance.choices(ways, [weight for _, weight, _ in ways])[0]
        way()
        self.kills[name] += 1

    def _kill(self, name: str) -> None:
        self.parts[name][1].kill()

    def _kill_below_worker(self) -> None:
        below = sorted(descendants(self.parts["worker-a"][1].pid))
        if below:
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(below), signal.SIGKILL)

    def _kill_database(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        while self.server.alive():
            time.sleep(0.01)
        self.server.stop()
        self.server = EmbeddedPostgres(self.home / "state")
        self.server.start()

    def stop(self) -> None:
        for _, process in self.parts.values():
            process.terminate()
        self.fleet.close()
        self.pipeline.terminate()
        self.pipeline.wait(20)
        self.broker.stop()
        self.server.stop()


@dataclass
class Soak:
    """What drives an installation, and what it was promised."""

    world: Installation
    chance: random.Random
    promised: Promised = field(default_factory=Promised)
    memory: dict[str, list[float]] = field(default_factory=dict)
    http: httpx.AsyncClient = field(init=False)
    desk: Producer = field(init=False)

    async def run(self, seconds: float) -> None:
        self.desk = Producer({"bootstrap.servers": self.world.broker.address, "partitioner": "murmur2_random"})
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(headers=headers, timeout=20) as self.http:
            files = [(str(file.role), (file.name, file.data)) for file in scenario(SCENARIO).bundle()]
            await self._until(self._ready)
            await self._until(lambda: self._import(files))
            end = time.monotonic() + seconds
            loops = [
                self._every(1 / TICKETS_A_SECOND, end, self._ticket),
                self._every(REPLAY_EVERY_S, end, self._replay),
                self._every(EXPORT_EVERY_S, end, self._export),
                self._every(20.0, end, lambda: self._import(files)),
                self._every(KILL_EVERY_S, end, self._kill),
                self._every(SAMPLE_S, end, self._sample),
            ]
            await asyncio.gather(*loops)
            assert self.desk.flush(60) == 0, "the broker does not take the tickets"
            await self._settle()

    async def _every(self, pause_s: float, end: float, action: Callable[[], Any]) -> None:
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                await action()
            except httpx.HTTPError:
                self.promised.unanswered += 1  # the console, or the database, was being killed: nothing was promised
            await asyncio.sleep(max(0.0, pause_s * self.chance.uniform(0.5, 1.5) - (time.monotonic() - begun)))

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        name = self.chance.choice(("web-a", "web-b"))
        answer = await self.http.request(method, f"{self.world.bases[name]}{path}", **options)
        if answer.status_code >= 500:
            raise httpx.HTTPStatusError("refused", request=answer.request, response=answer)
        return answer

    async def _ready(self) -> None:
        """What comes up while the database is killed ends again, and is for a supervisor to start anew."""
        answer = await self._ask("GET", "/readyz")
        told = {check["check"]: check for check in answer.json()["checks"]}
        if told["workers"].get("alive") != 2 or not told["collector"].get("followed"):
            raise httpx.HTTPError("not everything is up yet")

    async def _ticket(self) -> None:
        number = self.promised.tickets
        ticket = Ticket(f"customer-{number % 40}", f"T-{number}", "7740", NEVER_CAME)
        envelope = ticket.envelope(time.time_ns() // 1_000_000)
        self.desk.produce(EVENTS, serialize(envelope), envelope.entity_key)
        self.desk.poll(0)
        self.promised.tickets += 1

    async def _import(self, files: list[Any]) -> None:
        answer = await self._ask("POST", "/api/v1/incidents/import", files=files)
        self.promised.incidents.append(answer.json()["id"])

    async def _replay(self) -> None:
        incident = self.chance.choice(self.promised.incidents)
        build = self.chance.choice(("swift", "swift", "elsewhere"))
        answer = await self._ask("POST", f"/api/v1/incidents/{incident}/replays", json={"build": build})
        assert answer.status_code == 202, answer.text
        self.promised.runs.append(answer.json()["id"])

    async def _export(self) -> None:
        listed = (await self._ask("GET", "/api/v1/activations", params={"limit": 50})).json()["items"]
        if not listed:
            return
        opened = await self._ask("POST", "/api/v1/incidents", json={"activation": self.chance.choice(listed)["id"]})
        incident = opened.json()["id"]
        asked = await self._ask("POST", f"/api/v1/incidents/{incident}/exports", json={"reason": "soak"})
        assert asked.status_code == 202, asked.text
        self.promised.exports.append(asked.json()["id"])

    async def _kill(self) -> None:
        self.world.kill()  # in this thread: the database dies with the one that starts it
        await asyncio.sleep(self.chance.uniform(0.2, 2.0))
        await asyncio.to_thread(self.world.check)

    async def _sample(self) -> None:
        self.world.check()
        for name in ("web-a", "worker-a"):
            self.memory.setdefault(name, []).append(_resident_mib(self.world.parts[name][1].pid))

    async def _settle(self) -> None:
        """No more kills: what waits is done, what was lost is retried as a person would."""
        self.world.check()
        deadline = time.monotonic() + SETTLE_S
        left: list[str] = []
        while time.monotonic() < deadline:
            left = []
            for run in self.promised.runs:
                if run not in self.promised.ended:
                    await self._look(run, left)
            for export in self.promised.exports:
                if export not in self.promised.answered:
                    await self._look_at_export(export, left)
            if not left:
                return
            await asyncio.sleep(1)
        raise AssertionError(f"{len(left)} runs or exports are stuck: {left[:5]}")

    async def _look_at_export(self, export: str, left: list[str]) -> None:
        """One that no collector could publish in its time, or whose answer was too late, is asked for again."""
        state = (await self._ask("GET", f"/api/v1/exports/{export}")).json()["state"]
        if state == "answered":
            self.promised.answered.add(export)
            return
        left.append(export)
        if state == "timed_out":
            self.promised.asked_again += 1
            await self._ask("POST", f"/api/v1/exports/{export}/retry")

    async def _look(self, run: str, left: list[str]) -> None:
        found = (await self._ask("GET", f"/api/v1/replays/{run}")).json()
        if found["state"] == "done":
            self.promised.ended[run] = found["outcome"]
            return
        left.append(run)
        if found["state"] == "lost":
            self.promised.retried += 1
            origin = {"Origin": self.world.bases["web-a"]}
            await self._ask("POST", f"{found['url']}/retry", headers=origin)
        elif found["state"] not in ("queued", "running"):
            raise AssertionError(f"run {run} is {found['state']}: {found['error']}")

    async def _until(self, action: Callable[[], Any]) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                return await action()
            except httpx.HTTPError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    told = parser.parse_args()
    print(f"soak of {told.seconds:g} s, seed {told.seed}", flush=True)
    home = Path(tempfile.mkdtemp(prefix="hindcast-soak-"))
    home.chmod(0o711)
    world = Installation(home, random.Random(told.seed))
    soak = Soak(world, random.Random(told.seed + 1))
    try:
        world.start()
        asyncio.run(soak.run(told.seconds))
        counted = count(world.fleet.url, world.broker.address, PIPELINE, soak.promised, world.kills, soak.memory)
        ok = asyncio.run(counted)
    finally:
        world.stop()
        shutil.rmtree(home, ignore_errors=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
