"""The pages of event logs: imported, found, read, and opened as incidents; a link shows shapes and digests alone."""

from __future__ import annotations

import gzip
import re

import httpx

from app.incidents import flink_runs
from app.incidents.flink_runs import RunFilter
from app.incidents.service import Store
from tests.fixtures.postgres import Database
from tests.flink.lines import flat, traced_run
from tests.incidents.flink import LOGS, NAMES, bring_in_all
from tests.web.conftest import Browser
from tests.web.html import Page


def logs(*names: str) -> list[tuple[str, tuple[str, bytes]]]:
    return [("log", (name, (LOGS / name).read_bytes())) for name in names]


async def failed_run(store: Store) -> int:
    async with store.read() as session:
        page = await flink_runs.list_runs(session, RunFilter(category="tool_call_failed"))
    return page.items[0].id


async def test_logs_are_imported_from_the_page_and_not_twice(person: Browser) -> None:
    empty = Page(await person.get("/flink")).text
    assert "No event log was read yet" in empty
    one = await person.post("/flink/import", {"key_paths": "$.input.k"}, logs(NAMES[0]))
    assert one.status_code == 303
    page = Page(await person.get(one.headers["location"])).text
    assert "3 runs" in page
    again = await person.post("/flink/import", {}, logs(*NAMES))
    assert again.status_code == 200
    told = Page(again).text
    assert "eventlog-0.3.1-file.jsonl was here already, whole." in told
    assert "eventlog-head-failed-tool.jsonl brought 66 records" in told


async def test_what_is_wrong_with_a_log_is_told_and_the_others_are_stored(person: Browser) -> None:
    files = [("log", ("taskmanager.log", b"INFO nothing\n")), *logs(NAMES[2])]
    damaged = gzip.compress((LOGS / NAMES[3]).read_bytes())[:-400]
    files.append(("log", ("cut.log.gz", damaged)))
    answer = await person.post("/flink/import", {}, files)
    assert answer.status_code == 422
    told = Page(answer).text
    assert "taskmanager.log: no line is a record of an event log (not JSON)." in told
    assert "cut.log.gz: the packed file is damaged or cut short" in told
    assert "brought 66 records" in told
    wrong = await person.post("/flink/import", {"key_paths": "$..k"}, logs(NAMES[0]))
    assert (wrong.status_code, "is no path to a key" in Page(wrong).text) == (422, True)
    assert (await person.post("/flink/import", {})).status_code == 422


async def test_runs_are_found_by_what_they_are(person: Browser, database: Database) -> None:
    bring_in_all(database.app)

    async def count(query: str) -> int:
        page = await person.get(f"/flink?{query}")
        assert page.status_code == 200
        return len(re.findall(r'href="/flink/runs/\d+"><code>', page.text))

    assert await count("") == 15
    assert await count("key=c2") == 5
    assert await count("status=unfinished") == 2
    assert await count("category=tool_call_failed&tool=issue_refund") == 1
    assert await count("q=gateway") == 1
    assert await count("q=nowhere") == 0
    assert "not a position in the list" in (await person.get("/flink?after=x")).text


async def test_a_run_is_read_with_what_caused_what(person: Browser, database: Database, store: Store) -> None:
    bring_in_all(database.app)
    run = await failed_run(store)
    page = await person.get(f"/flink/runs/{run}")
    told = Page(page).text
    assert "tool_call_failed" in told
    assert "payment gateway said no" in told
    assert "not written at VERBOSE level" not in told
    # The failed tool stands below the action that called it, and that below the model's.
    nested = re.search(
        r"on_input.*<ul>.*chat_model_action.*<ul>.*tool_call_action.*<ul>.*issue_refund", page.text, re.S
    )
    assert nested
    event = await person.get(f"/flink/runs/{run}/events/0")
    assert "refund order-2" in event.text
    assert "upstreamEventId" in (await person.get(f"/flink/runs/{run}/events/1")).text
    value = await person.get(f"/flink/runs/{run}/events/0/value?field=input")
    assert value.text == '{"k":"c1","text":"refund order-2"}'
    lines = await person.get(f"/flink/runs/{run}/lines")
    assert set(lines.content.splitlines()) <= set((LOGS / NAMES[2]).read_bytes().splitlines())
    assert (await person.get(f"/flink/runs/{run}/events/999")).status_code == 404
    assert (await person.get("/flink/runs/999999")).status_code == 404
    assert (await person.get(f"/flink/runs/{run}/events/0/value?field=nope")).status_code == 404


async def test_the_page_says_what_a_log_does_not_tell(person: Browser, database: Database, store: Store) -> None:
    bring_in_all(database.app)
    async with store.read() as session:
        page = await flink_runs.list_runs(session, RunFilter(status="unfinished"))
    told = Page(await person.get(f"/flink/runs/{page.items[0].id}")).text
    assert "The log was not written at VERBOSE level." in told
    assert "2 executions never ended." in told
    assert "2 events were placed by conclusion." in told
    assert "an equal input, or the same one again" in told


async def test_a_page_of_events_is_a_window(person: Browser) -> None:
    lines = [flat(n, "r1", "k", f"_x{n}_event", {"n": n}) for n in range(350)]
    first = await person.post("/flink/import", {}, [("log", ("some.log", b"\n".join(lines) + b"\n"))])
    page = await person.get(first.headers["location"])
    (run,) = re.findall(r'href="/flink/runs/(\d+)"><code>', page.text)

    async def shown(query: str) -> list[str]:
        return re.findall(r'id="e(\d+)"', (await person.get(f"/flink/runs/{run}?{query}")).text)

    assert await shown("") == [str(n) for n in range(100)]
    assert (await shown("start=300"))[-1] == "349"
    assert "222" in await shown("at=222")
    assert await shown("type=X7") == ["7"]
    assert await shown("q=x3") == [str(n) for n in range(350) if "x3" in f"x{n}"][:100]


async def test_a_large_run_and_a_large_value_make_no_large_page(person: Browser) -> None:
    """Rows 34 and 37."""
    lines = [flat(n, "r1", "k", "_x_event", {"n": n, "big": "y" * 5_000 if n < 300 else ""}) for n in range(10_000)]
    lines.append(flat(10_000, "r1", "k", "_output_event", {"output": "z" * 20_000_000}))
    first = await person.post("/flink/import", {}, [("log", ("some.log", b"\n".join(lines) + b"\n"))])
    (run,) = re.findall(r'href="/flink/runs/(\d+)"><code>', (await person.get(first.headers["location"])).text)
    for place in ("", "?at=5000", "?start=9990", "/events/10000"):
        answer = await person.get(f"/flink/runs/{run}{place}")
        assert (answer.status_code, len(answer.content) < 300 * 1024) == (200, True), place
        assert Page(answer).elements < 4_000
    assert "20 000 000 characters" in Page(await person.get(f"/flink/runs/{run}/events/10000")).text.replace(
        "\u202f", " "
    )
    whole = await person.get(f"/flink/runs/{run}/events/10000/value?field=output")
    assert whole.content == b"z" * 20_000_000


async def test_an_incident_opens_from_a_run_and_reads_the_same(
    person: Browser, database: Database, store: Store
) -> None:
    bring_in_all(database.app)
    run = await failed_run(store)
    opened = await person.post(f"/flink/runs/{run}/incidents")
    assert opened.status_code == 303
    home = opened.headers["location"]
    page = Page(await person.get(home)).text
    assert "event-log" in page
    assert "26 records of 1 run" in page
    assert "The configuration names no agent build whose driver is flink." in page
    assert "answers models and tools from the record and runs neither" in page
    looked = re.search(rf'href="({home}/evidence/\d+/inside)', (await person.get(home)).text)
    assert looked
    assert (await person.get(looked[1])).headers["location"] == f"{home}/recorded"
    recorded = await person.get(f"{home}/recorded")
    assert "payment gateway said no" in recorded.text
    assert (await person.get(f"{home}/recorded/events/3")).status_code == 200
    assert (await person.get(f"{home}/recorded/events/0/value?field=input")).status_code == 200


async def test_what_was_looked_at_is_in_the_trail(person: Browser, database: Database, store: Store) -> None:
    import psycopg

    bring_in_all(database.app)
    run = await failed_run(store)
    await person.get(f"/flink/runs/{run}/events/2")
    await person.get(f"/flink/runs/{run}/lines")
    with psycopg.connect(database.owner) as connection:
        found = connection.execute(
            "SELECT detail FROM audit_events WHERE what = 'evidence.read' AND subject = %s ORDER BY id",
            [f"flink run {run}"],
        ).fetchall()
    assert [row[0] for row in found] == [{"event": 2}, {"lines": 26}]


async def test_a_stranger_sees_nothing(stranger: httpx.AsyncClient, database: Database) -> None:
    bring_in_all(database.app)
    for path in ("/flink", "/flink/runs/1", "/flink/runs/1/events/0", "/flink/runs/1/lines", "/flink/logs/1"):
        assert (await stranger.get(path)).status_code == 401


SECRET = "canary-4711"


def secretive() -> list[bytes]:
    """A run that says the secret wherever an agent can say something."""
    run = {"agentName": SECRET, "upstreamActionName": SECRET, "entityName": SECRET, "entityMetadata": {"model": SECRET}}
    action = {**run, "executionId": "x1", "entityType": "action", "upstreamEventId": SECRET}
    cut = {SECRET: {"truncatedString": SECRET, "omittedChars": 4}}
    return [
        flat(1, "r1", SECRET, "_input_event", {"input": {SECRET: SECRET}}, agentName=SECRET),
        flat(2, "r1", SECRET, "_execution_started_event", {}, status="started", **action),
        flat(3, "r1", SECRET, f"_{SECRET}_event", {SECRET: SECRET, "nested": cut}, **action),
        flat(4, "r1", SECRET, "_chat_request_event", {"model": SECRET, "messages": [{"content": SECRET}]}, **action),
        flat(5, "r1", SECRET, "_tool_request_event", {"tool_calls": [{"function": {"name": SECRET}}]}, **action),
        flat(6, "r1", SECRET, "_execution_failed_event", {"errorType": SECRET, "errorMessage": SECRET},
             status="failed", problemCategory="tool_call_failed", **action),
        flat(7, "r1", SECRET, "_execution_failed_event", {}, status=SECRET, problemCategory=SECRET, entityType=SECRET,
             executionId=SECRET),
    ]  # fmt: skip


async def test_a_link_shows_shapes_and_digests_alone(person: Browser, stranger: httpx.AsyncClient) -> None:
    """Row 23."""
    log = [("log", (f"{SECRET}.log", b"\n".join(secretive()) + b"\n"))]
    first = await person.post("/flink/import", {}, log)
    (run,) = re.findall(r'href="/flink/runs/(\d+)"><code>', (await person.get(first.headers["location"])).text)
    home = (await person.post(f"/flink/runs/{run}/incidents")).headers["location"]
    assert SECRET in (await person.get(f"{home}/recorded")).text
    made = await person.post(f"{home}/shares", {"lifetime": "1h"})
    (link,) = set(re.findall(r"/s/[\w-]+", made.text))
    front = await stranger.get(link)
    assert f'href="{link}/recorded"' in front.text
    pages = [f"{link}/recorded", *(f"{link}/recorded/events/{n}" for n in range(7)), f"{link}/recorded?q={SECRET}"]
    for page in pages:
        answer = await stranger.get(page)
        assert answer.status_code == 200
        assert SECRET not in answer.text.replace(f"q={SECRET}", ""), page
    told = Page(await stranger.get(f"{link}/recorded")).text
    assert "TOOL_REQUEST" in told
    assert "tool_call_failed" in told
    assert (await stranger.get(f"{link}/recorded/events/99")).status_code == 404
    # What an owner opens is open, and no more.
    named = await person.post(f"{home}/shares", {"lifetime": "1h", "reveal": "names"})
    (link,) = set(re.findall(r"/s/[\w-]+", named.text))
    told = Page(await stranger.get(f"{link}/recorded")).text
    assert f"CHAT_REQUEST {SECRET}" in told
    assert "errorMessage ‹" in told


async def test_a_log_says_which_lines_are_in_no_run(person: Browser) -> None:
    data = b"noise & <b>\n" + b"\n".join(traced_run("r", "k", 5, "x")) + b"\n"
    first = await person.post("/flink/import", {}, [("log", ("some.log", data))])
    log = first.headers["location"].rpartition("=")[2]
    told = Page(await person.get(f"/flink/logs/{log}")).text
    assert "1 line in no run" in told
    assert "noise & <b>" in told
