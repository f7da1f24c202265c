"""A proxy in front that says who somebody is: believed where it is configured, and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers

from app.incidents.audit_trail import AuditFilter, read_trail
from app.incidents.roles import Role
from app.incidents.service import Store
from app.incidents.tokens import create_token
from app.web.app import create_app
from app.web.peers import Proxies
from tests.fixtures.postgres import Database
from tests.web.conftest import HOME
from tests.web.roles import GROUPS, OWN, USER, person, settings

KEEPER = f"admin-{OWN}"


@pytest.fixture
async def app(tmp_path: Path, database: Database, store: Store) -> AsyncIterator[FastAPI]:
    more = '[access.proxy]\nlogout_url = "https://sso.example.org/logout"\n'
    made = create_app(settings(tmp_path, database, more), store)
    async with made.router.lifespan_context(made):
        yield made


def raw(app: FastAPI, *headers: tuple[str, str], peer: str = "127.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, client=(peer, 1))
    return httpx.AsyncClient(transport=transport, base_url=HOME, headers=list(headers))


async def test_the_headers_of_the_proxy_are_believed(app: FastAPI, store: Store) -> None:
    async with person(app, "ann", "others", KEEPER) as http:
        page = await http.get("/")
        assert page.status_code == 200
        assert '<span title="ann">ann</span>' in page.text
        assert (await http.get("/audit")).status_code == 200
    headers: list[tuple[bytes, bytes]] = [(USER.encode(), "jürgen".encode()), (GROUPS.encode(), KEEPER.encode())]
    async with raw(app) as http:
        assert "jürgen" in (await http.get("/", headers=headers)).text
    async with store.read() as session:
        entries = (await read_trail(session, AuditFilter(what="session.opened"))).entries
    assert [(one.who, one.detail["groups"]) for one in entries] == [("jürgen", [KEEPER]), ("ann", ["others", KEEPER])]


async def test_from_anywhere_else_they_are_refused_and_the_log_says_why(
    app: FastAPI, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for peer in ("10.0.0.9", "::1", "127.0.0.2"):
        async with person(app, "ann", KEEPER, peer=peer) as http:
            for place in ("/", "/api/v1/incidents", "/enter", "/static/hindcast.css"):
                answer = await http.get(place)
                assert (answer.status_code, peer, place) == (403, peer, place)
            assert "does not come from the proxy" in answer.text
        assert f"refused a request from {peer} with the header {USER}: it is not one of console.proxies" in caplog.text
    async with store.read() as session:
        entries = (await read_trail(session, AuditFilter(what="session.refused"))).entries
    assert {(one.who, one.subject) for one in entries} == {("stranger", "proxy header")}
    assert {one.origin for one in entries} == {"10.0.0.9", "::1", "127.0.0.2"}
    async with raw(app, (GROUPS, KEEPER), peer="10.0.0.9") as http:  # half of it is no better
        assert (await http.get("/")).status_code == 403
    async with raw(app, peer="10.0.0.9") as http:
        assert (await http.get("/")).status_code == 401


async def test_who_the_proxy_names_twice_or_not_at_all_is_nobody(app: FastAPI) -> None:
    async with raw(app, (GROUPS, KEEPER)) as http:
        door = await http.get("/")
        assert door.status_code == 401
        assert "Use the address of the proxy" in door.text
        assert 'name="token"' not in door.text
    for users in (("ann", "root"), ("",), (" ",), ("operator",), ("x" * 201,), ("token ci (tok_1)",)):
        async with raw(app, *((USER, user) for user in users), (GROUPS, KEEPER)) as http:
            assert (users, (await http.get("/")).status_code) == (users, 400)


async def test_a_link_needs_nobody(app: FastAPI) -> None:
    async with raw(app, (USER, "ann"), peer="10.0.0.9") as http:
        assert (await http.get("/s/" + "x" * 32)).status_code == 404


async def test_forms_need_the_token_of_the_same_person(app: FastAPI) -> None:
    async with person(app, "ann", KEEPER) as http:
        http.headers["X-CSRF-Token"] = app.state.keys.csrf("proxy bob")
        assert (await http.post("/leave")).status_code == 403
        http.headers["X-CSRF-Token"] = app.state.keys.csrf("proxy ann")
        http.headers["Origin"] = "https://evil.example.org"
        assert (await http.post("/leave")).status_code == 403
        http.headers["Origin"] = HOME
        left = await http.post("/leave")
        assert (left.status_code, left.headers["refresh"]) == (200, "1; url=https://sso.example.org/logout")


async def test_scripts_come_with_tokens_from_anywhere(app: FastAPI, store: Store) -> None:
    async with store.write() as session:
        _, token = await create_token(session, name="ci", role=Role.VIEWER, scopes=[OWN], who="root")
    bearer = ("Authorization", f"Bearer {token}")
    async with raw(app, bearer, peer="10.0.0.9") as http:
        assert (await http.get("/api/v1/incidents")).status_code == 200
    async with raw(app, bearer, (USER, "ann"), (GROUPS, KEEPER)) as http:  # who offers a token is judged by it
        assert (await http.get("/audit")).status_code == 403
    async with raw(app, ("Authorization", "Basic eDp5"), (USER, "ann"), (GROUPS, KEEPER)) as http:
        assert (await http.get("/audit")).status_code == 200  # what the proxy itself asked for is not ours
    async with raw(app, ("Authorization", "Basic eDp5"), peer="10.0.0.9") as http:
        assert (await http.get("/")).status_code == 401


async def test_what_is_gone_is_told_to_who_could_have_seen_it(app: FastAPI, database: Database) -> None:
    with psycopg.connect(database.owner, autocommit=True) as connection:
        for ident, pipeline in (("inc_own", f'"{OWN}"'), ("inc_foreign", '"fraud"'), ("inc_files", "null")):
            connection.execute(
                "INSERT INTO tombstones (who, what, subject, reason, detail)"
                " VALUES ('x', 'purged', %s, 'an old matter', %s)",
                (ident, f'{{"pipeline": {pipeline}}}'),
            )
    async with person(app, "ann", KEEPER) as http:
        answers = {ident: await http.get(f"/incidents/{ident}") for ident in ("inc_own", "inc_foreign", "inc_files")}
    assert {ident: answer.status_code for ident, answer in answers.items()} == {
        "inc_own": 410, "inc_foreign": 404, "inc_files": 404,
    }  # fmt: skip
    assert "an old matter" in answers["inc_own"].text
    assert "an old matter" not in answers["inc_foreign"].text


async def test_the_trail_holds_the_address_that_the_proxy_names(app: FastAPI, store: Store) -> None:
    async with person(app, "ann", KEEPER) as http:
        http.headers["X-Forwarded-For"] = "203.0.113.9, 198.51.100.7"
        await http.get("/incidents/inc_x/bundle.zip")
        await http.get("/import")
    async with store.read() as session:
        entries = (await read_trail(session, AuditFilter(what="request.refused"))).entries
    assert [one.origin for one in entries] == ["198.51.100.7"]


@pytest.mark.parametrize(
    ("peer", "told", "origin"),
    [
        ("10.1.2.3", ["203.0.113.9"], "203.0.113.9"),
        ("10.1.2.3", ["1.1.1.1, 203.0.113.9, 10.9.9.9"], "203.0.113.9"),  # two proxies of ours in a row
        ("10.1.2.3", ["1.1.1.1", "203.0.113.9"], "203.0.113.9"),
        ("10.1.2.3", ["1.1.1.1, nonsense"], "10.1.2.3"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("::ffff:10.1.2.3", ["203.0.113.9"], "203.0.113.9"),
        ("2001:db8::1", ["2001:db8:1::9"], "2001:db8:1::9"),
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),  # no proxy of ours
    ],
)
def test_where_a_request_comes_from(peer: str, told: list[str], origin: str) -> None:
    proxies = Proxies(["10.0.0.0/8", "2001:db8::1"])
    scope = {"type": "http", "client": (peer, 1), "scheme": "http"}
    headers = Headers(raw=[(b"x-forwarded-for", one.encode()) for one in told] + [(b"x-forwarded-proto", b"https")])
    believed = proxies.place(scope, headers)
    assert (scope["client"][0], scope["scheme"]) == (origin, "https" if believed else "http")  # type: ignore[index]


def test_nothing_is_logged_of_who_is_believed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    Proxies(["10.0.0.0/8"]).holds("not an address")
    assert caplog.text == ""
