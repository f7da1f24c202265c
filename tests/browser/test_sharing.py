"""Sharing as a person does it: choose, preview, create, hand over; and the link's end, by the clock and by hand.

The console runs in this process, so that a test can move the clock by which links are judged.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect

from app.demo.postgres import Urls
from app.incidents.service import Store
from app.main import open_port
from app.settings import load
from app.web.app import create_app
from tests.browser.conftest import TOKEN, accessible
from tests.fixtures.postgres import _copy
from tests.golden.scenarios import scenario
from tests.web.conftest import configuration
from tests.web.work import work

U01 = "u01_changed_tool_args"
START = 1_800_000_000_000


@dataclass
class Shop:
    """A console whose links live by `now`, with one incident and two runs of it."""

    base: str
    app: Any
    api: httpx.Client
    incident: str
    now: int = START

    def made(self, **options: object) -> str:
        """The path of a link made by a script."""
        answer = self.api.post(f"/api/v1/incidents/{self.incident}/shares", json=options)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["url"]).removeprefix(self.base)


def _aside(work: Coroutine[Any, Any, Any]) -> None:
    """Run something asynchronous beside Playwright, which holds this thread's event loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


async def _replay(url: str, run: str) -> None:
    store = Store(url)
    try:
        await work(store, run)
    finally:
        await store.close()


@pytest.fixture(scope="module")
def shop(postgres: Urls, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder: Path = tmp_path_factory.mktemp("shop")
    (folder / "hindcast.toml").write_text(configuration((U01,)))
    with _copy(postgres, template) as database, open_port("127.0.0.1", 0) as listener:
        settings = load(
            folder / "hindcast.toml",
            {"HINDCAST_TOKEN": TOKEN, "HINDCAST_DATABASE_URL": database.app, "HINDCAST_HOME": str(folder)},
        )
        app = create_app(settings)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=base, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as api:
            files = [(str(file.role), (file.name, file.data)) for file in scenario(U01).full()]
            incident = api.post("/api/v1/incidents/import", files=files, data={"title": "A hold of 991000"}).json()[
                "id"
            ]
            for _ in range(2):
                run = api.post(f"/api/v1/incidents/{incident}/replays", json={"build": U01}).json()["id"]
                _aside(_replay(database.app, run))
            made = Shop(base, app, api, incident)
            app.state.clock = lambda: made.now
            yield made
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def owner(page: Page, shop: Shop) -> Iterator[Page]:
    """A page whose browser has entered; any error that it meets fails the test."""
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(f"{shop.base}/enter?token={TOKEN}")
    yield page
    assert troubles == []


def recipient(browser: Browser, shop: Shop, **options: Any) -> Page:
    """A fresh browser that has never been here."""
    return browser.new_context(base_url=shop.base, **options).new_page()


def test_from_the_run_to_a_stranger_and_back(owner: Page, browser: Browser, shop: Shop) -> None:
    owner.goto(f"{shop.base}/incidents/{shop.incident}/runs/2")
    owner.get_by_role("link", name="Share", exact=True).click()
    expect(owner.get_by_label("What is shared")).to_have_value("2")
    owner.get_by_label("What is shared").select_option("all")
    owner.get_by_label("Names: tools").check()
    owner.get_by_role("button", name="Preview as the recipient").click()
    expect(owner.locator(".preview")).to_contain_text("what the recipient sees")
    expect(owner.locator("#redaction")).to_have_text("◐redacted but for names")
    owner.get_by_role("link", name="run 2").click()
    expect(owner.locator("#verdict")).to_contain_text("hold_txn")
    expect(owner.locator("body")).not_to_contain_text("card-4242")
    owner.get_by_role("link", name="Open event 4").click()
    expect(owner.locator("#fields")).to_contain_text("intent_id equal")
    owner.get_by_role("link", name="Change").click()
    expect(owner.get_by_label("Names: tools")).to_be_checked()
    owner.get_by_label("Names: tools").uncheck()
    owner.get_by_role("button", name="Preview as the recipient").click()
    expect(owner.locator("#redaction")).to_have_text("●redacted")
    owner.get_by_role("button", name="Create the link, for 7 days").click()
    url = owner.locator("#link").inner_text()
    assert re.fullmatch(re.escape(shop.base) + r"/s/[\w-]{32}", url)

    stranger = recipient(browser, shop)
    asked: list[str] = []
    stranger.on("request", lambda request: asked.append(request.url))
    stranger.goto(url)
    expect(stranger.locator("#redaction")).to_have_text("●redacted")
    stranger.get_by_role("link", name="run 2").click()
    expect(stranger.locator("#verdict")).to_contain_text("First divergence at event 4")
    stranger.get_by_role("link", name="Jump to it").click()
    stranger.get_by_role("link", name="Open event 4").click()
    expect(stranger.locator("#fields")).to_contain_text("‹9 bytes · ")
    stranger.get_by_role("link", name="In the timeline").click()
    stranger.get_by_role("link", name="differences only").click()
    expect(stranger.locator("tbody.stop")).to_have_count(1)
    assert all(one.startswith(shop.base) for one in asked), "no third party is asked"
    assert stranger.locator("script").count() == 0

    owner.get_by_role("link", name="All shares").click()
    line = owner.locator("tr", has_text="whole incident").first
    expect(line).to_contain_text("live")
    expect(line.locator("td.num")).not_to_have_text("0")
    line.get_by_role("button", name=re.compile("End the share")).click()
    expect(owner.locator("tr", has_text="whole incident").first).to_contain_text("ended")
    stranger.reload()
    expect(stranger.get_by_role("heading", level=1)).to_have_text("This link shows nothing")
    stranger.context.close()


# complaints 21, 22
def test_the_clock_ends_it(browser: Browser, shop: Shop) -> None:
    shop.now = START
    path = shop.made(expires_in_s=60)
    page = recipient(browser, shop)
    for moment, status in ((59_000, 200), (61_000, 404)):
        shop.now = START + moment
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == status
    shop.now = START
    page.context.close()


# complaint 45
def test_a_recipients_browser_keeps_nothing(browser: Browser, shop: Shop) -> None:
    path = shop.made()
    page = recipient(browser, shop)
    for place in ("", "/runs/1", "/runs/1?show=differences", "/runs/1/events/4"):
        page.goto(path + place)
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0
    assert page.evaluate("indexedDB.databases().then(found => found.length)") == 0
    assert page.context.cookies() == []
    assert page.evaluate("document.querySelector('meta[name=robots]').content").startswith("noindex")
    assert page.evaluate("document.querySelector('meta[name=referrer]').content") == "no-referrer"
    page.context.close()


def test_a_link_reads_without_javascript_on_paper_and_on_a_phone(browser: Browser, shop: Shop) -> None:
    path = shop.made()
    page = recipient(browser, shop, java_script_enabled=False, viewport={"width": 360, "height": 800})
    for place in ("", "/runs/1", "/runs/1/events/4"):
        page.goto(path + place)
        expect(page.locator("#redaction")).to_be_visible()
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.context.close()
    page = recipient(browser, shop, viewport={"width": 360, "height": 800})
    for place in ("", "/runs/1", "/runs/1/events/4"):
        page.goto(path + place)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, place
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page_of_sharing(owner: Page, shop: Shop, scheme: Any) -> None:
    shop.now = START
    owner.emulate_media(color_scheme=scheme)
    closed, opened = shop.made(), shop.made(redact=False)
    shop.made(expires_in_s=1)
    base = f"/incidents/{shop.incident}"
    pages = ["/shares", f"{base}/shares/new", f"{base}/preview/all/redacted/7d", f"{base}/preview/1/key-texts/1h"]
    pages += [link + place for link in (closed, opened) for place in ("", "/runs/1", "/runs/1/events/4")]
    pages += ["/s/" + "x" * 32]
    shop.now = START + 2_000
    for path in pages:
        owner.goto(shop.base + path)
        accessible(owner)
    owner.goto(f"{shop.base}{base}/preview/all/redacted/7d")
    owner.get_by_role("button", name="Create the link").click()
    expect(owner.locator("#link")).to_be_visible()
    accessible(owner)
