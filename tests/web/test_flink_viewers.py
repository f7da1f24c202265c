"""Viewers see recorded runs as shapes and digests: a secret is planted everywhere, and found nowhere. complaint 23"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from app.incidents.roles import Role
from app.incidents.service import Store
from app.incidents.tokens import create_token
from tests.flink.lines import flat
from tests.web.conftest import Browser, client
from tests.web.html import Page
from tests.web.test_canary import crawl, spellings

MARK = "cAnAry"


def planted() -> list[bytes]:
    """Two runs that say the secret wherever a job or an agent can say something."""
    action = {
        "executionId": f"{MARK}-execution", "entityType": "action", "entityName": f"{MARK}-action",
        "upstreamEventId": f"{MARK}-upstream", "upstreamActionName": f"{MARK}-upstream-action",
        "entityMetadata": {"model": f"{MARK}-model", f"{MARK}-meta": f"{MARK}-metadata"}, "agentName": f"{MARK}-agent",
    }  # fmt: skip
    calls = [
        {"id": f"{MARK}-call", "function": {"name": f"{MARK}-tool", "arguments": {f"{MARK}-name": f"{MARK}-args"}}}
    ]
    cut = {f"{MARK}-place": {"truncatedString": f"{MARK}-cut", "omittedChars": 4}}
    failed = {"errorType": f"{MARK}-error-type", "errorMessage": f"{MARK}-error"}
    messages = [{"role": "user", "content": f"{MARK}-prompt"}]
    given, answers = {"a": f"{MARK}-given"}, {f"{MARK}-call": f"{MARK}-answer"}
    told = [
        ("_input_event", {"input": {f"{MARK}-member": f"{MARK}-payload"}}, {}),
        ("_agent_run_begin_event", {"value": {f"{MARK}-kept": f"{MARK}-memory"}}, {}),
        ("_execution_started_event", {}, {"status": "started"}),
        ("_chat_request_event", {"model": f"{MARK}-setup", "messages": messages, "prompt_args": given}, {}),
        ("_tool_request_event", {"model": f"{MARK}-setup", "tool_calls": calls}, {}),
        ("_tool_response_event", {"responses": answers, "error": {"x": f"{MARK}-toolerror"}}, {}),
        ("_chat_response_event", {"response": {"role": "assistant", "content": f"{MARK}-said"}}, {}),
        (f"_{MARK}_event", {f"{MARK}-field": f"{MARK}-own", "nested": cut}, {}),
        ("_execution_failed_event", failed, {"status": "failed", "problemCategory": "tool_call_failed"}),
        ("_execution_failed_event", failed, {"status": f"{MARK}-status", "problemCategory": f"{MARK}-category",
                                             "entityType": f"{MARK}-entity", "executionId": f"{MARK}-other"}),
    ]  # fmt: skip
    return [
        flat(100 * number + at, f"{MARK}-run-{number}", f"{MARK}-key", kind, attributes, **(action | more))
        for number in (1, 2)
        for at, (kind, attributes, more) in enumerate(told)
    ]


@pytest.fixture
async def imported(person: Browser) -> str:
    """The address of a run, after the log was imported."""
    log = [("log", (f"{MARK}-log.log", b"\n".join(planted()) + f"\n{MARK}-loose line\n".encode()))]
    first = await person.post("/flink/import", {}, log)
    assert first.status_code == 303
    page = await person.get(first.headers["location"])
    return re.findall(r'href="(/flink/runs/\d+)"><code>', page.text)[0]


@pytest.fixture
async def viewer(app: FastAPI, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    async with store.write() as session:
        _, token = await create_token(session, name="looker", role=Role.VIEWER, scopes=["*"], who="root")
    async with client(app, Authorization=f"Bearer {token}") as http:
        yield http


PLANTED = (
    "key", "action", "agent", "tool", "setup", "payload", "member", "prompt", "given", "args", "name", "call", "answer",
    "said", "own", "field", "error", "error-type", "category", "memory", "kept", "metadata", "model", "status",
    "entity", "upstream", "upstream-action", "execution", "place", "run-2", "log.log", "cut", "toolerror",
)  # fmt: skip


async def test_no_secret_of_a_recorded_run_comes_to_light_of_a_viewer(
    person: Browser, viewer: httpx.AsyncClient, imported: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = [f"{imported}/events/{n}" for n in range(10)]
    bare = "".join([(await person.get(page)).text for page in ("/flink", imported, *events)])
    for place in PLANTED:
        assert f"{MARK}-{place}" in bare, f"the canary in {place} was not even planted where a page shows it"
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    api = "/api/v1/flink/runs"
    run = imported.rpartition("/")[2]
    typed = [
        *events, f"{imported}?at=4", f"{imported}?type=INPUT", f"{imported}?q={MARK}", f"{imported}/events/99",
        f"{imported}/lines", f"{imported}/events/0/value?field=input", "/flink/logs/1", "/flink?status=failed",
        f"/flink?key={MARK}-key", f"/flink?tool={MARK}-tool", f"/flink?q={MARK}", f"/flink?category={MARK}-category",
        "/flink?log=1", f"/flink?status={MARK}", "/flink?after=x", api, f"{api}?key={MARK}-key", f"{api}/{run}",
        f"{api}/{run}?start=3&limit=2", f"{api}/999999",
    ]  # fmt: skip
    seen = await crawl(
        viewer, "/flink", [place.removeprefix("/flink") for place in typed if place.startswith("/flink")]
    )
    for place in typed:
        seen[place] = await viewer.get(place)
    assert {answer.status_code for answer in seen.values()} == {200, 403, 404}
    assert {place for place, answer in seen.items() if answer.status_code == 403} == {
        f"{imported}/lines", f"{imported}/events/0/value?field=input", "/flink/logs/1",
    }  # fmt: skip
    secrets = [*spellings(f"{MARK}-key".encode()), MARK, MARK.encode().hex()]
    for address, answer in seen.items():
        text = answer.text + str(answer.headers)
        for asked in address.partition("?")[2].split("&"):  # what the address itself says may come back in its links
            text = text.replace(asked, "") if MARK in asked else text
        assert [secret for secret in secrets if secret.lower() in text.lower()] == [], address
    lines = [line for line in caplog.text.splitlines() if "httpx" not in line]
    assert [line for line in lines if MARK.lower() in line.lower()] == []


async def test_a_viewer_reads_what_is_no_secret(viewer: httpx.AsyncClient, imported: str) -> None:
    listed = Page(await viewer.get("/flink")).text
    assert "2 runs" in listed
    assert "✕ failed" in listed
    assert "tool_call_failed" in listed
    assert "Import event logs" not in listed
    assert "Open incident" not in listed
    assert 'href="/flink"' in (await viewer.get("/")).text
    run = Page(await viewer.get(imported)).text
    for words in ("● redacted", "CHAT_REQUEST", "TOOL_REQUEST", "tool_call_failed", "What caused what", "10 events"):
        assert words in run, words
    event = Page(await viewer.get(f"{imported}/events/3")).text
    assert "Event 3 · CHAT_REQUEST" in event
    assert "messages payload ‹list, 1 item" in event


async def test_no_filter_of_a_viewer_answers_what_is_hidden(viewer: httpx.AsyncClient, imported: str) -> None:
    """Whether there is something of that name or not, the answer is the same."""
    api = "/api/v1/flink/runs"
    for name, right in (("key", f"{MARK}-key"), ("tool", f"{MARK}-tool"), ("q", MARK), ("category", f"{MARK}-category"),
                        ("log", "1")):  # fmt: skip
        for wanted in (right, "7" if name == "log" else "nothing-like-it"):
            assert (await viewer.get(api, params={name: wanted})).json() == {"runs": [], "next": None, "total": 0}
            assert "Nothing fits" in Page(await viewer.get("/flink", params={name: wanted})).text
    for query, count in (("category=tool_call_failed", 2), ("category=model_call_failed", 0), ("status=failed", 2)):
        assert (await viewer.get(f"{api}?{query}")).json()["total"] == count


async def test_the_tree_and_the_digests_stay_whole(viewer: httpx.AsyncClient, imported: str) -> None:
    """Equal values of a run are recognisable as such, and those of two runs are not."""
    api = "/api/v1/flink/runs"
    one, other = (await viewer.get(api)).json()["runs"]
    assert one["key"] != other["key"]
    whole = (await viewer.get(f"{api}/{one['id']}")).json()
    assert whole["key"] == one["key"]
    (action, _) = whole["tree"]
    assert (action["type"], action["status"]) == ("action", "failed")
    assert action["id"] == whole["events"][2]["event"]["span_id"]


async def test_a_role_elsewhere_is_none_here(app: FastAPI, store: Store, imported: str) -> None:
    async with store.write() as session:
        _, token = await create_token(session, name="elsewhere", role=Role.ADMIN, scopes=["refunds"], who="root")
    async with client(app, Authorization=f"Bearer {token}") as http:
        for place in ("/flink", imported, f"{imported}/events/0", "/api/v1/flink/runs"):
            assert (await http.get(place)).status_code == 403
