"""Event logs for scripts: runs found by what they are, one read whole, an incident opened from it."""

from __future__ import annotations

from typing import Any

import httpx

from app.incidents.audit_trail import AuditFilter, read_trail
from app.incidents.service import Store
from tests.fixtures.postgres import Database
from tests.incidents.flink import LOGS, NAMES, bring_in_all

RUNS = "/api/v1/flink/runs"


async def found(api: httpx.AsyncClient, **wanted: Any) -> dict[str, Any]:
    answer = await api.get(RUNS, params=wanted)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def failed(api: httpx.AsyncClient) -> dict[str, Any]:
    (run,) = (await found(api, category="tool_call_failed"))["runs"]
    assert isinstance(run, dict)
    return run


async def test_runs_are_found_as_on_the_page(api: httpx.AsyncClient, database: Database) -> None:
    bring_in_all(database.app)
    assert (await found(api))["total"] == 15
    assert {run["key"] for run in (await found(api, key="c2"))["runs"]} == {"c2"}
    assert {run["status"] for run in (await found(api, status="unfinished"))["runs"]} == {"unfinished"}
    assert (await found(api, q="gateway", tool="issue_refund"))["total"] == 1
    assert (await found(api, q="nowhere"))["runs"] == []
    run = await failed(api)
    assert run["categories"] == ["tool_call_failed"]
    assert run["url"] == f"/flink/runs/{run['id']}"
    assert (run["verbose"], run["began_at"] <= run["ended_at"]) == (True, True)
    for wrong in ({"status": "lost"}, {"after": "x"}, {"limit": 0}, {"log": -1}):
        answer = await api.get(RUNS, params=wrong)
        assert (answer.status_code in (400, 422), answer.json()["title"] != "") == (True, True), wrong


async def test_lists_of_runs_go_on(api: httpx.AsyncClient, database: Database) -> None:
    bring_in_all(database.app)
    ids: list[int] = []
    after: dict[str, str] = {}
    while True:
        page = await found(api, limit=4, **after)
        ids += [run["id"] for run in page["runs"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert len(ids) == len(set(ids)) == page["total"] == 15


async def test_a_run_is_read_whole_in_windows(api: httpx.AsyncClient, database: Database, store: Store) -> None:
    bring_in_all(database.app)
    short = await failed(api)
    address = f"{RUNS}/{short['id']}"
    whole = (await api.get(address)).json()
    assert short.items() <= whole.items()
    assert (whole["event_count"], whole["next"], whole["log"]) == (26, None, NAMES[2])
    assert [one["ordinal"] for one in whole["events"]] == list(range(26))
    assert whole["events"][0]["event"]["payload"]["input"] == '{"k":"c1","text":"refund order-2"}'
    (tool,) = [one for one in whole["tree"] if one["name"] == "issue_refund"]
    assert (tool["status"], tool["problem_category"]) == ("failed", "tool_call_failed")
    assert tool["parent"] in {one["id"] for one in whole["tree"]}
    first = (await api.get(address, params={"limit": 20})).json()
    rest = (await api.get(address, params={"limit": 20, "start": first["next"]})).json()
    assert first["events"] + rest["events"] == whole["events"]
    assert rest["next"] is None
    assert (await api.get(f"{RUNS}/999999")).status_code == 404
    async with store.read() as session:
        trail = await read_trail(session, AuditFilter(what="evidence.read"))
    assert [event.detail for event in trail.entries] == [{"events": [20, 26]}, {"events": [0, 20]}, {"events": [0, 26]}]


async def test_an_incident_is_opened_from_a_run(api: httpx.AsyncClient, database: Database) -> None:
    bring_in_all(database.app)
    run = await failed(api)
    answer = await api.post(f"{RUNS}/{run['id']}/incidents")
    assert answer.status_code == 201
    incident = answer.json()
    assert answer.headers["location"] == f"/api/v1/incidents/{incident['id']}"
    assert (incident["kind"], [file["role"] for file in incident["evidence"]]) == ("flink run", ["event-log"])
    home = f"/incidents/{incident['id']}/evidence/{incident['evidence'][0]['id']}"
    kept = (await api.get(home)).content.splitlines()
    assert len(kept) == 26
    assert set(kept) <= set((LOGS / NAMES[2]).read_bytes().splitlines())
    assert (await api.post(f"{RUNS}/999999/incidents")).status_code == 404
