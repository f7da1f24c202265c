"""Asking for runs, and reading why they came out as they did: plan, story, misses, answers, what-if, comparison."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.incidents import service
from app.incidents.service import EvidenceFile, Incident, Report, Role, Store
from app.replay.verdict import LedgerEntry, Outcome, Verdict
from app.replay.whatif import waiting
from app.settings import Settings
from app.wire.records import ToolResult, serialize
from tests.golden.scenarios import scenario
from tests.waiting import PATIENCE_S
from tests.web.conftest import Browser
from tests.web.html import Page
from tests.web.test_pages import asked, long, made_up, opened, page, ran, report
from tests.web.work import claim, finish, work

A01, D01, U01, D28, I14 = (
    "a01_fraud_completed",
    "d01_intent_order",
    "u01_changed_tool_args",
    "d28_pending_resume_what_if",
    "i14_tool_answer_in_prompt",
)


@pytest.fixture
def settings(settings: Settings, tmp_path: Any) -> Settings:
    """More builds, for the scenarios of this file."""
    from app.settings import load
    from tests.web.conftest import TOKEN, configuration

    file = tmp_path / "hindcast.toml"
    file.write_text(configuration((A01, D01, U01, D28, I14)))
    environment = {"HINDCAST_TOKEN": TOKEN, "HINDCAST_DATABASE_URL": settings.database_url}
    return load(file, environment | {"HINDCAST_HOME": str(tmp_path)})


async def runs(store: Store, incident: Incident) -> list[service.Run]:
    async with store.read() as session:
        return await service.runs_of(session, incident)


# The plan ------------------------------------------------------------------------------------------------------------


async def plan(person: Browser, store: Store, name: str, level: str) -> Page:
    incident = await opened(store, name, level=level)
    return await page(person, f"/incidents/{incident.id}")


async def test_the_plan_is_told_before_a_run_starts(person: Browser, store: Store) -> None:
    shown = await plan(person, store, "m01_drift_pre_post", "bundle")
    assert "Post-image: exact as long as it did not read memory that was overwritten since." in shown.text
    assert "the one that the attempt obtained is captured: snapshot.pb" in shown.text
    assert "would make it exact a snapshot with counter 1" in shown.text
    assert "not compared outputs: no outputs stream is here" in shown.text
    fused = await plan(person, store, "m09_union_of_two_caches", "full")
    assert "all 64 that the attempt obtained are captured: 01_done.pb 64" in fused.text.replace("snapshots/", "")
    forward = await plan(person, store, "m22_chain3_forward", "full")
    assert "run forward from an empty key through 2 activations" in forward.text
    assert "(seq 0 start, completed at 2023-11-14 22:13:20.000Z;" in forward.text
    missing = await plan(person, store, "i03_evicted_by_later_seq", "bundle")
    assert "is not captured: the re-run stops where it asks for it" in missing.text


async def test_evidence_that_no_build_can_be_replayed_on_is_told_at_once(person: Browser, store: Store) -> None:
    shown = await plan(person, store, "b07_other_key_event", "bundle")
    assert "Every run of this evidence will say unusable." in shown.text
    assert "What to do: Hand in a snapshot and an envelope of one key." in shown.text


async def test_a_build_without_a_hook_that_the_recording_had_is_warned_of(
    person: Browser, store: Store, settings: Settings
) -> None:
    incident = await opened(store, A01)
    bare = settings.builds[0].model_copy(update={"decode": None})
    object.__setattr__(settings, "builds", (bare, *settings.builds[1:]))
    shown = await page(person, f"/incidents/{incident.id}")
    assert "names no decode, and the recording pipeline had one" in shown.text


# The story -----------------------------------------------------------------------------------------------------------


async def test_model_calls_tell_themselves_and_other_events_when_opened(person: Browser, store: Store) -> None:
    path = await ran(store, A01)
    shown = await page(person, path)
    assert "model saw user score t-1 hist(4242,5)" in shown.text
    assert "it said risk=0.93 41 + 7 tokens · from snapshot.pb · a cache hit" in shown.text
    assert "hist(4242,5) ran again" not in shown.text
    tool = await page(person, f"{path}/events/1")
    assert 'tool risk_lookup {"card":"4242"} returned hist(4242,5) ran again, for real' in tool.text
    memory = await page(person, f"{path}/events/6")
    assert "appends to memory recent added t-1" in memory.text
    assert "sets memory last_score before — after risk=0.93" in memory.text


async def test_values_of_the_first_divergence_are_marked_where_they_came_from(person: Browser, store: Store) -> None:
    path = await ran(store, U01, level="full")
    call = await page(person, f"{path}/events/4")
    assert "<mark>991000</mark>" in call.html


async def test_a_story_of_twenty_megabytes_leaves_the_page_small(person: Browser, store: Store) -> None:  # complaint 34
    cut = {"head": "x" * 1000, "bytes": 20_000_000, "sha256": "a" * 64}
    binary = {"hex": "ff" * 1000, "bytes": 20_000_000, "sha256": "b" * 64}
    told = [
        LedgerEntry(
            0, "model", {"cache_key": "c" * 64, "from_cache": True, "request": {"messages": ["m"]}, "response": cut}
        ),
        LedgerEntry(1, "model", {"cache_key": "d" * 64, "from_cache": True, "request": cut, "response": binary}),
        LedgerEntry(2, "tool", {"tool": "t", "arguments": "y" * 200_000, "value": "z" * 50_000, "outcome": "executed"}),
    ]
    made = replace(report(long(3, {0}), Outcome.DIVERGED), ledger=tuple(told))
    incident = await opened(store)
    run = await claim(store, (await asked(store, incident)).id)
    await finish(store, run, made)
    base = f"/incidents/{incident.id}/runs/1"
    for path in (base, f"{base}/events/0", f"{base}/events/1", f"{base}/events/2", f"{base}/ledger"):
        shown = await page(person, path)
        assert len(shown.html) < 300_000, path
    assert "20 000 000 bytes · sha256 aaaaaaaaaaaa…" in (await page(person, f"{base}/events/0")).text
    assert "0xffffffff" in (await page(person, f"{base}/events/1")).text
    whole = await person.get(f"{base}/ledger/2")
    assert json.loads(whole.text)["arguments"] == "y" * 200_000
    assert whole.headers["content-disposition"].startswith("attachment")
    assert (await person.get(f"{base}/ledger/9")).status_code == 404


async def test_a_ledger_reads_from_the_first_step_to_the_last(person: Browser, store: Store) -> None:
    path = await ran(store, "a30_exactly_64_calls")
    seen: list[str] = []
    here = f"{path}/ledger"
    while True:
        shown = await page(person, here)
        assert shown.elements <= 1_500
        seen += [ident for ident in shown.ids if re.fullmatch(r"s\d+", ident)]
        later = re.search(r'href="([^"]+)" rel="next">Later steps', shown.html)
        if later is None:
            break
        here = later[1]
    assert seen == [f"s{n}" for n in range(64)]
    lines = (await person.get(f"{path}/ledger.jsonl")).text.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["model"] * 64


async def test_a_ledger_that_was_cut_says_so(person: Browser, store: Store) -> None:
    entries = (LedgerEntry(0, "intent", {"tool": "pay", "args": "{}"}), LedgerEntry(None, "cut", {"entries": 12}))
    incident = await opened(store)
    run = await claim(store, (await asked(store, incident)).id)
    await finish(store, run, replace(report(long(1, set()), Outcome.REPRODUCED), ledger=entries))
    shown = await page(person, f"/incidents/{incident.id}/runs/1/ledger")
    assert "12 steps came after it was full" in shown.text


async def test_a_run_without_a_ledger_says_why(person: Browser, store: Store) -> None:
    path = await made_up(store, long(3, {1}))
    assert "This run keeps no ledger" in (await page(person, f"{path}/ledger")).text


async def test_what_the_agent_printed_stands_beside(person: Browser, store: Store) -> None:
    verdict = replace(report(long(1, set()), Outcome.REPRODUCED).verdict, replayed={"printed": "hello from the agent"})
    incident = await opened(store)
    run = await claim(store, (await asked(store, incident)).id)
    await finish(store, run, Report(verdict))
    assert "The agent printed hello from the agent" in (await page(person, f"/incidents/{incident.id}/runs/1")).text


# What is missing -----------------------------------------------------------------------------------------------------


# complaint 8
async def test_a_miss_shows_the_request_the_nearest_entry_and_the_part_that_differs(
    person: Browser, store: Store
) -> None:
    path = await ran(store, "i09_model_changed")
    shown = await page(person, path)
    assert "model was asked user explain t-1 é" in shown.text
    assert re.search(r"what differs model recorded risk-small- ?2 asked risk-small- ?3", shown.text)
    assert re.search(r"nearest recorded the response captured for request \w{8}… in snapshot\.pb", shown.text)
    link = next(link for link in shown.links if "/captured/" in link)
    captured = await page(person, link)
    assert "snapshot.pb · counter 1" in captured.text
    assert "✓ verified" in captured.text
    assert (await person.get(f"{link}/response")).content
    assert next(link for link in shown.links if "/evidence/" in link)
    assert "What the re-run did until it stopped tool risk_lookup" in shown.text


async def test_a_miss_without_a_known_part_says_what_can_be_known(person: Browser, store: Store) -> None:
    shown = await page(person, await ran(store, "i10_prompt_changed"))
    assert "what differs" not in shown.text
    assert "The attempt obtained it, and this code never asked for it." in shown.text
    none = await page(person, await ran(store, "i18_no_cache_in_snapshot"))
    assert "none: no captured response belongs to this attempt" in none.text


async def test_a_captured_response_that_is_not_there_is_404(person: Browser, store: Store) -> None:
    incident = await opened(store)
    assert (await person.get(f"/incidents/{incident.id}/captured/{'0' * 64}")).status_code == 404
    assert (await person.get(f"/incidents/{incident.id}/captured/../../x")).status_code in (404, 422)


# Reads that other builds vouch for -----------------------------------------------------------------------------------


DOUBT = {"read": "get('tier')", "why": "the key was written since", "vindicated": False, "proven": False}
PROVEN = {**DOUBT, "proven": True}


async def ended(store: Store, incident: Incident, verdict: Verdict, build: str = D01) -> None:
    run = await claim(store, (await asked(store, incident, build)).id)
    await finish(store, run, Report(verdict))


async def test_a_run_in_doubt_says_who_has_vouched_since_and_is_judged_again(person: Browser, store: Store) -> None:
    incident = await opened(store)
    base = f"/incidents/{incident.id}/runs"
    await ended(store, incident, Verdict(Outcome.IRREPRODUCIBLE, "in doubt", reads=(DOUBT,)))
    alone = await page(person, f"{base}/1")
    assert "get('tier'): the key was written since." in alone.text
    assert "Judge again" not in alone.text
    await ended(store, incident, Verdict(Outcome.REPRODUCED, "", reads=(PROVEN,)), U01)
    shown = await page(person, f"{base}/1")
    assert f"✓ run 2 of {U01} reproduced after reading it, and proved the value." in shown.text
    assert "✓ proven by what was recorded." in (await page(person, f"{base}/2")).text
    answer = await person.post(f"{base}/1/again")
    assert answer.headers["location"] == f"{base}/3"
    vindicated = {**DOUBT, "vindicated": True}
    again = (await runs(store, incident))[0]
    await finish(store, await claim(store, again.id), Report(Verdict(Outcome.DIVERGED, "", reads=(vindicated,))))
    found = await page(person, f"{base}/3")
    assert "that the state cannot vouch for by itself, each vouched for" in found.text
    assert "Judge again" not in found.text


async def test_what_is_not_as_in_production_is_the_first_suspect(person: Browser, store: Store) -> None:  # row 16
    incident = await opened(store)
    suspect = {
        "what": "package",
        "name": "pydantic",
        "here": "2.14",
        "production": "2.11",
        "text": "pydantic is 2.14 here",
    }
    code = {"build": D01, "files": "sha256:" + "a" * 64, "python": "3.11.7", "packages": {"pydantic": "2.14"}}
    suspects = [suspect, *({**suspect, "text": f"other {number} differs"} for number in range(6))]
    await ended(store, incident, Verdict(Outcome.DIVERGED, "It differs.", code={**code, "suspects": suspects}))
    shown = await page(person, f"/incidents/{incident.id}/runs/1")
    assert "First suspect: pydantic is 2.14 here." in shown.text
    assert "Also: other 0 differs." in shown.text
    assert "Also: 2 more packages have other versions." in shown.text
    assert "1, listed in the JSON" in shown.text
    await ended(store, incident, Verdict(Outcome.REPRODUCED, "", code={**code, "suspects": [suspect]}))
    fine = await page(person, f"/incidents/{incident.id}/runs/2")
    assert "First suspect" not in fine.text
    assert "pydantic is 2.14 here" in fine.text  # beside, among what ran


# Tool answers --------------------------------------------------------------------------------------------------------


def looked_up() -> dict[str, Any]:
    name = scenario(I14).bundle()[2].data.decode("latin-1").partition("tool-prompt ")[2]
    return {"tool": "lookup", "arguments": {"name": name}, "value": name.upper()}


async def test_supplied_answers_are_kept_with_the_run_and_told_apart(person: Browser, store: Store) -> None:
    incident = await opened(store, I14)
    base = f"/incidents/{incident.id}"
    text = "\n".join(json.dumps(one) for one in (looked_up(), {**looked_up(), "arguments": {"name": "x"}}))
    answer = await person.post(f"{base}/replays", {"build": I14, "tool_answers": text})
    assert answer.headers["location"] == f"{base}/runs/1"
    (run,) = await runs(store, incident)
    waiting_page = await page(person, f"{base}/runs/1")
    assert "the run has not ended" in waiting_page.text
    await work(store, run.id)
    shown = await page(person, f"{base}/runs/1")
    assert "= reproduced" in shown.text
    assert "✓ proven a recorded model request carries it" in shown.text
    assert "– not used no call of this tool with these arguments came" in shown.text
    assert "--tool-answers tool-answers.jsonl" in shown.text
    file = await person.get(f"{base}/runs/1/tool-answers.jsonl")
    assert json.loads(file.text.splitlines()[0]) == looked_up()
    story = await page(person, f"{base}/runs/1/events/1")
    assert "not run: the answer was supplied" in story.text


async def test_bad_answers_come_back_as_they_were_typed_with_what_is_wrong(person: Browser, store: Store) -> None:
    incident = await opened(store, I14)
    answer = await person.post(f"/incidents/{incident.id}/replays", {"build": I14, "tool_answers": '{"tool": "x"}'})
    assert answer.status_code == 422
    shown = Page(answer)
    assert "The tool answers cannot be used: answer 1 has no arguments and no value." in shown.text
    assert "Expected a JSON object" in shown.text
    assert "{&#34;tool&#34;: &#34;x&#34;}</textarea>" in shown.html
    assert f'value="{I14}" checked' in shown.html
    assert await runs(store, incident) == []


async def test_a_tool_that_cannot_run_confined_offers_to_take_its_answer(person: Browser, store: Store) -> None:
    from app.replay.verdict import Reason

    details = {"tool": "look", "arguments": '{"card": "4242"}'}
    reason = Reason("tool_confined", "The tool could not run confined.", "Hand in its answer.", details)
    incident = await opened(store)
    await ended(store, incident, Verdict(Outcome.IRREPRODUCIBLE, reason.text, reason=reason))
    base = f"/incidents/{incident.id}/runs"
    shown = await page(person, f"{base}/1")
    template = '{"tool": "look", "arguments": {"card": "4242"}, "value": null}'
    assert template.replace('"', "&#34;") in shown.html
    bad = await person.post(f"{base}/1/again", {"tool_answers": "{"})
    assert bad.status_code == 422
    assert "line 1 is not JSON" in Page(bad).text
    good = await person.post(f"{base}/1/again", {"tool_answers": template.replace("null", "1")})
    assert good.headers["location"] == f"{base}/2"
    async with store.read() as session:
        run = await service.get_run_by_number(session, incident, 2)
    assert run.tool_answers == [{"tool": "look", "arguments": {"card": "4242"}, "value": 1}]


# What if -------------------------------------------------------------------------------------------------------------


async def test_a_suspended_incident_offers_its_decisions(person: Browser, store: Store) -> None:
    incident = await opened(store, D28)
    base = f"/incidents/{incident.id}"
    shown = await page(person, base)
    tool, approval = waiting(scenario(D28).bundle())
    assert f"approval {approval.tool}" in shown.text
    assert shown.html.count('value="approve"') == 1
    assert shown.html.count('value="result"') == 1
    answer = await person.post(f"{base}/replays", {"build": D28, "decision": "reject", "intent": approval.intent})
    (run,) = await runs(store, incident)
    assert (run.kind, run.decision) == ("what-if", {"intent": approval.intent, "approved": False})
    await work(store, run.id)
    found = await page(person, answer.headers["location"])
    assert "▷ what-if" in found.text
    assert "Nothing was sent." in found.text
    assert "What would be emitted" in found.text
    assert f"--reject {approval.intent}" in found.text
    assert f"what if rejecting {approval.intent[:8]}…" in found.text
    listed = await page(person, base)
    assert "run 1 what-if" in listed.text
    assert f'value="{D28}" checked' in listed.html, "what was used last is offered first"
    fields = {"build": D28, "decision": "result", "intent": tool.intent, "status": "ERROR", "result": "no such account"}
    answer = await person.post(f"{base}/replays", fields)
    second = (await runs(store, incident))[0]
    await work(store, second.id)
    tried = await page(person, answer.headers["location"])
    assert "The result that is tried ERROR no such account" in tried.text
    assert "--result result.pb" in tried.text
    result = ToolResult.FromString((await person.get(f"{answer.headers['location']}/result.pb")).content)
    assert (result.intent_id, result.status, result.error_message) == (tool.intent, ToolResult.ERROR, "no such account")


async def test_a_decision_that_nothing_waits_for_is_refused(person: Browser, store: Store) -> None:
    incident = await opened(store, D28)
    base = f"/incidents/{incident.id}"
    for fields in (
        {"decision": "approve", "intent": "x"},
        {"decision": "result", "intent": "x", "status": "OK"},
        {"decision": "maybe", "intent": "x"},
    ):
        answer = await person.post(f"{base}/replays", {"build": D28, **fields})
        assert answer.status_code == 422, fields
        assert "refused" in Page(answer).ids
    status = {"decision": "result", "intent": waiting(scenario(D28).bundle())[0].intent, "status": "FINE"}
    assert "is no status of a result" in Page(await person.post(f"{base}/replays", {"build": D28, **status})).text
    assert await runs(store, incident) == []


async def test_nothing_is_offered_where_nothing_waits(person: Browser, store: Store) -> None:
    incident = await opened(store, A01)
    assert "What if" not in (await page(person, f"/incidents/{incident.id}")).text
    fields = {"build": A01, "decision": "approve", "intent": "x"}
    refused = Page(await person.post(f"/incidents/{incident.id}/replays", fields))
    assert "no snapshot is suspended" in refused.text


# Several builds ------------------------------------------------------------------------------------------------------


async def test_several_builds_run_at_once_and_are_compared(person: Browser, store: Store) -> None:
    incident = await opened(store, U01, level="full")
    base = f"/incidents/{incident.id}"
    answer = await person.post(f"{base}/replays", {"build": [U01, A01]})
    path = answer.headers["location"]
    assert path == f"{base}/compare?runs=1,2"
    waits = await page(person, path)
    assert "Not all have ended." in waits.text
    assert 'sse-connect="' in waits.html
    for run in reversed(await runs(store, incident)):
        await work(store, run.id)
    shown = await page(person, path)
    assert "sse-connect" not in shown.html
    assert "≠ diverged" in shown.text
    assert "= reproduced" in shown.text
    assert "= as recorded" in shown.text
    assert "<ins>991000</ins>" in shown.html  # the changed argument, in the intents
    assert "<del>991000</del>" in shown.html  # and word by word between the two ledgers
    assert "<ins>991</ins>" in shown.html
    assert shown.elements <= 1_500
    assert f"{base}/runs/1?at=4#e4" in shown.links
    listed = await page(person, base)
    assert "Compare the ticked runs" in listed.text


async def test_one_build_goes_straight_to_its_run_and_none_is_refused(person: Browser, store: Store) -> None:
    incident = await opened(store)
    base = f"/incidents/{incident.id}"
    one = await person.post(f"{base}/replays", {"build": [D01, D01]})
    assert one.headers["location"] == f"{base}/runs/1"
    none = await person.post(f"{base}/replays")
    assert none.status_code == 422
    assert "No build is chosen" in Page(none).text
    unknown = await person.post(f"{base}/replays", {"build": [D01, "other"]})
    assert unknown.status_code == 422
    assert len(await runs(store, incident)) == 1  # all of them, or none


@pytest.mark.parametrize(
    "query", ["", "?runs=1", "?runs=1,1", "?runs=1,x", "?runs=1,2,3,4,5,6,7", "?runs=0,1", "?runs=-1,1"]
)
async def test_what_cannot_be_compared_is_told(person: Browser, store: Store, query: str) -> None:
    incident = await opened(store)
    await asked(store, incident)
    answer = await person.get(f"/incidents/{incident.id}/compare{query}")
    assert answer.status_code == 422
    assert "two to 6 runs of this incident" in Page(answer).text
    assert (await person.get(f"/incidents/{incident.id}/compare?runs=1,99")).status_code == 404


async def test_more_than_two_runs_are_compared_pair_by_pair(person: Browser, store: Store) -> None:
    incident = await opened(store, U01, level="full")
    for build in (U01, A01, D01):
        await work(store, (await asked(store, incident, build)).id)
    path = f"/incidents/{incident.id}/compare?runs=1&runs=2&runs=3"
    shown = await page(person, path)
    assert "Step by step: run 1 and run 2" in shown.text
    assert "Or runs 1 and 3, runs 2 and 3" in shown.text
    # The boxes of a list that begins with the newest: what was asked for first stands on the left all the same.
    ticked = await page(person, f"/incidents/{incident.id}/compare?runs=3&runs=2&runs=1")
    assert "Step by step: run 1 and run 2" in ticked.text
    other = await page(person, f"{path}&between=2,3")
    assert "Step by step: run 2 and run 3" in other.text
    equal = await page(person, f"/incidents/{incident.id}/compare?runs=1,2&start=5000")
    assert equal.status == 200


async def test_runs_that_say_the_same_are_equal(person: Browser, store: Store) -> None:
    incident = await opened(store, A01)
    for _ in range(2):
        await work(store, (await asked(store, incident, A01)).id)
    shown = await page(person, f"/incidents/{incident.id}/compare?runs=1,2")
    assert "All 7 steps say the same" in shown.text


async def test_two_hostile_ledgers_are_compared_in_bounded_time_and_space(person: Browser, store: Store) -> None:
    incident = await opened(store)
    for letter in "ab":
        words = f" {letter} ".join(str(n) for n in range(700))
        told = tuple(LedgerEntry(0, "tool", {"tool": f"t{n}", "arguments": words, "value": words}) for n in range(200))
        run = await claim(store, (await asked(store, incident)).id)
        await finish(store, run, replace(report(long(1, set()), Outcome.REPRODUCED), ledger=told))
    async with asyncio.timeout(PATIENCE_S):
        shown = await page(person, f"/incidents/{incident.id}/compare?runs=1,2")
    assert "200 steps · 200 differ" in shown.text
    assert shown.elements <= 2_500
    assert "Later steps" in shown.text


# Scripts -------------------------------------------------------------------------------------------------------------


async def imported(api: httpx.AsyncClient, name: str) -> str:
    files = [(str(file.role), (file.name, file.data)) for file in scenario(name).bundle()]
    answer = await api.post("/api/v1/incidents/import", files=files)
    return str(answer.json()["id"])


async def test_a_script_supplies_answers_and_reads_the_ledger(api: httpx.AsyncClient, store: Store) -> None:
    incident = await imported(api, I14)
    body = {"build": I14, "tool_answers": [looked_up()]}
    run = (await api.post(f"/api/v1/incidents/{incident}/replays", json=body)).json()
    assert (run["kind"], run["decision"]) == ("replay", None)
    empty = await api.get(f"/api/v1/replays/{run['id']}/ledger")
    assert (empty.status_code, empty.text) == (200, "")
    made = await work(store, run["id"])
    found = (await api.get(f"/api/v1/replays/{run['id']}")).json()
    assert found["verdict"]["served"]["supplied"][0]["proven"] is True
    lines = (await api.get(f"/api/v1/replays/{run['id']}/ledger")).text.splitlines()
    assert [json.loads(line) for line in lines] == [json.loads(json.dumps(e.as_json())) for e in made.ledger]


async def test_a_script_tries_decisions(api: httpx.AsyncClient, store: Store) -> None:
    incident = await imported(api, D28)
    tool, approval = waiting(scenario(D28).bundle())
    result = base64.b64encode(serialize(ToolResult(intent_id=tool.intent, status=ToolResult.OK))).decode()
    for decision in ({"approve": approval.intent}, {"reject": approval.intent}, {"result": result}):
        answer = await api.post(f"/api/v1/incidents/{incident}/replays", json={"build": D28, "decision": decision})
        assert answer.status_code == 202, answer.text
        assert answer.json()["kind"] == "what-if"
        await work(store, answer.json()["id"])
        found = (await api.get(f"/api/v1/replays/{answer.json()['id']}")).json()
        assert (found["outcome"], found["exit_code"]) == ("what-if", 4)


async def test_a_script_asks_for_several_builds_at_once(api: httpx.AsyncClient, store: Store) -> None:
    incident = await imported(api, A01)
    asked = await api.post(f"/api/v1/incidents/{incident}/replays", json={"builds": [U01, A01, U01]})
    assert asked.status_code == 202, asked.text
    assert asked.json()["compare"] == asked.headers["location"] == f"/incidents/{incident}/compare?runs=1,2"
    found = {}
    for run in asked.json()["replays"]:
        await work(store, run["id"])
        told = (await api.get(f"/api/v1/replays/{run['id']}")).json()
        found[told["build"]] = told["outcome"]
    assert found == {A01: "reproduced", U01: "diverged"}
    for body in ({}, {"build": A01, "builds": [U01]}, {"builds": []}, {"builds": [A01] * 7}):
        refused = await api.post(f"/api/v1/incidents/{incident}/replays", json=body)
        assert refused.status_code == 422, body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tool_answers": [{"tool": "x"}]}, "answer 1 has no arguments and no value"),
        ({"tool_answers": "x"}, "tool_answers"),
        ({"decision": {"approve": "x", "reject": "y"}}, "it names no single decision"),
        ({"decision": {"approve": "x"}}, "no snapshot waits for intent"),
        ({"decision": {"result": "!"}}, "the result is no base64"),
        ({"more": 1}, "more"),
    ],
)
async def test_what_a_script_gets_wrong_is_named(api: httpx.AsyncClient, body: dict[str, Any], words: str) -> None:
    incident = await imported(api, D28)
    answer = await api.post(f"/api/v1/incidents/{incident}/replays", json={"build": D28, **body})
    assert answer.status_code == 422
    assert words in answer.json()["what"]
    assert answer.json()["expected"]
    assert (await api.get(f"/api/v1/incidents/{incident}")).json()["replays"] == []


async def test_nothing_of_a_ledger_becomes_markup(person: Browser, store: Store) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\0\ud800"
    told = tuple(
        LedgerEntry(0, kind, body)
        for kind, body in (
            (
                "model",
                {
                    "cache_key": evil,
                    "from_cache": True,
                    "request": {"messages": [{"role": evil, "content": evil}], "model": evil},
                    "response": evil,
                    "decoded": {"text": evil},
                },
            ),
            ("tool", {"tool": evil, "arguments": evil, "error": evil, "outcome": evil}),
            ("memory", {"operation": evil, "key": evil, "value": evil}),
            ("memory", {"operation": "set", "key": evil, "before": evil, "after": [evil]}),
            ("intent", {"tool": evil, "args": evil, "intent_id": evil}),
            (evil, {evil: evil}),
        )
    )
    served = {
        "answers": [{"cache_key": evil, "source": evil}],
        "supplied": [{"tool": evil, "arguments": evil, "proven": True}],
    }
    verdict = replace(report(long(1, {0})).verdict, served=served)
    async with store.write() as session:
        files = [EvidenceFile(Role(f.role), f"{evil}/x", f.data) for f in scenario(D28).bundle()]
        incident = await service.import_evidence(session, files, who=evil, title=evil)
    for _ in range(2):
        run = await claim(store, (await asked(store, incident)).id)
        await finish(store, run, replace(Report(verdict, tuple(long(1, {0}))), ledger=told))
    base = f"/incidents/{incident.id}"
    for path in (
        base,
        f"{base}/runs/1",
        f"{base}/runs/1/ledger",
        f"{base}/runs/1/events/0",
        f"{base}/compare?runs=1,2",
    ):
        shown = await page(person, path)
        assert "<script>alert" not in shown.html
        assert "<img" not in shown.html
        assert "alert(1)" in shown.text
