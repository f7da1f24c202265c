"""Every route, for every role, in a pipeline of one's own and in another's: the declared permission decides. row 21"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from app.incidents import shares
from app.incidents.audit_trail import AuditFilter, read_trail
from app.incidents.models import AuditEvent
from app.incidents.roles import Role
from app.incidents.service import Store
from app.web import stream
from app.web.access import ROLES, Permission
from app.web.app import create_app
from app.web.limits import Limiter
from tests.fixtures.postgres import Database
from tests.web.roles import FILES, FOREIGN, FOREIGN_BUILD, OWN, Things, person, settings, things
from tests.web.test_access import permissions, routes

# Addresses of one thing: somebody without a role in its scope is told that it is not there.
OBJECTS = ("incident_id", "replay_id", "export_id", "activation_id", "share_id", "token_id")
OF_FILES = (Permission.IMPORT, Permission.SEE_LOGS, Permission.LOGS)  # a role in a pipeline is none there
QUERIES = {"compare": "?runs=1,2", "value": "?ordinal=0&side=recorded&field=event_type", "find": "?intent=x"}
# Of these the world has none (any more): a response under a made-up key, what was supplied to a run, a removed link,
# a run of an event log.
ABSENT = ("/captured/", "/links/{other_id}", "tool-answers.jsonl", "result.pb", "/runs/{number}/value", "/recorded")


@dataclass
class World:
    """The console, and what each of three scopes holds."""

    app: FastAPI
    own: Things
    foreign: Things
    files: Things

    def somebody(self, role: Role | str, scope: str = OWN) -> httpx.AsyncClient:
        return person(self.app, f"{role}-person", f"{role}-{scope}")


@pytest.fixture
async def world(database: Database, store: Store, tmp_path: Path) -> AsyncIterator[World]:
    app = create_app(settings(tmp_path, database), store)
    wide = Limiter(1_000_000, 60)
    rates = app.state.rates
    for name in ("entering", "exports", "shares", "shared", "dead"):
        object.__setattr__(rates, name, wide)
    async with app.router.lifespan_context(app):
        made = [
            await things(database, store, each, owner="responder-person", worked=each == OWN)
            for each in (OWN, FOREIGN, None)
        ]
        yield World(app, *made)


def walk(app: FastAPI) -> list[tuple[str, APIRoute, Permission]]:
    """Every route that asks for a role, last those that change something, so that reading finds it as it was."""
    found = []
    for route in routes(app):
        (declared,) = permissions(route.dependant)
        if declared not in (Permission.PUBLIC, Permission.SHARED):
            found += [(method, route, declared) for method in sorted(route.methods)]
    return sorted(found, key=lambda one: (one[0] != "GET", one[1].path))


async def ask(http: httpx.AsyncClient, method: str, route: APIRoute, at: Things) -> httpx.Response:
    query = QUERIES.get(route.path.rpartition("/")[2], "")
    return await http.request(method, at.address(route.path) + query)


async def test_the_declared_permission_decides(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LONGEST_S", 0.0)
    assert {str(role): await walked(world, role) for role in Role} == {"viewer": {}, "responder": {}, "admin": {}}


async def walked(world: World, role: Role) -> dict[tuple[str, str], tuple[str, str, int]]:
    """Ask for everything in one's own pipeline and in the other's; returns what was answered otherwise."""
    wrong = {}
    async with world.somebody(role) as http:
        for method, route, permission in walk(world.app):
            answer = await ask(http, method, route, world.own)
            named = any("{" + name + "}" in route.path for name in OBJECTS)
            may = role.includes(ROLES[permission]) and permission not in OF_FILES
            refused = {401, 403, 404, 500} if not any(part in route.path for part in ABSENT) else {401, 403, 500}
            if (may and answer.status_code in refused) or (not may and answer.status_code != 403):
                wrong[method, route.path] = (str(permission), "own", answer.status_code)
            if named and (foreign := await ask(http, method, route, world.foreign)).status_code != 404:
                wrong[method, route.path] = (str(permission), "foreign", foreign.status_code)
    return wrong


async def test_somebody_without_a_role_is_told_so_and_sees_nothing(world: World, store: Store) -> None:
    async with person(world.app, "nobody", "some-other-group") as http:
        for method, route, _ in walk(world.app):
            answer = await ask(http, method, route, world.own)
            assert (method, route.path, answer.status_code) == (method, route.path, 403)
        assert "no rule gives you a role" in answer.text
    told = await trail(store, what="session.refused")
    assert [(event.who, event.detail["why"]) for event in told] == [("nobody", "no rule gives you a role")]  # once


async def test_which_runs_a_foreign_incident_has_is_told_to_nobody(world: World) -> None:
    foreign = f"/incidents/{world.foreign.incident.id}/runs"
    async with world.somebody("admin") as http:
        there, absent = [await http.get(f"{foreign}/{number}/verdict.json") for number in (1, 99)]
        mine = await http.get(f"/incidents/{world.own.incident.id}/runs/99/verdict.json")
    assert there.status_code == absent.status_code == mine.status_code == 404
    assert there.text == absent.text
    assert f"no incident &#39;{world.foreign.incident.id}&#39;" in there.text
    assert "no run &#39;99&#39;" in mine.text


async def test_lists_hold_what_one_may_see(world: World) -> None:
    async with world.somebody("responder") as http:
        listed = (await http.get("/api/v1/incidents")).json()["incidents"]
        assert {one["id"] for one in listed} == {world.own.incident.id, world.own.parts["other_id"]}
        rows = (await http.get("/api/v1/activations")).json()["items"]
        assert {row["pipeline"] for row in rows} == {OWN}
        (intent,) = rows[0]["intents"]
        own = f"/incidents/{world.own.incident.id}"
        places = ("/", "/?q=inc", "/activations", "/shares", "/builds", "/workers", "/activations?tool=tool-of-fraud")
        # All incidents here are of one key: what else is on it is told of as far as one may see it.
        for place in (*places, own, f"{own}/post-mortem", f"/api/v1{own}/links", "/api/v1/workers"):
            page = await http.get(place)
            assert page.status_code == 200
            secrets = [
                each.parts[name] for each in (world.foreign, world.files) for name in ("incident_id", "other_id")
            ]
            for secret in (*secrets, "key-of-fraud", FOREIGN_BUILD):
                assert secret not in page.text, place
        assert "tool-of-fraud" not in (await http.get("/activations")).text
        shown = (await http.get("/api/v1/shares")).json()["shares"]
        assert [one["incident_id"] for one in shown] == [world.own.incident.id]
    async with person(world.app, "root") as http:
        listed = (await http.get("/api/v1/incidents")).json()["incidents"]
        assert len(listed) == 6
        rows = (await http.get("/api/v1/activations")).json()["items"]
        (foreign,) = (one["intent_id"] for row in rows if row["pipeline"] == FOREIGN for one in row["intents"])
    async with world.somebody("responder") as http:
        assert (await http.get("/api/v1/activations", params={"intent": foreign})).json()["items"] == []
        assert len((await http.get("/api/v1/activations", params={"intent": intent["intent_id"]})).json()["items"]) == 1


async def test_the_build_of_another_pipeline_cannot_be_run(world: World) -> None:
    """Its instructions would stand in the ledger."""
    own = world.own.incident.id
    async with world.somebody("responder") as http:
        for build in (FOREIGN_BUILD, "no-such-build"):
            answer = await http.post(f"/api/v1/incidents/{own}/replays", json={"build": build})
            assert (answer.status_code, answer.json()["title"]) == (422, "Unknown build")
            assert answer.json()["expected"] == "one of d01_intent_order"
        page = await http.post(f"/incidents/{own}/replays", data={"build": FOREIGN_BUILD})
        assert page.status_code == 422
        assert FOREIGN_BUILD not in (await http.get(f"/incidents/{own}")).text


async def test_what_a_body_names_is_held_to_the_same(world: World) -> None:
    foreign = {"pipeline": FOREIGN, "entity_key": {"text": "x"}}
    unknown = {"pipeline": "nothing", "entity_key": {"text": "x"}}
    async with world.somebody("responder") as http:
        answers = [await http.post("/api/v1/incidents", json=body) for body in (foreign, unknown)]
        assert [answer.status_code for answer in answers] == [422, 422]
        assert [answer.json()["expected"] for answer in answers] == [f"one of {OWN}"] * 2
        by_row = await http.post("/api/v1/incidents", json={"activation": world.foreign.parts["activation_id"]})
        assert by_row.status_code == 404
        form = {"pipeline": FOREIGN, "key": "x", "form": "text"}
        assert (await http.post("/activations/incidents", data=form)).status_code == 422
        fine = await http.post("/api/v1/incidents", json={"pipeline": OWN, "entity_key": {"text": "x"}})
        assert fine.status_code == 201


async def test_what_belongs_to_another_incident_is_not_found_below_ones_own(world: World) -> None:
    """A route below an incident takes other ids as well: they must be that incident's."""
    own, foreign = world.own.incident.id, world.foreign.parts
    places = [
        ("POST", f"/incidents/{own}/exports/{foreign['export_id']}/retry"),
        ("POST", f"/incidents/{own}/searches/{foreign['search_id']}/cancel"),
        ("GET", f"/incidents/{own}/evidence/{foreign['evidence_id']}"),
        ("DELETE", f"/api/v1/incidents/{own}/links/{foreign['other_id']}"),
    ]
    async with world.somebody("admin") as http:
        for method, place in places:
            assert ((await http.request(method, place)).status_code, place) == (404, place)
        link = {"json": {"kind": "related"}}
        assert (await http.put(f"/api/v1/incidents/{own}/links/{foreign['other_id']}", **link)).status_code == 404
        form = {"data": {"kind": "related", "other": foreign["other_id"]}}
        assert (await http.post(f"/incidents/{own}/links", **form)).status_code == 404


async def test_responders_end_their_own_links_and_admins_all(world: World, store: Store) -> None:
    async with store.write() as session:
        other, _ = await shares.create_share(session, world.own.incident, who="somebody-else")
    mine = world.own.parts["share_id"]
    async with world.somebody("responder") as http:
        listed = (await http.get("/api/v1/shares")).json()["shares"]
        assert [one["id"] for one in listed] == [mine]
        assert (await http.delete(f"/api/v1/shares/{other.id}")).status_code == 404
        assert (await http.delete(f"/api/v1/shares/{mine}")).status_code == 204
    async with world.somebody("admin") as http:
        assert len((await http.get("/api/v1/shares")).json()["shares"]) == 2
        assert (await http.post(f"/shares/{other.id}/revoke")).status_code == 303
    refused = await trail(store, what="request.refused")
    assert [(event.who, event.subject, event.detail["to"]) for event in refused] == [
        ("responder-person", other.id, "manage all shares")
    ]


async def test_files_have_a_scope_of_their_own(world: World) -> None:
    files, own = world.files.incident.id, world.own.incident.id
    async with world.somebody("responder", FILES) as http:
        assert (await http.get(f"/incidents/{files}")).status_code == 200
        assert (await http.get(f"/incidents/{own}")).status_code == 404
        assert (await http.get("/import")).status_code == 200
    async with world.somebody("responder") as http:
        assert (await http.get(f"/incidents/{files}")).status_code == 404
        assert 'href="/import"' not in (await http.get("/")).text


async def test_refused_attempts_are_on_record(world: World, store: Store) -> None:
    async with world.somebody("viewer") as http:
        await http.get(f"/incidents/{world.own.incident.id}/bundle.zip")
        await http.get(f"/incidents/{world.foreign.incident.id}")
        await http.get("/audit")
    told = [(one.who, one.subject, one.detail, one.origin) for one in await trail(store, what="request.refused")]
    who = "viewer-person"
    bundle = {"to": "read", "method": "GET", "route": "/incidents/{incident_id}/bundle.zip", "foreign": False}
    foreign = {"to": "view", "method": "GET", "route": "/incidents/{incident_id}", "foreign": True}
    audit = {"to": "read the audit trail", "method": "GET", "route": "/audit", "foreign": False}
    assert told == [
        (who, "", audit, "127.0.0.1"),
        (who, world.foreign.incident.id, foreign, "127.0.0.1"),
        (who, world.own.incident.id, bundle, "127.0.0.1"),
    ]


async def test_the_trail_shows_an_admin_their_own_pipelines(world: World) -> None:
    async with world.somebody("admin") as http:
        await http.get(f"/incidents/{world.own.incident.id}/runs/1")
        await http.get(f"/incidents/{world.own.incident.id}/runs/1")  # a page that follows its run is opened once
        page = (await http.get("/audit")).text
        assert world.own.incident.id in page
        assert world.own.parts["export_id"] in page
        assert "a test" in page  # the reason
        assert page.count("<code>run.read</code>") == 1
        for secret in (world.foreign.incident.id, world.files.incident.id, world.foreign.parts["export_id"]):
            assert secret not in page
        assert "token.created" not in page.partition("<table")[2]
        narrow = (await http.get("/audit", params={"what": "share", "who": "RESPONDER", "since": "nonsense"})).text
        rows = narrow.partition("<table")[2]
        assert "share.created" in rows
        assert "run.read" not in rows
        assert "is no time" in narrow
    async with person(world.app, "root") as http:
        page = (await http.get("/audit")).text
        assert world.foreign.incident.id in page
        assert "token.created" in page.partition("<table")[2]
        first = (await http.get("/audit?what=token.created")).text.partition("<table")[2]
        assert first.count("<code>token.created</code>") == 3


async def test_the_trail_is_paged(world: World, store: Store) -> None:
    async with store.read() as session:
        whole = (await read_trail(session, AuditFilter(), limit=1000)).entries
        seen: list[int] = []
        before = None
        while True:
            page = await read_trail(session, AuditFilter(), before=before, limit=4)
            seen += [event.id for event in page.entries]
            before = page.next
            if before is None:
                break
    assert seen == [event.id for event in whole]
    assert len(seen) > 8


async def trail(store: Store, **chosen: str) -> list[AuditEvent]:
    async with store.read() as session:
        return list((await read_trail(session, AuditFilter(**chosen))).entries)
