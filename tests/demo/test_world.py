"""`hindcast demo` from the outside: a real process, real children, a real console behind its token."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S, ended, until

ROOT = Path(__file__).parents[2]


@dataclass
class Demo:
    """A running `hindcast demo`, started at `since_ms`."""

    home: Path
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    since_ms: int = 0

    def told(self, words: str) -> str:
        """Read its output up to the line with those words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"it ended with {self.process.wait()}: {''.join(self.lines)}")

    @property
    def address(self) -> str:
        found = re.search(r"console +(http://\S+)", "".join(self.lines))
        assert found is not None
        return found[1]

    def until(self, path: str, what: Callable[[Any], Any], count: int) -> list[Any]:
        """Ask until there is as much as expected."""
        found: list[Any] = []

        def look() -> bool:
            found[:] = what(self.ask(path)) or []
            return len(found) >= count

        until(look, lambda: found, pause_s=0.2)
        return found

    def ask(self, path: str, *, token: bool = True, body: object = None) -> Any:
        base, _, secret = self.address.partition("/enter?token=")
        headers = {"Authorization": f"Bearer {secret}"} if token else {}
        data = None if body is None else json.dumps(body).encode()
        headers |= {"Content-Type": "application/json"} if data else {}
        with urllib.request.urlopen(urllib.request.Request(base + path, data, headers), timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def children(self) -> list[int]:
        """Process ids of everything below it."""
        found, todo = [], [self.process.pid]
        while todo:
            parent = todo.pop()
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                with contextlib.suppress(OSError):  # a thread that has ended since
                    for pid in map(int, task.read_text().split()):
                        found.append(pid)
                        todo.append(pid)
        return found


def demo(home: Path, *options: str) -> Demo:
    command = [sys.executable, "-m", "app.cli", "demo", "--no-browser", *options]
    environment = {**os.environ, "HINDCAST_HOME": str(home)}
    since_ms = time.time_ns() // 1_000_000
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment
    )
    return Demo(home, process, since_ms=since_ms)


def alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_gone(pids: list[int]) -> None:
    until(lambda: not any(map(alive, pids)), lambda: f"the end of {[pid for pid in pids if alive(pid)]}", pause_s=0.05)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hindcast-demo-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def started(home: Path) -> Iterator[Demo]:
    running = demo(home, "--port", "0")
    try:
        running.told("Ctrl-C stops everything")
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
        ended(running.process)
        assert running.process.stdout is not None
        running.process.stdout.close()


def test_it_tells_the_story_and_leaves_nothing_behind(started: Demo) -> None:
    text = "".join(started.lines)
    assert "customer-42 was refunded 4800.00 EUR" in text
    assert re.search(r"refunds-v1: .*same run again", text)
    assert re.search(r"refunds-v2: First divergence at event 3: recorded INTENT_EMITTED", text)
    (incident,) = started.ask("/api/v1/incidents")["incidents"]
    assert incident["title"].startswith("customer-42 was refunded")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        started.ask("/api/v1/incidents", token=False)
    children = started.children()
    assert len(children) >= 6  # web, worker, its sandboxes, pipeline, collector, the database
    started.process.send_signal(signal.SIGINT)
    assert ended(started.process) == 0
    wait_until_gone(children)


@pytest.fixture
def own_home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hindcast-demo-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(home: Path) -> Iterator[Demo]:
    """Run the demo for the length of a block; SIGTERM ends it, in good order."""
    one = demo(home, "--port", "0")
    try:
        one.told("Ctrl-C stops everything")
        yield one
    finally:
        if one.process.poll() is None:
            one.process.terminate()
        code = ended(one.process)
        assert one.process.stdout is not None
        one.process.stdout.close()
    assert code == 0


def test_a_desk_is_at_work_and_begins_anew_with_each_start(own_home: Path) -> None:
    with running(own_home) as started:
        the_bad_refund_replays(started)
    with running(own_home) as started:
        a_second_start_finds_the_story_as_it_was(started)


def the_bad_refund_replays(started: Demo) -> None:
    """From the row of the bad refund to two verdicts, as a script does it."""
    since = started.since_ms - 10 * 60_000  # the story's tickets are some minutes old
    story = {"customer-7", "customer-11", "customer-42", "customer-58", "customer-63", "customer-23"}

    def told(body: Any) -> list[Any]:
        """The rows, once all of the story is among them: later tickets may overtake it in the other partition."""
        return body["items"] if story <= {row["entity_key"]["text"] for row in body["items"]} else []

    rows = started.until(f"/api/v1/activations?since_ms={since}", told, len(story))
    ends = {row["entity_key"]["text"]: (row["status"], row["reason"]) for row in rows}
    assert ends["customer-7"] == ("completed", None)
    assert ends["customer-58"] == ("suspended", None)
    assert ends["customer-63"] == ("failed", "activation_error")
    (refund,) = started.until("/api/v1/activations?key=customer-42", lambda body: body["items"], 1)
    assert [intent["tool"] for intent in refund["intents"]] == ["issue_refund"]
    incident = started.ask("/api/v1/incidents", body={"activation": refund["id"]})
    where = f"/api/v1/incidents/{incident['id']}"
    assert started.ask(f"{where}/exports", body={"reason": "a hundred times too much"})["state"] == "requested"
    started.until(where, lambda body: body["ready"] and ["ready"], 1)
    for build, outcome in (("refunds-v1", "reproduced"), ("refunds-v2", "diverged")):
        run = started.ask(f"{where}/replays", body={"build": build})
        started.until(f"/api/v1/replays/{run['id']}", lambda body: body["outcome"] and [body["outcome"]], 1)
        assert started.ask(f"/api/v1/replays/{run['id']}")["outcome"] == outcome
    assert len(started.until("/api/v1/activations", lambda body: body["items"], 7)) >= 7  # it goes on


def a_second_start_finds_the_story_as_it_was(started: Demo) -> None:
    live, story = started.ask("/api/v1/incidents")["incidents"]
    assert re.search(r"refunds-v1: .*same run again", "".join(started.lines))
    assert (live["pipeline"], story["pipeline"]) == ("refunds", None)
    assert live["replays"][0]["outcome"] == "diverged"
    # The desk began anew, and so did its keys: nothing of the former one is taken for theirs.
    rows = started.until("/api/v1/activations", lambda body: body["items"], 6)
    assert all(row["clock_ms"] >= started.since_ms - 10 * 60_000 for row in rows)
    assert len({(row["entity_key"]["text"], row["seq"]) for row in rows}) == len(rows)
    assert started.ask(f"/api/v1/incidents/{live['id']}")["ready"]


def test_a_second_demo_in_the_same_place_is_refused_and_harms_nothing(started: Demo) -> None:
    second = demo(started.home)
    line = second.told("already runs")
    assert f"another Hindcast (process {started.process.pid}) already runs the embedded database" in line
    assert ended(second.process) == 2
    assert second.process.stdout is not None
    second.process.stdout.close()
    assert started.ask("/api/v1/incidents")["incidents"]


def test_even_kill_9_leaves_no_process_behind(started: Demo) -> None:
    children = started.children()
    started.process.kill()
    started.process.wait()
    wait_until_gone(children)


def test_a_part_that_dies_ends_the_demo_and_is_named(started: Demo) -> None:
    children = started.children()
    worker = next(pid for pid in children if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    os.kill(worker, signal.SIGKILL)
    assert "the worker process stopped with code -9" in started.told("worker process stopped")
    assert ended(started.process) == 2
    wait_until_gone(children)


def test_the_secrets_of_one_part_are_not_in_another(started: Demo) -> None:
    token = started.address.partition("token=")[2].encode()
    owner = json.loads((started.home / "postgres" / "passwords.json").read_text())["hindcast_owner"].encode()
    seen = 0
    for pid in started.children():
        with contextlib.suppress(PermissionError, FileNotFoundError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert owner not in environment + command
            assert token not in command
            assert (token in environment) == (b"serve" in command.split(b"\0"))
            seen += 1
    assert seen >= 2


def test_a_port_in_use_is_named_or_stepped_over(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = demo(home, "--port", str(port))
        refused.told(f"port {port} of 127.0.0.1 is in use; stop the program that has it, or choose another")
        assert ended(refused.process) == 2
        assert refused.process.stdout is not None
        refused.process.stdout.close()
    config = home / "hindcast.toml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config.write_text(f"[console]\nport = {port}\n")
        other = demo(home, "--config", str(config))
        other.told(f"port {port} is in use; taking ")
        other.told("Ctrl-C stops everything")
        assert f":{port}/" not in other.address
        other.process.terminate()
        assert ended(other.process) == 0
        assert other.process.stdout is not None
        other.process.stdout.close()
