"""A real console for a real browser: `hindcast serve` and `hindcast worker` as processes, over their own database."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Page, expect

from app.demo.desk import example
from app.demo.postgres import Urls
from scripts.flink_env import FlinkMissing, python
from tests.conftest import CHROMIUM
from tests.fixtures.flink import builds_of_the_desk
from tests.fixtures.postgres import _copy
from tests.golden.scenarios import Scenario, scenario
from tests.web.conftest import configuration

# A wait is there to end a hang, not to judge a machine's speed.
expect.set_options(timeout=60_000)

TOKEN = "a-token-for-the-browser"
BUILDS = (
    "d01_intent_order",
    "a01_fraud_completed",
    "u01_changed_tool_args",
    "i09_model_changed",
    "i14_tool_answer_in_prompt",
    "d28_pending_resume_what_if",
    "m01_drift_pre_post",
    "m09_union_of_two_caches",
    "a30_exactly_64_calls",
)
# The fraud agent as it would be if its read-only tool asked a server.
NETWORKED = "fraud-networked"


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """Use the installed Chromium; Playwright's own download is never needed."""
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    machine = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
    return {**browser_type_launch_args, "executable_path": CHROMIUM, "args": quiet + machine}


@dataclass
class Console:
    """A running console; `api` asks it as a script does, `worker` is its worker process."""

    base: str
    entrance: str
    api: httpx.Client
    worker: subprocess.Popen[str]
    folder: Path

    def imported(self, name: str, *, level: str = "bundle", title: str = "") -> str:
        """Import a scenario; returns the incident's id."""
        files = [(str(file.role), (file.name, file.data)) for file in scenario(name).files(level)]
        answer = self.api.post("/api/v1/incidents/import", files=files, data={"title": title})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def replayed(self, incident: str, build: str) -> dict[str, Any]:
        """Replay with a build, and wait for the end."""
        run = self.api.post(f"/api/v1/incidents/{incident}/replays", json={"build": build}).json()
        found = self.finished(run["id"])
        assert found["state"] == "done", found["error"]
        return found

    def finished(self, run: str) -> dict[str, Any]:
        """Wait for the end of a run."""
        for _ in range(2400):
            found: dict[str, Any] = self.api.get(f"/api/v1/replays/{run}").json()
            if found["state"] not in ("queued", "running"):
                return found
            time.sleep(0.05)
        raise AssertionError(f"{run} does not end: {found}")

    def pause(self) -> None:
        """Let the worker sleep: runs then wait in the queue."""
        self.worker.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.worker.send_signal(signal.SIGCONT)


@pytest.fixture(scope="session")
def console(postgres: Urls, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """Start console and worker once for all browser tests."""
    folder = tmp_path_factory.mktemp("console")
    parts = (configuration(BUILDS), _networked(folder), _refunds(), _desk())
    (folder / "hindcast.toml").write_text("\n\n".join(parts))
    with _copy(postgres, template) as database:
        environment = os.environ | {
            "HINDCAST_TOKEN": TOKEN,
            "HINDCAST_DATABASE_URL": database.app,
            "HINDCAST_CONFIG": str(folder / "hindcast.toml"),
            "HINDCAST_HOME": str(folder),
        }
        serve = _start(folder, "serve", environment, "--port", "0")
        worker = _start(folder, "worker", environment)
        try:
            assert serve.stdout is not None
            entrance = serve.stdout.readline().strip()
            assert "/enter?token=" in entrance, (folder / "serve.log").read_text()
            base = entrance.partition("/enter")[0]
            with httpx.Client(base_url=base, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as api:
                yield Console(base, entrance, api, worker, folder)
        finally:
            worker.send_signal(signal.SIGCONT)
            for process in (worker, serve):
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()


def _networked(folder: Path) -> str:
    source = (scenario("a01_fraud_completed").folder / "agent.py").read_text()
    tool = "def risk_lookup(card: str, limit: int = 5) -> str:"
    assert tool in source
    call = '    __import__("socket").create_connection(("cards.example", 443))'
    (folder / "networked").mkdir()
    (folder / "networked" / "agent.py").write_text(source.replace(tool, f"{tool}\n{call}"))
    lines = [f'name = "{NETWORKED}"', 'agent = "agent:AGENT"', 'registry = "agent:TOOLS"', 'decode = "agent:decode"']
    return "\n".join(["[[builds]]", *lines, f'paths = ["{folder / "networked"}"]'])


def _refunds() -> str:
    """The two builds of the demo's story."""
    hooks = [f'{hook} = "refunds.agent:{name}"' for hook, name in (("registry", "TOOLS"), ("decode", "decode"))]
    hooks += ['agent = "refunds.agent:AGENT"', 'config = "refunds.agent:CONFIG"']
    parts = [
        "\n".join(["[[builds]]", f'name = "refunds-{version}"', *hooks, f'paths = ["{example() / version}"]'])
        for version in ("v1", "v2")
    ]
    return "\n\n".join(parts)


def _desk() -> str:
    """The builds of Flink Agents, where their environment is here; tests that want one are skipped where it is not."""
    try:
        return builds_of_the_desk(python())
    except FlinkMissing:
        return ""


def _start(folder: Path, command: str, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    log = (folder / f"{command}.log").open("w")
    argv = [sys.executable, "-m", "app.cli", command, *options]
    cwd = Path(__file__).parents[2]
    return subprocess.Popen(argv, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=log, text=True)


@pytest.fixture(scope="session")
def base_url(console: Console) -> str:
    return console.base


@pytest.fixture
def operator(page: Page, console: Console) -> Iterator[Page]:
    """A page whose browser has entered; any error that the page meets fails the test."""
    troubles: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        if "Content Security" in message.text and not Looking.now:
            troubles.append(message.text)

    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", listen)
    page.goto(console.entrance)
    assert page.url == f"{console.base}/"
    yield page
    assert troubles == []


class Looking:
    """Whether axe is at work: it tries inline styles of its own, which our policy refuses, as it should."""

    now = False


def press_replay(page: Page, *builds: str) -> None:
    """Tick these builds and no other, and press Replay."""
    page.wait_for_load_state()
    form = page.get_by_role("group", name="Builds to replay with")
    expect(form).to_be_visible()
    for box in form.get_by_role("checkbox", checked=True).all():
        box.uncheck()
    for build in builds:
        form.get_by_role("checkbox", name=re.compile(rf"^{re.escape(build)}( |$)")).check()
    page.get_by_role("button", name="Replay", exact=True).click()


def accessible(page: Page, *rules: str) -> None:
    """Let axe look at the page once it has loaded, by all rules or by some; it must find nothing."""
    page.wait_for_load_state()
    Looking.now = True
    found = Axe().run(page, options={"runOnly": list(rules)} if rules else None)
    Looking.now = False
    told = [
        f"{violation['id']}: {violation['help']}\n" + "\n".join(node["html"][:300] for node in violation["nodes"][:5])
        for violation in found.response["violations"]
    ]
    assert told == [], "\n".join(told)


def files_of(name: str) -> dict[str, str]:
    """The three files of a scenario by role, as paths for a file input."""
    one: Scenario = scenario(name)
    options = one.options()
    return {role: str(one.folder / options[f"--{role}"]) for role in ("snapshot", "traces", "event")}
