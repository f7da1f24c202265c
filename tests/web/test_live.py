"""Pages and API of live pipelines, over a world in which everything is real: broker, pipeline, collector, database."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.demo.broker import EmbeddedBroker
from app.incidents import live as domain
from app.incidents import service
from app.incidents.gathering import empty_progress
from app.incidents.service import Store
from app.jobs.desk import Keeping
from app.settings import load
from app.web.app import create_app
from app.wire.records import AgentEnvelope
from tests.fixtures.postgres import Database
from tests.jobs.live import NAME, World
from tests.pipeline import scripted
from tests.waiting import until_async
from tests.web.conftest import BUILDS, TOKEN, Browser, client, configuration, upload
from tests.web.html import Page

NOW = time.time_ns() // 1_000_000
PIPELINE = f"""
[[pipelines]]
name = "{NAME}"
brokers = ["127.0.0.1:9"]
builds = ["{BUILDS[1]}"]
[pipelines.topics]
events = "desk.events"
"""


def start(key: bytes, *operations: tuple[object, ...], at: int = NOW) -> AgentEnvelope:
    envelope = scripted.start(*operations, at=at)
    envelope.entity_key = key
    return envelope


class Live:
    """A world, and a console over it as a script and as a person meet it."""

    def __init__(self, world: World, api: httpx.AsyncClient, person: Browser) -> None:
        self.world = world
        self.api = api
        self.person = person

    async def page(self, path: str) -> Page:
        return Page(await self.person.get(path))

    async def incident(self, key: str = "customer-42") -> str:
        answer = await self.api.post("/api/v1/incidents", json={"pipeline": NAME, "entity_key": {"text": key}})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def when(self, path: str, field: str, *values: object) -> dict[str, Any]:
        """Ask until a field has one of some values."""
        found: dict[str, Any] = {}

        async def look() -> bool:
            nonlocal found
            found = (await self.api.get(path)).json()
            return found[field] in values

        await until_async(look, lambda: found, pause_s=0.05)
        return found


def console(database: Database, store: Store, tmp_path: Path) -> FastAPI:
    """The application, told of the world's pipeline."""
    file = tmp_path / "hindcast.toml"
    file.write_text(configuration(BUILDS[:2]) + PIPELINE + "\n[collector]\nexport_timeout_s = 600\n")
    environment = {"HINDCAST_TOKEN": TOKEN, "HINDCAST_DATABASE_URL": database.app, "HINDCAST_HOME": str(tmp_path)}
    return create_app(load(file, environment), store)


@pytest.fixture
async def live(request: pytest.FixtureRequest, database: Database, store: Store, tmp_path: Path) -> AsyncIterator[Live]:
    """A world at work; the parameter, where there is one, is how its collector keeps and waits."""
    app = console(database, store, tmp_path)
    with EmbeddedBroker() as broker:
        world = World.make(broker, database, store, tmp_path)
        world.keeping = getattr(request, "param", world.keeping)
        world.send(
            start(b"customer-42", ("ask", "hi"), ("act", "refund"), ("out", "done")),
            start(b"customer-7", ("ask", "hello"), ("fail", "no"), at=NOW + 1000),
            start(b"customer-9", ("ask", "may I"), ("approve",), ("suspend",), at=NOW + 2000),
            start(b"\xff<b>", ("out", "odd"), at=NOW + 3000),
        )
        async with app.router.lifespan_context(app), world.collecting(), client(app) as http:
            person = Browser(http)
            await person.enter()
            async with client(app, Authorization=f"Bearer {TOKEN}") as api:
                yield Live(world, api, person)


async def test_activations_for_scripts(live: Live) -> None:
    with live.world.host():
        await live.world.activations(4)
    api = live.api
    first = (await api.get("/api/v1/activations", params={"limit": 3})).json()
    assert [one["entity_key"]["text"] for one in first["items"]] == [None, "customer-9", "customer-7"]
    rest = (await api.get("/api/v1/activations", params={"limit": 3, "after": first["next"]})).json()
    (refund,) = rest["items"]
    assert rest["next"] is None
    assert (refund["entity_key"], refund["seq"], refund["kind"], refund["status"], refund["clock_ms"]) == (
        {"hex": b"customer-42".hex(), "text": "customer-42"}, 0, "start", "completed", NOW,
    )  # fmt: skip
    assert [intent["tool"] for intent in refund["intents"]] == ["refund"]
    filters: tuple[dict[str, str | int], ...] = (
        {"status": "completed", "tool": "refund"}, {"key": "customer-42"}, {"key_hex": b"customer-42".hex(), "seq": 0},
        {"key_base64": "Y3VzdG9tZXItNDI="}, {"intent": refund["intents"][0]["intent_id"]},
        {"since_ms": NOW, "until_ms": NOW + 1},
    )  # fmt: skip
    for query in filters:
        assert (await api.get("/api/v1/activations", params=query)).json()["items"] == [refund]
    bad: tuple[tuple[dict[str, str | int], int], ...] = (
        ({"key_hex": "zz"}, 400), ({"after": "?"}, 400), ({"limit": 0}, 422), ({"seq": "x"}, 422),
    )  # fmt: skip
    for wrong, status in bad:
        answer = await api.get("/api/v1/activations", params=wrong)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


async def test_from_a_key_to_ready_for_scripts(live: Live) -> None:
    api = live.api
    with live.world.host():
        await live.world.activations(4)
        ident = await live.incident()
        found = await live.when(f"/api/v1/incidents/{ident}", "state", "incomplete")
        assert found["ready"] is False
        assert {one["what"] for one in found["missing"] if one["blocks"]} == {"snapshot"}
        assert [(one["name"], one["suggested"]) for one in found["builds"]] == [(BUILDS[0], False), (BUILDS[1], True)]
        asked = await api.post(f"/api/v1/incidents/{ident}/exports", json={"reason": "refund audit"})
        assert asked.status_code == 202
        assert asked.headers["location"] == f"/api/v1/exports/{asked.json()['id']}"
        assert len(asked.json()["request_id"]) == 32
        export = await live.when(asked.headers["location"], "state", "answered")
        assert (export["reason"], export["requested_by"], len(export["answers"])) == ("refund audit", "script", 1)
        assert export["published"]["topic"] == "desk.events"
        ready = await live.when(f"/api/v1/incidents/{ident}", "ready", True)
        assert (ready["state"], ready["pipeline"]) == ("ready", NAME)
        assert ready["live"]["exports"][0]["id"] == export["id"]
        again = await api.post(f"/api/v1/exports/{export['id']}/retry")
        assert (again.status_code, again.json()["title"]) == (409, "Not in this state")
        search = await api.post(f"/api/v1/incidents/{ident}/searches")
        assert search.status_code == 202


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "name either pipeline and entity_key, or activation"),
        ({"pipeline": NAME}, 422, "name either"),
        ({"pipeline": NAME, "entity_key": {}}, 422, "give the key once"),
        ({"pipeline": NAME, "entity_key": {"text": "a", "hex": "61"}}, 422, "give the key once"),
        ({"pipeline": NAME, "entity_key": {"hex": "6"}}, 400, "not a key in hex"),
        ({"pipeline": "nobody", "entity_key": {"text": "a"}}, 422, "nobody"),
        ({"pipeline": NAME, "entity_key": {"text": "a"}, "seq": -1}, 422, "seq"),
        ({"activation": "1-1"}, 404, "1-1"),
    ],
)
async def test_a_bad_request_opens_nothing(live: Live, body: dict[str, Any], status: int, words: str) -> None:
    answer = await live.api.post("/api/v1/incidents", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert words in answer.text
    assert (await live.api.get("/api/v1/incidents")).json()["incidents"] == []


async def test_an_export_needs_a_reason_and_a_pipeline(live: Live) -> None:
    ident = await live.incident()
    for body, status in (({}, 422), ({"reason": ""}, 422), ({"reason": "  "}, 400), ({"reason": "x", "y": 1}, 422)):
        answer = await live.api.post(f"/api/v1/incidents/{ident}/exports", json=body)
        assert answer.status_code == status, answer.text
    assert (await live.api.get("/api/v1/exports/exp_none")).status_code == 404
    form = await live.page(f"/incidents/{ident}/export")
    assert "the audit trail" in form.text
    refused = await live.person.post(f"/incidents/{ident}/exports", {"reason": " "})
    assert refused.status_code == 422
    assert "say why the key's state is asked for" in Page(refused).text
    assert (await live.api.get(f"/api/v1/incidents/{ident}")).json()["live"]["exports"] == []


async def test_the_page_of_activations_filters_and_opens(live: Live) -> None:
    with live.world.host():
        rows = await live.world.activations(4)
    page = await live.page("/activations")
    assert all(words in page.text for words in ("customer-42", "refund", "! failed", "‖ suspended", "ff3c623e"))
    assert "customer-7" not in (await live.page("/activations?status=completed")).text
    assert "customer-9" not in (await live.page("/activations?key=ff3c623e&form=hex")).text
    nothing = await live.page("/activations?key=nobody&form=text")
    assert "Nothing fits" in nothing.text
    assert "Open an incident on this key all the same" in nothing.text
    for query, words in (("key=zz&form=hex", "not a key in hex"), ("seq=x", "is no seq"), ("since=then", "is no time")):
        assert words in (await live.page(f"/activations?{query}")).text
    (refund,) = [one for one in rows if one.entity_key == b"customer-42"]
    for link, words in (
        (f"/find?intent={refund.intents[0].intent_id}", "customer-42"),
        ("/find?key=customer-7&seq=0", "customer-7"),
    ):
        found = await live.person.http.get(link, follow_redirects=True)
        assert words in Page(found).text
        assert "customer-9" not in found.text
    assert (await live.person.get("/find")).status_code == 400
    opened = await live.person.post(f"/activations/{refund.id}/incidents")
    assert opened.status_code == 303
    incident = await live.page(opened.headers["location"])
    assert "customer-42" in incident.text
    assert (await live.person.post("/activations/1-1/incidents")).status_code == 404
    unseen = await live.person.post("/activations/incidents", {"pipeline": NAME, "key": "6e", "form": "hex", "seq": ""})
    assert unseen.status_code == 303


async def test_the_page_of_an_incident_shows_evidence_as_it_arrives(live: Live) -> None:
    with live.world.host():
        rows = await live.world.activations(4)
        (row,) = [one for one in rows if one.entity_key == b"customer-42"]
        where = (await live.person.post(f"/activations/{row.id}/incidents")).headers["location"]
        await live.when(f"/api/v1{where}", "state", "incomplete")
        page = await live.page(where)
        assert "✓ Triggering envelope" in page.text
        assert "○ Export request" in page.text
        assert "Nothing replays without it" in page.text
        assert "Export soon." in page.text
        assert "What replays exactly: the first activation of a key, completed or suspended" in page.text
        asked = await live.person.post(f"{where}/exports", {"reason": "odd <refund>"})
        assert (asked.status_code, asked.headers["location"]) == (303, where)
        await live.when(f"/api/v1{where}", "ready", True)
    page = await live.page(where)
    assert 'reason "odd <refund>"' in page.text
    assert "✓ Snapshot" in page.text
    assert "Export soon." not in page.text
    assert "desk.events[0]@4" in page.text
    assert "1 intent" in page.text


@pytest.mark.parametrize("live", [Keeping(export_timeout_s=0.5)], indirect=True, ids=["impatient"])
async def test_a_pipeline_that_never_answers_times_out_and_is_asked_again(live: Live) -> None:
    where = f"/incidents/{await live.incident()}"
    asked = await live.person.post(f"{where}/exports", {"reason": "odd"})
    assert asked.status_code == 303
    status = (await live.api.get(f"/api/v1{where}")).json()
    (export,) = status["live"]["exports"]
    await live.when(f"/api/v1/exports/{export['id']}", "state", "timed_out")
    page = await live.page(where)
    assert "! Export request" in page.text
    assert "A drained or crashed pipeline never answers" in page.text
    assert f"{where}/exports/{export['id']}/retry" in page.links
    with live.world.host():
        again = await live.person.post(f"{where}/exports/{export['id']}/retry")
        assert again.status_code == 303
        answered = await live.when(f"/api/v1/exports/{export['id']}", "state", "answered")
    assert answered["request_id"] == export["request_id"]


async def test_a_search_is_cancelled_and_asked_for_again(live: Live) -> None:
    where = f"/incidents/{await live.incident('nobody-knows')}"
    found = await live.when(f"/api/v1{where}", "state", "incomplete")
    assert "not found" in (await live.page(where)).text
    assert f"{where}/searches" in (await live.page(where)).links
    ended = found["live"]["gathering"]
    assert (await live.person.post(f"{where}/searches/{ended['id']}/cancel")).status_code == 303
    assert (await live.person.post(f"{where}/searches")).status_code == 303
    again = (await live.api.get(f"/api/v1{where}")).json()["live"]["gathering"]
    assert again["id"] != ended["id"]


async def test_where_nobody_collects_the_pages_say_so_and_lose_nothing(
    database: Database, store: Store, tmp_path: Path
) -> None:
    app = console(database, store, tmp_path)
    async with app.router.lifespan_context(app), client(app) as http:
        person = Browser(http)
        await person.enter()
        assert f"{NAME} is not followed. No collector was ever seen" in Page(await person.get("/activations")).text
        told: dict[str, object] = {"pipeline": NAME, "key": "customer-42", "form": "text", "seq": "3"}
        where = [(await person.post("/activations/incidents", told)).headers["location"] for _ in range(2)]
        assert (await person.post(f"{where[1]}/exports", {"reason": "odd"})).status_code == 303
        page = Page(await person.get(where[1]))
        assert f"Nobody follows {NAME}." in page.text
        assert "Traces of seq 3" in page.text
        assert "waits to be published" in page.text
        assert "waits for the collector" in page.text
        assert where[0] in page.links  # nobody opens a second one unknowingly
        ident = where[1].rpartition("/")[2]
        async with store.write() as session:
            incident = await service.get_incident(session, ident)
            search = (await domain.gatherings_of(session, incident))[0].gathering
            search.progress = {**empty_progress(), "outlook": {"problem": "the broker does not answer"}}
        assert "the broker does not answer" in Page(await person.get(f"{where[1]}/export")).text
        async with store.write() as session:
            incident = await service.get_incident(session, ident)
            search = (await domain.gatherings_of(session, incident))[0].gathering
            search.progress = {**empty_progress(), "outlook": {"lag_ms": 1, "behind": 3}}
        for path in (where[1], f"{where[1]}/export"):
            assert "The pipeline lags. The pipeline has still to read 3 records" in Page(await person.get(path)).text
        cancel = next(link for link in page.links if link.endswith("/cancel"))
        assert (await person.post(cancel)).status_code == 303
        assert "cancelled before all was read" in Page(await person.get(where[1])).text


async def test_files_have_no_pipeline_to_ask(live: Live) -> None:
    made = await live.api.post("/api/v1/incidents/import", files=upload(BUILDS[0]))
    ident = made.json()["id"]
    assert (made.json()["ready"], made.json()["pipeline"], made.json()["live"]) == (True, None, None)
    assert (await live.person.get(f"/incidents/{ident}/export")).status_code == 404
    refused = await live.api.post(f"/api/v1/incidents/{ident}/exports", json={"reason": "x"})
    assert (refused.status_code, "came from files" in refused.json()["what"]) == (400, True)
