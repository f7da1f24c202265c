"""Nobody without the token sees anything; nobody else's page can act with somebody's cookie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from app.incidents.service import Store
from app.settings import Settings
from app.web.access import SAFE_METHODS, Permission
from app.web.app import create_app
from app.web.gate import OPEN_PATHS, PROBES, SECURITY_HEADERS, SHARED_PREFIX
from app.web.keeper import SESSION_S, Keeper
from tests.web.conftest import HOME, TOKEN, Browser, client


def routes(app: FastAPI) -> list[APIRoute]:
    return list(_walk(app.routes))


def _walk(found: Any) -> Iterator[APIRoute]:
    for route in found:
        if isinstance(route, APIRoute):
            yield route
        else:  # an included router; anything else has no permission and fails here
            yield from _walk(route.original_router.routes)


def permissions(dependant: Dependant) -> Iterator[Permission]:
    for dependency in dependant.dependencies:
        declared = getattr(dependency.call, "permission", None)
        if isinstance(declared, Permission):
            yield declared
        yield from permissions(dependency)


def address(route: APIRoute) -> str:
    return re.sub(r"\{[^}]+\}", "1", route.path)


async def test_every_route_declares_one_permission(app: FastAPI) -> None:
    found = {(route.path, *sorted(route.methods)): list(permissions(route.dependant)) for route in routes(app)}
    assert len(found) > 25
    assert {where: declared for where, declared in found.items() if len(declared) != 1} == {}


async def test_only_the_door_and_static_files_are_public(app: FastAPI) -> None:
    public = {route.path for route in routes(app) if Permission.PUBLIC in permissions(route.dependant)}
    assert public == {"/enter", "/login", "/login/callback", "/static/{name:path}", "/healthz", "/readyz"}


async def test_without_the_token_nothing_is_served(app: FastAPI, stranger: httpx.AsyncClient) -> None:
    places = [(method, address(route)) for route in routes(app) for method in route.methods]
    places += [("GET", path) for path in ("/nothing", "/openapi.json", "/docs", "/static/hindcast.js", "//", "/..")]
    places += [("GET", "/api/v1/openapi.json"), ("OPTIONS", "/"), ("PUT", "/api/v1/incidents")]
    served = {
        (method, path)
        for method, path in places
        if path not in OPEN_PATHS | PROBES and not path.startswith(SHARED_PREFIX)
        if (await stranger.request(method, path)).status_code != 401
    }
    assert served == set()
    links = {path for _, path in places if path.startswith(SHARED_PREFIX)}
    assert len(links) == 6
    assert {(await stranger.get(path)).status_code for path in links} == {404}  # no such link


async def test_strangers_get_what_draws_the_door_and_no_more(stranger: httpx.AsyncClient) -> None:
    for path in OPEN_PATHS - {"/enter", "/login", "/login/callback"}:
        assert (await stranger.get(path)).status_code == 200
    assert (await stranger.get("/static/../app/settings/base.py")).status_code == 401
    door = await stranger.get("/enter")
    assert door.status_code == 401
    assert "<script" not in door.text


async def test_a_refusal_is_json_for_scripts_and_a_page_for_people(stranger: httpx.AsyncClient) -> None:
    script = await stranger.get("/api/v1/incidents")
    assert script.headers["content-type"] == "application/problem+json"
    assert script.headers["www-authenticate"] == "Bearer"
    assert set(script.json()) >= {"what", "expected", "remedy", "status", "title"}
    person = await stranger.get("/")
    assert "paste the token" in person.text


async def test_the_printed_address_turns_into_a_cookie(app: FastAPI, stranger: httpx.AsyncClient) -> None:
    answer = await stranger.get("/enter", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Path=/" in cookie
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    assert (await stranger.get("/")).status_code == 200


async def test_the_cookie_is_secure_over_https(app: FastAPI) -> None:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as one:
        assert "Secure" in (await one.get("/enter", params={"token": TOKEN})).headers["set-cookie"]


@pytest.mark.parametrize("offered", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é", "\0"])
async def test_a_wrong_token_opens_nothing(stranger: httpx.AsyncClient, offered: str) -> None:
    answer = await stranger.get("/enter", params={"token": offered})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    posted = await stranger.post("/enter", data={"token": offered}, headers={"Origin": HOME})
    assert posted.status_code == 401


async def test_the_token_can_be_pasted(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.post("/enter", data={"token": f" {TOKEN}\n"}, headers={"Origin": HOME})
    assert answer.status_code == 303
    assert (await stranger.get("/builds")).status_code == 200


async def test_scripts_send_a_bearer(app: FastAPI, person: Browser) -> None:
    async with client(app) as one:
        for sent, status in ((f"Bearer {TOKEN}", 200), (f"bearer  {TOKEN}", 200), ("Bearer x", 401), (TOKEN, 401)):
            answer = await one.get("/api/v1/incidents", headers={"Authorization": sent})
            assert (sent, answer.status_code) == (sent, status)
    # Who offers a token is judged by it, whatever cookie comes along.
    assert (await person.http.get("/", headers={"Authorization": "Bearer x"})).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:9999", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:8700", 200),
        ("[::1]:8700", 200),
        ("evil.test", 400),
        ("localhost.evil.test", 400),
        ("evil.test:8700", 400),
        ("", 400),
        ("<script>", 400),
    ],
)
async def test_only_known_hosts_are_answered(api: httpx.AsyncClient, host: str, status: int) -> None:
    answer = await api.get("/api/v1/incidents", headers={"Host": host})
    assert answer.status_code == status
    if status == 400:
        assert answer.headers["content-type"].startswith("text/plain")
        assert "allowed_hosts" in answer.text


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.test", "http://localhost:8701", "https://localhost", "file://localhost:8700"]
)
async def test_forms_come_from_our_own_pages(person: Browser, origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    answer = await person.http.post("/leave", data={"csrf": person.csrf}, headers=headers)
    assert answer.status_code == 403


async def test_a_proxy_may_end_tls(person: Browser) -> None:
    answer = await person.http.post("/leave", data={"csrf": person.csrf}, headers={"Origin": "https://localhost:8700"})
    assert answer.status_code == 303


async def test_every_unsafe_route_asks_for_the_csrf_token(app: FastAPI, person: Browser) -> None:
    unsafe = [(method, route) for route in routes(app) for method in route.methods if method not in SAFE_METHODS]
    assert len(unsafe) >= 7
    for method, route in unsafe:
        if Permission.PUBLIC in permissions(route.dependant):
            continue
        for sent in ({}, {"csrf": ""}, {"csrf": "0" * 64}):
            answer = await person.http.request(method, address(route), data=sent, headers={"Origin": HOME})
            assert (route.path, answer.status_code) == (route.path, 415 if not sent else 403)
        wrong = {"Origin": HOME, "X-CSRF-Token": "0" * 64}
        assert (await person.http.request(method, address(route), headers=wrong)).status_code == 403


async def test_the_csrf_token_belongs_to_one_session(app: FastAPI, person: Browser) -> None:
    async with client(app) as http:
        other = Browser(http)
        await other.enter()
        assert other.csrf != person.csrf
        sent = await http.post("/leave", data={"csrf": person.csrf}, headers={"Origin": HOME})
        assert sent.status_code == 403


async def test_a_header_may_carry_the_csrf_token(person: Browser) -> None:
    headers = {"Origin": HOME, "X-CSRF-Token": person.csrf, "Content-Type": "application/json"}
    answer = await person.http.post("/api/v1/incidents/inc_x/replays", json={"build": "x"}, headers=headers)
    assert answer.status_code == 404


async def test_leaving_ends_the_session_in_this_browser(person: Browser) -> None:
    assert (await person.post("/leave")).status_code == 303
    assert (await person.get("/")).status_code == 401


def test_sessions_end_in_time_and_cannot_be_made_up() -> None:
    keeper = Keeper(TOKEN)
    cookie = keeper.open_session(now_s=1_000_000)
    for age, alive in ((0, True), (SESSION_S - 1, True), (SESSION_S + 1, False), (-3600, False)):
        assert (keeper.principal(cookie, now_s=1_000_000 + age) is not None) == alive
    for forged in ("", ".", "..", "x.y.z", cookie[:-1], cookie + "0", cookie.replace("1", "2", 1), "é.é.é"):
        assert keeper.principal(forged, now_s=1_000_000) is None
    assert Keeper("another-token-entirely").principal(cookie, now_s=1_000_000) is None


def test_consoles_on_one_machine_do_not_share_a_cookie() -> None:
    assert Keeper("one-token-of-many").cookie != Keeper("another-of-the-many").cookie
    with pytest.raises(ValueError, match="HINDCAST_TOKEN"):
        Keeper("")


async def test_every_answer_carries_the_security_headers(api: httpx.AsyncClient, stranger: httpx.AsyncClient) -> None:
    answers = [await api.get(path) for path in ("/", "/nothing", "/static/hindcast.css", "/api/v1/incidents/x")]
    answers += [await stranger.get("/"), await api.get("/", headers={"Host": "evil.test"})]
    for answer in answers:
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value
        assert "no-store" in answer.headers["cache-control"] or answer.request.url.path.startswith("/static/")
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


async def test_a_fault_of_ours_says_so_and_shows_nothing_of_the_inside(settings: Settings) -> None:
    gone = Store("postgresql://nobody@127.0.0.1:1/gone")
    app = create_app(settings, gone)
    async with client(app, Authorization=f"Bearer {TOKEN}") as one:
        script, person = await one.get("/api/v1/incidents"), await one.get("/")
    await gone.close()
    for answer in (script, person):
        assert answer.status_code == 500
        assert answer.headers["content-security-policy"]
        assert "psycopg" not in answer.text
        assert "nobody" not in answer.text
    assert re.search(r"report [0-9a-f]{8}", script.json()["what"])
