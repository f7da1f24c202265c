"""What people who do this job complained about in neighbouring tools, where it is the pages that must do better."""

from __future__ import annotations

import json

import httpx
import pytest

from app.incidents.service import Store
from app.replay.render import text
from tests.web.conftest import Browser
from tests.web.test_pages import D01, U01, asked, opened, page
from tests.web.work import work


# complaint 1: the difference is data, and JSON, terminal and page are drawings of it
@pytest.mark.parametrize("name", [D01, U01])
async def test_one_difference_is_told_alike_as_data_in_a_terminal_and_on_the_page(
    person: Browser, api: httpx.AsyncClient, store: Store, name: str
) -> None:
    incident = await opened(store, name, level="full")
    run = await asked(store, incident, name)
    report = await work(store, run.id)
    told = (await api.get(f"/api/v1/replays/{run.id}")).json()["verdict"]
    assert told == json.loads(json.dumps(report.verdict.as_json()))
    terminal = text(report)
    assert told["differences"]
    for difference in told["differences"]:
        assert difference.keys() >= {
            "ordinal", "event_type", "span_id", "step_index", "field", "recorded", "replayed", "class",
        }  # fmt: skip
        at = difference["ordinal"]
        shown = await page(person, f"/incidents/{incident.id}/runs/1/events/{at}")
        assert difference["event_type"] in shown.text
        short = difference["field"].removeprefix("attributes.").removeprefix("beam_agents.")
        assert not short or short in shown.text, short
        for side in ("recorded", "replayed"):
            value = difference[side]
            if value is not None and value.isalnum():
                assert value in shown.text, (at, side, value)
    first = told["first_divergence"]
    assert f"event {first}" in terminal
    assert f"event {first}" in (await page(person, f"/incidents/{incident.id}/runs/1")).text
    assert first == min(item["ordinal"] for item in told["differences"])


# complaint 11: what was served from where, what ran again, what was refused; the provider is never asked
async def test_a_run_says_what_was_served_and_that_no_provider_was_asked(
    person: Browser, api: httpx.AsyncClient, store: Store
) -> None:
    incident = await opened(store, U01)
    run = await asked(store, incident, U01)
    await work(store, run.id)
    served = (await api.get(f"/api/v1/replays/{run.id}")).json()["verdict"]["served"]
    assert served["provider_calls"] == 0
    shown = await page(person, f"/incidents/{incident.id}/runs/1")
    for name in ("cache_hits", "recorded_answers", "provider_calls", "tools_reexecuted"):
        assert f"{name.replace('_', ' ')} {served[name]}" in shown.text
    assert served["cache_hits"] + served["recorded_answers"] == sum(
        answer.get("count", 1) for answer in served["answers"]
    )


# complaints 12 and 48: both sides one click away, the record always left, and a side that is missing says so
async def test_both_sides_are_one_click_from_the_list_and_the_left_one_is_the_record(
    person: Browser, store: Store
) -> None:
    incident = await opened(store, D01)
    await work(store, (await asked(store, incident, D01)).id)
    path = f"/incidents/{incident.id}/runs/1"
    assert path in (await page(person, "/")).links
    shown = await page(person, f"{path}?folds=open")
    heads = ("Recorded by the pipeline", "Replayed now")
    assert shown.html.index(heads[0]) < shown.html.index(heads[1])
    rows = shown.html.split("<tbody")[2:]
    for row in rows:
        if "recorded: " in row and "replayed: " in row:
            assert row.index("recorded: ") < row.index("replayed: ")
    incident = await opened(store, D01)
    await asked(store, incident, D01)
    waiting = await page(person, f"/incidents/{incident.id}/runs/1")
    assert "Waiting for a worker" in waiting.text, "an empty state says what is missing and what comes next"


# complaints 18 and 20: what is downloaded opens anywhere as the same incident, and downloads again as the same bytes
async def test_a_bundle_is_the_same_everywhere(person: Browser, api: httpx.AsyncClient, store: Store) -> None:
    incident = await opened(store, U01, level="full")
    page_bytes = (await person.get(f"/incidents/{incident.id}/bundle.zip")).content
    script_bytes = (await api.get(f"/api/v1/incidents/{incident.id}/bundle.zip")).content
    assert page_bytes == script_bytes
    answer = await api.post("/api/v1/incidents/import", files={"bundle": ("b.zip", page_bytes)})
    again = answer.json()["id"]
    assert (await person.get(f"/incidents/{again}/bundle.zip")).content == page_bytes
    ours, theirs = await page(person, f"/incidents/{incident.id}"), await page(person, f"/incidents/{again}")
    assert "imported from a bundle" in theirs.text
    for words in ("card-4242", "Evidence", "Replay"):
        assert words in ours.text
        assert words in theirs.text
