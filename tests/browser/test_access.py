"""Logging in as people do: at a real provider, with the role of their groups, until the time is over or they leave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect

from app.demo.postgres import Urls
from app.incidents import service
from app.incidents.roles import Role
from app.incidents.service import Run
from app.incidents.store import Store
from app.incidents.tokens import create_token
from app.main import open_port
from app.settings import load
from app.web.app import create_app
from tests.browser.conftest import accessible
from tests.browser.test_sharing import _aside, _replay
from tests.fixtures.postgres import Database, _copy
from tests.fixtures.provider import CLIENT, SECRET, running
from tests.golden.scenarios import scenario
from tests.incidents.flink import LOGS, NAMES, bring_in
from tests.web.conftest import configuration
from tests.web.serving import serving

U01 = "u01_changed_tool_args"
RULES = "".join(
    f'[[access.roles]]\nrole = "{role}"\ngroups = ["{role}s"]\npipelines = ["*"]\n' for role in ("viewer", "admin")
)


@dataclass
class House:
    """A console that people log in at, with an incident in it."""

    base: str
    issuer: str
    database: Database
    incident: str


@pytest.fixture(scope="module")
def house(postgres: Urls, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder: Path = tmp_path_factory.mktemp("house")
    with _copy(postgres, template) as database, open_port("127.0.0.1", 0) as listener:
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with running(base) as issuer:
            (folder / "secret").write_text(SECRET)
            (folder / "hindcast.toml").write_text(
                f'[console]\nurl = "{base}"\n[access]\nmode = "oidc"\n[access.oidc]\nissuer = "{issuer}"\n'
                f'client_id = "{CLIENT}"\nclient_secret = {{ file = "secret" }}\n{RULES}\n{configuration((U01,))}'
            )
            environment = {"HINDCAST_DATABASE_URL": database.app, "HINDCAST_HOME": str(folder)}
            settings = load(folder / "hindcast.toml", environment)
            settings.check_access()
            with serving(create_app(settings), listener):
                yield House(base, issuer, database, _filled(base, database))


def _filled(base: str, database: Database) -> str:
    """Import an incident as a script, and replay it; returns its id."""
    made: list[str] = []

    async def token() -> None:
        store = Store(database.app)
        async with store.write() as session:
            _, secret = await create_token(session, name="tests", role=Role.ADMIN, scopes=["*"], who="tests")
        made.append(secret)
        await store.close()

    _aside(token())
    with httpx.Client(base_url=base, headers={"Authorization": f"Bearer {made[0]}"}, timeout=60) as api:
        files = [(str(file.role), (file.name, file.data)) for file in scenario(U01).full()]
        answer = api.post("/api/v1/incidents/import", files=files, data={"title": "A hold of 991000"})
        incident = str(answer.json()["id"])
        run = api.post(f"/api/v1/incidents/{incident}/replays", json={"build": U01}).json()["id"]
    _aside(_replay(database.app, run))
    return incident


@pytest.fixture
def visitor(browser: Browser, house: House) -> Iterator[Page]:
    """A fresh browser; whatever breaks on a page fails the test."""
    context = browser.new_context(base_url=house.base)
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    yield page
    context.close()
    assert troubles == []


def log_in(page: Page, name: str) -> None:
    """Press *Log in*, and say at the provider who one is."""
    page.get_by_role("link", name="Log in").click()
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Sign in").click()


def both_themes(page: Page) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        accessible(page)


def test_in_by_the_provider_and_out_again(visitor: Page, house: House) -> None:
    page = visitor
    page.goto(f"/incidents/{house.incident}?x=1")
    expect(page.get_by_role("alert")).to_contain_text("Log in first")
    both_themes(page)
    log_in(page, "ann+admins")
    expect(page).to_have_url(f"{house.base}/incidents/{house.incident}?x=1")  # where one wanted to go
    expect(page.get_by_role("navigation", name="Main")).to_contain_text("Audit")
    expect(page.locator("header")).to_contain_text("ann of the tests")
    page.get_by_role("link", name="Audit").click()
    expect(page.get_by_role("table")).to_contain_text("session.opened")
    page.get_by_label("What", exact=True).select_option("incident.imported")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    both_themes(page)
    page.get_by_role("button", name="leave").click()
    page.get_by_role("button", name="Log out of the provider").click()  # the console's page goes on to it
    expect(page).to_have_url(re.compile(f"^{re.escape(house.base)}/enter"))
    page.goto("/")
    expect(page.get_by_role("link", name="Log in")).to_be_visible()
    page.get_by_role("link", name="Log in").click()
    expect(page.get_by_label("Name")).to_be_visible()  # the provider's session has ended as well


def test_pages_of_a_viewer_follow_a_run_by_themselves(visitor: Page, house: House) -> None:
    page = visitor
    asked: list[Run] = []

    async def ask() -> None:
        store = Store(house.database.app)
        async with store.write() as session:
            incident = await service.get_incident(session, house.incident)
            asked.append(await service.request_replay(session, incident, U01, who="tests", known=[U01]))
        await store.close()

    for place in ("", "/runs/{number}"):
        _aside(ask())
        run = asked[-1]
        page.goto(f"/incidents/{house.incident}{place.format(number=run.number)}")
        if len(asked) == 1:
            log_in(page, "vic+viewers")
        badge = page.locator(".title .badge, main tbody tr:first-child .badge").first
        expect(badge).to_contain_text("queued")
        expect(page.locator("[sse-connect]")).to_have_count(1)
        both_themes(page)
        page.evaluate("window.loadedOnce = true")
        _aside(_replay(house.database.app, run.id))
        expect(badge).to_contain_text("diverged", timeout=20_000)
        expect(page.locator("[sse-connect]")).to_have_count(0)
        expect(page.locator("main")).not_to_contain_text("991000")
        assert page.evaluate("window.loadedOnce"), "it was drawn anew, not loaded anew"


def test_a_token_is_made_copied_and_ended(visitor: Page, house: House) -> None:
    page = visitor
    page.goto("/tokens")
    log_in(page, "ann+admins")
    expect(page.get_by_role("button", name="Make the token")).to_be_visible()
    both_themes(page)
    page.get_by_label("Which script holds it").fill("nightly")
    page.get_by_label("all, and those to come").check()
    page.get_by_role("button", name="Make the token").click()
    token = page.locator("#token").inner_text()
    both_themes(page)
    with httpx.Client(base_url=house.base, headers={"Authorization": f"Bearer {token}"}, timeout=30) as api:
        assert api.get("/api/v1/incidents").status_code == 200
        page.get_by_role("link", name="All tokens").click()
        page.get_by_role("button", name="End the token nightly").click()
        expect(page.get_by_role("button", name="End the token nightly")).to_have_count(0)
        assert api.get("/api/v1/incidents").status_code == 401


def test_a_viewer_sees_shapes_and_no_more(visitor: Page, house: House) -> None:
    page = visitor
    page.goto("/")
    log_in(page, "vic+viewers")
    expect(page.locator("body")).not_to_contain_text("991000")
    both_themes(page)
    for absent in ("Audit", "Tokens", "Import", "Shares", "Activations"):
        expect(page.get_by_role("link", name=absent, exact=True)).to_have_count(0)
    page.goto(f"/incidents/{house.incident}")
    expect(page.locator("#redaction")).to_have_text("●redacted")
    both_themes(page)
    page.get_by_role("link", name="run 1").click()
    expect(page.locator("#redaction")).to_have_text("●redacted")
    expect(page.locator("body")).not_to_contain_text("hold_txn")
    both_themes(page)
    page.locator("a[href*='/events/']").first.click()
    expect(page.locator("#fields")).to_be_visible()
    both_themes(page)
    answer = page.goto("/audit")
    assert answer is not None
    assert answer.status == 403
    expect(page.locator("main")).to_contain_text("Your role does not let you read the audit trail")
    both_themes(page)


def test_a_viewer_sees_recorded_runs_as_shapes(visitor: Page, house: House) -> None:
    bring_in(house.database.app, LOGS / NAMES[2])
    page = visitor
    page.goto("/")
    log_in(page, "vic+viewers")
    page.get_by_role("link", name="Event logs", exact=True).click()
    expect(page.locator("#runs")).to_have_text("3 runs")
    expect(page.get_by_role("button", name="Import")).to_have_count(0)
    both_themes(page)
    page.get_by_label("problem").select_option("tool_call_failed")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#runs")).to_have_text("1 run")
    page.get_by_role("link", name=re.compile(r"^run \d+$")).click()
    expect(page.locator("#redaction")).to_have_text("●redacted")
    expect(page.locator(".causes")).to_contain_text("tool_call_failed")
    expect(page.locator("body")).not_to_contain_text("payment gateway said no")
    both_themes(page)
    page.get_by_role("link", name="Open event 0").click()
    expect(page.locator("#fields")).to_be_visible()
    expect(page.locator("body")).not_to_contain_text("refund order-2")
    both_themes(page)


def test_who_has_no_role_stays_outside_and_reads_why(visitor: Page) -> None:
    visitor.goto("/")
    log_in(visitor, "mallory+others")
    expect(visitor.locator("main")).to_contain_text("no rule gives you a role")
    both_themes(visitor)
    visitor.goto("/")
    expect(visitor.get_by_role("link", name="Log in")).to_be_visible()


def test_a_session_ends_by_the_clock(visitor: Page, house: House) -> None:
    visitor.goto("/")
    log_in(visitor, "ann+admins")
    expect(visitor.get_by_role("table")).to_be_visible()
    with psycopg.connect(house.database.owner, autocommit=True) as connection:
        connection.execute("UPDATE sessions SET expires_at = clock_timestamp() WHERE person = 'ann+admins'")
    visitor.reload()
    expect(visitor.get_by_role("alert")).to_contain_text("Log in first")


def test_another_site_cannot_use_a_session(visitor: Page, house: House) -> None:
    """The cookie does not travel with forms of other sites, and would not suffice."""
    page = visitor
    page.goto("/tokens")
    log_in(page, "ann+admins")
    expect(page.get_by_role("button", name="Make the token")).to_be_visible()
    without = page.evaluate(
        "fetch('/leave', {method: 'POST', body: new URLSearchParams({csrf: '0'})}).then(r => r.status)"
    )
    assert without == 403
    page.goto(f"{house.issuer}/.well-known/openid-configuration")  # any page of another origin
    page.set_content(f'<form method="post" action="{house.base}/leave"><button>Win a prize</button></form>')
    with page.expect_navigation() as moved:
        page.get_by_role("button", name="Win a prize").click()
    assert moved.value.status in (401, 403)
    page.goto("/")
    expect(page.get_by_role("navigation", name="Main")).to_contain_text("Audit")  # still there
