"""Tokens of scripts: shown once, held to a role and its pipelines, dead when their time is over; row 21"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import select, update

from app.incidents.access_models import ApiToken
from app.incidents.audit_trail import AuditFilter, read_trail
from app.incidents.models import NOW
from app.incidents.roles import Role
from app.incidents.service import Store
from app.incidents.tokens import create_token, is_stale
from app.web.app import create_app
from tests.commands.test_services import hindcast
from tests.fixtures.postgres import Database
from tests.web.conftest import client, within_a_minute
from tests.web.roles import FILES, FOREIGN, OWN, person, settings


@pytest.fixture
async def app(tmp_path: Path, database: Database, store: Store) -> AsyncIterator[FastAPI]:
    made = create_app(settings(tmp_path, database), store)
    async with made.router.lifespan_context(made):
        yield made


@pytest.fixture
async def admin(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with person(app, "ada", f"admin-{OWN}") as http:
        yield http


async def made(http: httpx.AsyncClient, **form: str | list[str]) -> str:
    told = {"name": "ci", "role": "viewer", "scope": [OWN], "days": "7"} | form
    answer = await http.post("/tokens", data=told)
    assert answer.status_code == 201, answer.text
    (token,) = set(re.findall(r"hct_[\w-]{43}", answer.text))
    return str(token)


async def test_a_token_is_shown_once_and_kept_as_a_hash(admin: httpx.AsyncClient, store: Store) -> None:
    token = await made(admin)
    async with store.read() as session:
        (row,) = await session.scalars(select(ApiToken))
        kept = repr(
            {name: getattr(row, name) for name in ("id", "name", "token_sha256", "role", "scopes", "created_by")}
        )
        trail = (await read_trail(session, AuditFilter(what="token.created"))).entries
    assert token not in kept
    assert token[4:] not in kept
    assert [(one.who, one.detail["name"], one.detail["scopes"]) for one in trail] == [("ada", "ci", [OWN])]
    assert token not in str(trail[0].detail)
    page = (await admin.get("/tokens")).text
    assert token not in page
    assert '<span class="dim">never</span>' in page
    assert row.id in page


async def test_it_opens_what_its_role_allows_and_says_when_it_was_used(
    app: FastAPI, admin: httpx.AsyncClient, store: Store
) -> None:
    token = await made(admin)
    async with client(app, Authorization=f"Bearer {token}") as http:
        assert (await http.get("/api/v1/incidents")).status_code == 200
        assert (await http.get("/api/v1/activations")).status_code == 403
        assert (await http.get("/audit")).status_code == 403
    async with store.read() as session:
        (row,) = await session.scalars(select(ApiToken))
    assert row.last_used_at is not None
    assert not is_stale(row, row.last_used_at + 59_000)
    assert is_stale(row, row.last_used_at + 60_000)
    assert '<span class="dim">never</span>' not in (await admin.get("/tokens")).text


async def test_one_that_was_ended_or_has_expired_opens_nothing(
    app: FastAPI, admin: httpx.AsyncClient, store: Store
) -> None:
    token = await made(admin)
    async with store.read() as session:
        (row,) = await session.scalars(select(ApiToken))
    async with client(app, Authorization=f"Bearer {token}") as http:
        assert (await http.get("/api/v1/incidents")).status_code == 200
        assert (await admin.post(f"/tokens/{row.id}/revoke")).status_code == 303
        assert (await http.get("/api/v1/incidents")).status_code == 401
    fresh = await made(admin, name="other")
    async with client(app, Authorization=f"Bearer {fresh}") as http:
        assert (await http.get("/api/v1/incidents")).status_code == 200
        async with store.write() as session:
            await session.execute(update(ApiToken).values(expires_at=NOW, created_at=0))
        assert (await http.get("/api/v1/incidents")).status_code == 401


async def test_a_token_reaches_no_further_than_who_makes_it(admin: httpx.AsyncClient) -> None:
    page = (await admin.get("/tokens")).text
    assert f'value="{OWN}"' in page
    assert not any(f'value="{scope}"' in page for scope in (FOREIGN, FILES, "*"))
    for scopes in ([FOREIGN], [OWN, FOREIGN], ["*"], [FILES], ["no-such"], []):
        answer = await admin.post("/tokens", data={"name": "x", "role": "viewer", "scope": scopes, "days": "7"})
        assert (scopes, answer.status_code) == (scopes, 422)
    for wrong in ({"role": "root"}, {"days": "100000"}, {"name": ""}, {"name": "x" * 81}, {"name": "a\nb"}):
        told = {"name": "x", "role": "viewer", "scope": [OWN], "days": "7"} | wrong
        assert (wrong, (await admin.post("/tokens", data=told)).status_code) == (wrong, 422)


async def test_a_token_makes_no_tokens(app: FastAPI, admin: httpx.AsyncClient, store: Store) -> None:
    """It would outlive its own end."""
    token = await made(admin, role="admin")
    async with store.read() as session:
        (row,) = await session.scalars(select(ApiToken))
    async with client(app, Authorization=f"Bearer {token}") as http:
        assert (await http.get("/audit")).status_code == 200
        assert (await http.get("/tokens")).status_code == 403
        assert (await http.post("/tokens", data={"name": "x"})).status_code == 403
        assert (await http.post(f"/tokens/{row.id}/revoke")).status_code == 403


async def test_tokens_of_others_pipelines_are_not_there(app: FastAPI, admin: httpx.AsyncClient, store: Store) -> None:
    async with store.write() as session:
        both, _ = await create_token(
            session, name="of-both-pipelines", role=Role.VIEWER, scopes=[OWN, FOREIGN], who="root"
        )
    assert "of-both-pipelines" not in (await admin.get("/tokens")).text
    assert (await admin.post(f"/tokens/{both.id}/revoke")).status_code == 404
    async with person(app, "root") as http:
        assert "of-both-pipelines" in (await http.get("/tokens")).text
        assert (await http.post(f"/tokens/{both.id}/revoke")).status_code == 303


async def test_a_form_without_its_csrf_token_makes_nothing(admin: httpx.AsyncClient, store: Store) -> None:
    admin.headers.pop("X-CSRF-Token")
    told = {"name": "x", "role": "viewer", "scope": [OWN], "days": "7"}
    assert (await admin.post("/tokens", data=told)).status_code == 403
    async with store.read() as session:
        assert list(await session.scalars(select(ApiToken))) == []


async def test_wrong_tokens_are_slowed_down(app: FastAPI) -> None:
    within_a_minute(app)
    async with client(app, Authorization="Bearer hct_" + "x" * 43) as http:
        answers = [(await http.get("/api/v1/incidents")).status_code for _ in range(22)]
    assert answers[:20] == [401] * 20
    assert answers[20:] == [429, 429]


def test_the_command_makes_lists_and_ends(tmp_path: Path, database: Database) -> None:
    url = {"HINDCAST_DATABASE_URL": database.app}
    create = ("token", "create", "--name", "nightly", "--role", "responder", "--pipeline", "files", "--days", "3")
    done = hindcast(tmp_path, *create, **url)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"hct_[\w-]{43}\n", done.stdout)  # alone, so that a script can take it
    ident = re.match(r"(tok_[\w-]+): responder in files until ", done.stderr)
    assert ident
    listed = hindcast(tmp_path, "token", "list", **url).stdout
    assert listed.startswith(f"{ident[1]}\tlive\tresponder\tfiles\tuntil ")
    assert done.stdout.strip() not in listed
    assert hindcast(tmp_path, "token", "revoke", ident[1], **url).stdout == f"{ident[1]} (nightly) is ended\n"
    assert "\trevoked\t" in hindcast(tmp_path, "token", "list", **url).stdout
    wrong = hindcast(tmp_path, "token", "create", "--name", "x", "--role", "viewer", "--pipeline", "nothing", **url)
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "hindcast token: --pipeline names 'nothing', which is not configured; expected one of files, *\n",
    )
    assert hindcast(tmp_path, "token", "revoke", "tok_x", **url).returncode == 2
