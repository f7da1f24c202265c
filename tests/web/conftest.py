"""A console over a database of the test's own, asked as a script asks (`api`) and as a browser does (`person`)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from app.incidents.service import Store
from app.settings import Settings, load
from app.web.app import create_app
from tests.fixtures.postgres import Database
from tests.golden import corpus
from tests.golden.scenarios import scenario
from tests.waiting import PATIENCE_S

TOKEN = "a-token-for-tests-alone"
HOME = "http://localhost:8700"
BUILDS = ("d01_intent_order", "a01_fraud_completed", "u01_changed_tool_args", "i09_model_changed")


def configuration(names: tuple[str, ...]) -> str:
    """A hindcast.toml with one build per scenario, named after it."""
    parts = []
    for name in names:
        one = scenario(name)
        options = {option.removeprefix("--"): value for option, value in one.options().items()}
        hooks = [f'{hook} = "{options[hook]}"' for hook in ("registry", "decode") if hook in options]
        hooks += ['config = "agent:CONFIG"'] if one.has_config else []
        head = ["[[builds]]", f'name = "{name}"', f'agent = "{options["agent"]}"', f'paths = ["{one.folder}"]']
        parts.append("\n".join([*head, *hooks]))
    return "\n\n".join(parts)


@pytest.fixture
def settings(tmp_path: Path, database: Database) -> Settings:
    file = tmp_path / "hindcast.toml"
    live = "\nlive_from = 2023-01-01T00:00:00Z\nlive_to = 2024-01-01T00:00:00Z\n"
    file.write_text(configuration(BUILDS[:1]) + live + configuration(BUILDS[1:]))
    environment = {"HINDCAST_TOKEN": TOKEN, "HINDCAST_DATABASE_URL": database.app, "HINDCAST_HOME": str(tmp_path)}
    return load(file, environment)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages wait for their plan as long as it takes: on a busy machine they would say that they still read."""
    monkeypatch.setattr("app.web.incidents.PATIENCE_S", PATIENCE_S)


@pytest.fixture
async def app(settings: Settings, store: Store) -> AsyncIterator[FastAPI]:
    made = create_app(settings, store)
    async with made.router.lifespan_context(made):
        yield made


def client(app: FastAPI, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=HOME, headers=headers)


@pytest.fixture
async def stranger(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody without the token."""
    async with client(app) as one:
        yield one


@pytest.fixture
async def api(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A script with the token."""
    async with client(app, Authorization=f"Bearer {TOKEN}") as one:
        yield one


def within_a_minute(app: FastAPI) -> None:
    """Let no time pass for those who count tries, however long a test takes for its own."""
    for limiter in vars(app.state.rates).values():
        limiter._clock = lambda: 0.0


class Browser:
    """Somebody who entered with the token, and sends forms as pages do."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.csrf = ""

    async def enter(self) -> None:
        await self.http.get("/enter", params={"token": TOKEN})
        page = (await self.http.get("/import")).text
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
        assert found, "the import page carries no CSRF token"
        self.csrf = found[1]

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(path)

    async def post(
        self, path: str, data: dict[str, object] | None = None, files: list[tuple[str, tuple[str, bytes]]] | None = None
    ) -> httpx.Response:
        fields = {"csrf": self.csrf, **(data or {})}
        return await self.http.post(path, data=fields, files=files, headers={"Origin": HOME})


@pytest.fixture
async def person(app: FastAPI) -> AsyncIterator[Browser]:
    async with client(app) as http:
        one = Browser(http)
        await one.enter()
        yield one


def upload(name: str) -> list[tuple[str, tuple[str, bytes]]]:
    """The three files of a scenario as parts of a form."""
    return [(str(file.role), (file.name, file.data)) for file in scenario(name).bundle()]


def raw(name: str, stream: str) -> bytes:
    return (corpus() / "corpus" / name / "raw" / f"{stream}.bin").read_bytes()
