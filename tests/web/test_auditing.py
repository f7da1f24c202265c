"""Who looked at evidence, took it away, shared it or replayed it stands in the audit trail, and from where."""

from __future__ import annotations

import json
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from app.incidents.audit import Action
from app.incidents.audit_chain import verify
from app.incidents.service import Store
from app.incidents.shares import revoke_share
from app.web import auditing
from app.web import trail as trail_page
from tests.fixtures.postgres import Database
from tests.web.conftest import Browser
from tests.web.test_shares import U01, case, share


def trail(database: Database) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.app) as connection:
        return connection.execute("SELECT what, who, subject, origin, detail FROM audit_events ORDER BY id").fetchall()


async def test_everything_that_shows_evidence_is_recorded(
    api: httpx.AsyncClient, person: Browser, stranger: httpx.AsyncClient, store: Store, database: Database
) -> None:
    incident = await case(api, store)
    found = (await api.get(f"/api/v1/incidents/{incident}")).json()
    file, run = found["evidence"][0], found["replays"][0]
    before = len(trail(database))
    base = f"/incidents/{incident}"
    for place in (
        f"/evidence/{file['id']}",
        "/bundle.zip",
        "/runs/1/events/4",
        "/runs/1/value?ordinal=4&side=recorded&field=args.amount",
    ):
        assert (await person.get(base + place)).status_code == 200
    assert (await api.get(f"/api/v1{base}/bundle.zip")).status_code == 200
    ident, path = await share(api, incident)
    await stranger.get(path)
    await person.post(f"/shares/{ident}/revoke")
    await stranger.get(path)  # dead: nothing was seen
    again = (await person.post(f"{base}/replays", {"build": U01})).headers["location"]
    assert again == f"{base}/runs/2"
    for place in (f"/evidence/{file['id'] + 99}", "/runs/1/value?ordinal=4&side=recorded&field=x", "/runs/1/events/99"):
        assert (await person.get(base + place)).status_code == 404
    entries = trail(database)[before:]
    told = [(what, who) for what, who, *_ in entries]
    assert told == [
        ("evidence.read", "operator"),
        ("incident.exported", "operator"),
        ("evidence.read", "operator"),
        ("evidence.read", "operator"),
        ("incident.exported", "script"),
        ("share.created", "script"),
        ("share.opened", f"share {ident}"),
        ("share.revoked", "operator"),
        ("run.requested", "operator"),
    ]
    assert {origin for *_, origin, _ in entries} == {"127.0.0.1"}
    assert [subject for _, _, subject, *_ in entries[:5]] == [incident] * 5
    assert entries[0][4] == {"evidence": file["id"], "sha256": file["sha256"]}
    assert entries[3][4] == {"run": 1, "event": 4, "field": "args.amount", "side": "recorded"}
    assert entries[5][4]["incident"] == incident
    assert entries[5][4]["reveal"] == []
    assert path.removeprefix("/s/") not in json.dumps(entries, default=str)
    assert "991" not in json.dumps([entry[4] for entry in entries]), "the trail holds no payloads"
    assert run["number"] == 1
    async with store.read() as session:
        assert (await verify(session)).faults == ()


async def test_a_page_whose_opening_cannot_be_recorded_is_not_handed_out(
    api: httpx.AsyncClient, person: Browser, store: Store, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what could not be recorded once is not taken for recorded the next time."""
    incident = await case(api, store)
    refused: list[str] = []

    def away(session: object, action: Action, **told: object) -> None:
        refused.append(str(action))
        raise OperationalError("INSERT", None, Exception("the database is away"))

    for path, module, action in (
        (f"/incidents/{incident}/runs/1", auditing, "run.read"),
        ("/audit", trail_page, "audit.read"),
    ):
        before = len(trail(database))
        with monkeypatch.context() as patch:
            patch.setattr(module, "record_event", away)
            assert (await person.get(path)).status_code == 500
        assert len(trail(database)) == before
        assert [(await person.get(path)).status_code for _ in range(2)] == [200, 200]
        assert [what for what, *_ in trail(database)[before:]] == [action]
    assert refused == ["run.read", "audit.read"]


async def test_work_that_no_request_asked_for_comes_from_nowhere(
    api: httpx.AsyncClient, store: Store, database: Database
) -> None:
    incident = await case(api, store)
    ident, _ = await share(api, incident)
    async with store.write() as session:
        await revoke_share(session, ident, who="the demo")
    assert trail(database)[-1][:4] == ("share.revoked", "the demo", ident, None)
