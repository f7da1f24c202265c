"""Logging in at a real, certified provider: who gets in with which role, and who does not; rows 21, 23"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import update

from app.incidents.access_models import Session
from app.incidents.audit_trail import AuditFilter, read_trail
from app.incidents.models import NOW
from app.incidents.service import Store
from app.settings import Settings, load
from app.web.app import create_app
from app.web.login import safe_path
from app.web.oidc import Provider, ProviderError
from tests.fixtures.postgres import Database
from tests.fixtures.provider import CLIENT, SECRET
from tests.waiting import PATIENCE_S
from tests.web.conftest import HOME, client

SESSION, LOGIN = "hindcast_session", "hindcast_login"
RULES = """
[[access.roles]]
role = "viewer"
groups = ["lookers"]
pipelines = ["*"]
[[access.roles]]
role = "admin"
groups = ["keepers"]
users = ["root"]
pipelines = ["*"]
"""


def configured(folder: Path, database: Database, issuer: str, more: str = "", url: str = HOME) -> Settings:
    file = folder / "hindcast.toml"
    head = f'[console]\nurl = "{url}"\n[access]\nmode = "oidc"\n[access.oidc]\nissuer = "{issuer}"\n'
    file.write_text(head + (more or PRIVATE) + RULES)
    environment = {"HINDCAST_DATABASE_URL": database.app, "HINDCAST_HOME": str(folder)}
    made = load(file, environment)
    made.check_access()
    return made


PRIVATE = f'client_id = "{CLIENT}"\nclient_secret = {{ env = "HINDCAST_TEST_SECRET" }}\n'
PUBLIC = 'client_id = "hindcast-public"\nuser_claim = "email"\n'


@pytest.fixture
async def app(
    tmp_path: Path, database: Database, store: Store, issuer: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FastAPI]:
    monkeypatch.setenv("HINDCAST_TEST_SECRET", SECRET)
    made = create_app(configured(tmp_path, database, issuer), store)
    async with made.router.lifespan_context(made):
        yield made


class Visitor:
    """Somebody's browser: one jar for the console, one for the provider."""

    def __init__(self, app: FastAPI) -> None:
        self.console = client(app)
        self.provider = httpx.AsyncClient(timeout=PATIENCE_S)

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.console.aclose()
        await self.provider.aclose()

    async def start(self, wanted: str = "/") -> str:
        """Press *Log in*; returns where the console sends one."""
        answer = await self.console.get("/login", params={"next": wanted})
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]

    async def sign_in(self, address: str, name: str) -> str:
        """Say at the provider who one is; returns the address that it sends one back to."""
        answer = await self.provider.get(address)
        for _ in range(10):
            if answer.is_redirect:
                address = str(answer.url.join(answer.headers["location"]))
                if address.startswith(HOME):
                    return address.removeprefix(HOME)
                answer = await self.provider.get(address)
            else:
                answer = await self.provider.post(answer.url, data={"login": name})
        raise AssertionError(f"the provider does not send back: {answer.text}")

    async def log_in(self, name: str, wanted: str = "/") -> httpx.Response:
        return await self.console.get(await self.sign_in(await self.start(wanted), name))

    def cookie(self) -> str | None:
        return self.console.cookies.get(SESSION)


@pytest.fixture
async def visitor(app: FastAPI) -> AsyncIterator[Visitor]:
    async with Visitor(app) as one:
        yield one


async def told(store: Store, what: str) -> list[tuple[str, dict[str, Any]]]:
    async with store.read() as session:
        return [(one.who, one.detail) for one in (await read_trail(session, AuditFilter(what=what))).entries]


async def test_a_login_asks_with_everything_that_protects_it(visitor: Visitor, issuer: str) -> None:
    address = await visitor.start()
    assert address.startswith(f"{issuer}/")
    query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    assert (query["response_type"], query["client_id"], query["redirect_uri"]) == (
        "code", CLIENT, f"{HOME}/login/callback",
    )  # fmt: skip
    assert query["code_challenge_method"] == "S256"
    assert all(len(query[name]) >= 20 for name in ("state", "nonce", "code_challenge"))
    again = parse_qs(urlsplit(await visitor.start()).query)
    assert all(again[name][0] != query[name] for name in ("state", "nonce", "code_challenge"))


async def test_somebody_logs_in_with_the_role_of_their_group(visitor: Visitor, store: Store) -> None:
    door = await visitor.console.get("/activations?key=x")
    assert door.status_code == 401
    assert 'href="/login?next=%2Factivations%3Fkey%3Dx"' in door.text
    assert 'name="token"' not in door.text
    answer = await visitor.log_in("ann+keepers+others", "/activations?key=x")
    assert (answer.status_code, answer.headers["location"]) == (303, "/activations?key=x")
    session, login = answer.headers.get_list("set-cookie")
    assert session.startswith(f"{SESSION}=")
    assert all(part in session for part in ("HttpOnly", "SameSite=lax", "Path=/", "Max-Age=43200"))
    assert "Max-Age=0" in login  # what the log-in needed is gone
    page = await visitor.console.get("/")
    assert page.status_code == 200
    assert "ann of the tests" in page.text
    assert 'href="/audit"' in page.text
    assert await told(store, "session.opened") == [
        ("ann+keepers+others", {"shown_as": "ann of the tests", "groups": ["keepers", "others"]})
    ]


async def test_a_viewer_gets_no_further(visitor: Visitor) -> None:
    await visitor.log_in("vic+lookers")
    assert (await visitor.console.get("/")).status_code == 200
    for place in ("/audit", "/tokens", "/import", "/activations", "/shares"):
        assert ((await visitor.console.get(place)).status_code, place) == (403, place)


async def test_a_rule_may_name_a_person(visitor: Visitor) -> None:
    await visitor.log_in("root")
    assert (await visitor.console.get("/audit")).status_code == 200


async def test_who_has_no_role_is_refused_and_told_why(visitor: Visitor, store: Store) -> None:
    answer = await visitor.log_in("mallory+others")
    assert answer.status_code == 403
    assert "no rule gives you a role" in answer.text
    assert visitor.cookie() is None
    assert (await visitor.console.get("/")).status_code == 401
    assert await told(store, "session.refused") == [
        ("mallory+others", {"why": "no rule gives you a role", "groups": ["others"]})
    ]


async def test_nobody_takes_a_name_of_ours(app: FastAPI) -> None:
    for name in ("operator", "token ci (tok_1)", "share shr_1", "command line: root", "a\nb"):
        async with Visitor(app) as visitor:
            answer = await visitor.log_in(f"{name}")
            assert (name, answer.status_code) == (name, 403)
            assert visitor.cookie() is None


async def test_whom_the_provider_refuses_stays_outside(visitor: Visitor) -> None:
    answer = await visitor.log_in("nobody")
    assert answer.status_code == 401
    assert "The log-in failed" in answer.text


async def test_a_public_client_and_another_claim(tmp_path: Path, database: Database, store: Store, issuer: str) -> None:
    app = create_app(configured(tmp_path, database, issuer, PUBLIC), store)
    async with app.router.lifespan_context(app), Visitor(app) as visitor:
        assert (await visitor.log_in("ann+keepers")).status_code == 303
        assert [who for who, _ in await told(store, "session.opened")] == ["ann@example.org"]
    async with Visitor(app) as visitor:  # the provider does not vouch for this address
        assert (await visitor.log_in("unverified+keepers")).status_code == 401


async def test_a_callback_belongs_to_the_browser_that_began(app: FastAPI, visitor: Visitor) -> None:
    """Nobody can be made to go on in somebody else's session, nor an answer be used twice."""
    back = await visitor.sign_in(await visitor.start(), "ann+keepers")
    async with Visitor(app) as victim:
        assert (await victim.console.get(back)).status_code == 401
        await victim.start()  # with a log-in of their own under way it is another state
        assert (await victim.console.get(back)).status_code == 401
        assert victim.cookie() is None
    assert (await visitor.console.get(back)).status_code == 303
    assert (await visitor.console.get(back)).status_code == 401


async def test_an_answer_that_was_changed_opens_nothing(app: FastAPI) -> None:
    changes = {"state=": "state=x", "code=": "code=x", "iss=http": "iss=https", "callback?": "callback?error=x&"}
    for old, new in changes.items():
        async with Visitor(app) as visitor:
            back = await visitor.sign_in(await visitor.start(), "ann+keepers")
            assert old in back
            assert ((await visitor.console.get(back.replace(old, new, 1))).status_code, new) == (401, new)
            assert visitor.cookie() is None


async def test_a_changed_login_cookie_is_none(app: FastAPI, visitor: Visitor) -> None:
    back = await visitor.sign_in(await visitor.start(), "ann+keepers")
    kept = visitor.console.cookies[LOGIN]
    body, _, signature = kept.rpartition(".")
    for forged in (f"{body}x.{signature}", f"{body}.{signature[:-1]}", "", ".", f"{body}."):
        async with client(app, Cookie=f"{LOGIN}={forged}") as http:
            assert (await http.get(back)).status_code == 401


async def test_each_login_is_a_fresh_session_and_ends_the_one_before(app: FastAPI, visitor: Visitor) -> None:
    """Fixation: a cookie that was there before the log-in is worth nothing after it."""
    await visitor.log_in("vic+lookers")
    first = visitor.cookie()
    await visitor.log_in("vic+lookers")
    assert visitor.cookie() != first
    async with client(app, Cookie=f"{SESSION}={first}") as http:
        assert (await http.get("/")).status_code == 401


async def test_made_up_sessions_open_nothing(app: FastAPI) -> None:
    for cookie in ("", "x", "x.y", "a" * 43 + "." + "0" * 64, "é"):
        async with client(app) as http:
            answer = await http.get("/", headers=[(b"cookie", f"{SESSION}={cookie}".encode("latin-1"))])
            assert (cookie, answer.status_code) == (cookie, 401)


async def test_a_session_ends_by_the_clock(app: FastAPI, visitor: Visitor, store: Store) -> None:
    await visitor.log_in("ann+keepers")
    assert (await visitor.console.get("/")).status_code == 200
    async with store.write() as session:
        await session.execute(update(Session).values(expires_at=NOW))
    assert (await visitor.console.get("/")).status_code == 401


async def test_leaving_ends_the_session_everywhere(app: FastAPI, visitor: Visitor, store: Store, issuer: str) -> None:
    await visitor.log_in("ann+keepers")
    cookie = visitor.cookie()
    page = (await visitor.console.get("/tokens")).text
    csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
    for sent in ({}, {"csrf": "0" * 64}):
        refused = await visitor.console.post("/leave", data={"x": "", **sent}, headers={"Origin": HOME})
        assert refused.status_code == 403
    left = await visitor.console.post("/leave", data={"csrf": csrf}, headers={"Origin": HOME})
    assert left.status_code == 200
    onward = left.headers["refresh"].partition("url=")[2]
    assert onward.startswith(f"{issuer}/session/end?")
    query = parse_qs(urlsplit(onward).query)
    assert query["post_logout_redirect_uri"] == [f"{HOME}/enter"]
    assert query["id_token_hint"]
    assert (await visitor.provider.get(onward)).status_code == 200
    async with client(app, Cookie=f"{SESSION}={cookie}") as http:  # the cookie, had somebody kept it
        assert (await http.get("/")).status_code == 401
    assert [who for who, _ in await told(store, "session.ended")] == ["ann+keepers"]


async def test_the_start_up_token_opens_nothing_here(app: FastAPI, visitor: Visitor) -> None:
    token = app.state.settings.token
    assert (await visitor.console.get("/enter", params={"token": token})).status_code == 401
    posted = await visitor.console.post("/enter", data={"token": token}, headers={"Origin": HOME})
    assert posted.status_code == 404
    bearer = {"Authorization": f"Bearer {token}"}
    assert (await visitor.console.get("/api/v1/incidents", headers=bearer)).status_code == 401


async def test_no_secret_of_a_login_is_logged(visitor: Visitor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    back = await visitor.sign_in(await visitor.start(), "ann+keepers")
    code = parse_qs(urlsplit(back).query)["code"][0]
    caplog.clear()
    await visitor.console.get(back)
    cookie = visitor.cookie()
    assert cookie is not None
    lines = [line for line in caplog.text.splitlines() if "httpx" not in line]  # the test's own client
    assert [line for line in lines if code in line or SECRET in line or cookie[:43] in line] == []


async def test_https_makes_cookies_that_no_neighbour_can_set(
    tmp_path: Path, database: Database, store: Store, issuer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_TEST_SECRET", SECRET)
    app = create_app(configured(tmp_path, database, issuer, url="https://hindcast.example.org"), store)
    async with app.router.lifespan_context(app), client(app, Host="hindcast.example.org") as http:
        cookie = (await http.get("/login")).headers["set-cookie"]
        assert cookie.startswith("__Host-hindcast_login=")
        assert "Secure" in cookie
        assert "Domain" not in cookie


# The provider's document ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"issuer": "https://other.example.org"}, "is of another issuer"),
        ({"jwks_uri": "http://169.254.169.254/keys"}, "jwks_uri of https://id.example.org is no encrypted address"),
        ({"token_endpoint": "file:///etc/passwd"}, "token_endpoint of https://id.example.org is no encrypted address"),
        ({"token_endpoint": None}, "token_endpoint of https://id.example.org is no encrypted address: None"),
        ({"id_token_signing_alg_values_supported": ["none", "HS256"]}, "signs in no way that can be checked"),
    ],
)
async def test_a_provider_that_cannot_be_trusted_is_not_asked(changes: dict[str, Any], why: str) -> None:
    provider, asked = made_up(changes)
    with pytest.raises(ProviderError, match=why):
        await provider._client()
    assert asked == ["https://id.example.org/.well-known/openid-configuration"]


async def test_weak_signatures_are_left_out() -> None:
    provider, _ = made_up({"id_token_signing_alg_values_supported": ["none", "HS256", "ES256"]})
    used = (await provider._client()).server_metadata["id_token_signing_alg_values_supported"]
    assert used == ["ES256"]


async def test_a_redirect_of_the_document_is_not_followed() -> None:
    provider, asked = made_up({}, httpx.Response(302, headers={"Location": "http://169.254.169.254/"}))
    with pytest.raises(ProviderError, match="cannot be read: HTTPStatusError"):
        await provider._client()
    assert len(asked) == 1


def made_up(changes: dict[str, Any], answer: httpx.Response | None = None) -> tuple[Provider, list[str]]:
    """A provider whose document says these things, and the addresses that it was asked at."""
    base = "https://id.example.org"
    names = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")
    document = {"issuer": base, **{name: f"{base}/{name}" for name in names}, **changes}
    asked: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return answer or httpx.Response(200, text=json.dumps(document))

    from app.settings.access import Oidc

    provider = Provider(Oidc(issuer=base, client_id="x"), None, "https://console.example.org")
    made = provider._make()
    made.client_kwargs["transport"] = httpx.MockTransport(respond)
    provider._made = made
    return provider, asked


AFTERWARDS = [
    ("/incidents/inc_1?at=3", "/incidents/inc_1?at=3"),
    ("/", "/"),
    ("//evil.example.org", "/"),
    ("/\\evil.example.org", "/"),
    ("/\t/evil.example.org", "/"),
    ("https://evil.example.org", "/"),
    ("javascript:alert(1)", "/"),
    ("evil", "/"),
    ("", "/"),
    ("/login?next=/", "/"),
    ("/x\r\nSet-Cookie: a=b", "/"),
    ("/" + "x" * 600, "/"),
    (None, "/"),
    (["/a"], "/"),
]


def test_after_logging_in_one_stays_here() -> None:
    assert [(told, safe_path(told)) for told, _ in AFTERWARDS] == AFTERWARDS
