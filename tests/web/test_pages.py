"""The pages as they are served: what they say in every state, and that nothing in them comes from elsewhere."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy.event

from app.incidents import service
from app.incidents.service import EvidenceFile, Incident, Report, Role, Run, Store
from app.replay import compare
from app.replay.events import Event
from app.replay.verdict import FieldPair, FieldState, Outcome, Row, RowState, Verdict
from tests.golden.scenarios import scenario
from tests.web.conftest import Browser
from tests.web.html import Page
from tests.web.work import claim, finish, work

A01, D01, U01 = "a01_fraud_completed", "d01_intent_order", "u01_changed_tool_args"


async def opened(store: Store, name: str = D01, *, level: str = "bundle", title: str | None = None) -> Incident:
    async with store.write() as session:
        return await service.import_evidence(session, scenario(name).files(level), who="ada", title=title)


async def asked(store: Store, incident: Incident, build: str = D01) -> Run:
    async with store.write() as session:
        return await service.request_replay(session, incident, build, who="ada", known=[build])


async def ran(store: Store, name: str, *, level: str = "bundle") -> str:
    """Replay a scenario with its own build; returns the address of its run."""
    incident = await opened(store, name, level=level)
    run = await asked(store, incident, name)
    await work(store, run.id)
    return f"/incidents/{incident.id}/runs/1"


async def page(person: Browser, path: str, status: int = 200) -> Page:
    answer = await person.get(path)
    assert answer.status_code == status, answer.text[:400]
    return Page(answer)


def event(n: int) -> Event:
    return Event("TOOL_CALL", "look", "", n, f"{n:016x}", 1000 + n, {"x.name": "look"})


def report(rows: list[Row], outcome: Outcome = Outcome.DIVERGED) -> Report:
    first = compare.first_divergence(rows)
    verdict = Verdict(
        outcome,
        "made up",
        counts=compare.counts(rows),
        first_divergence=None if first is None else first.ordinal,
        differences=tuple(compare.differences(rows)),
        normalised=tuple(compare.normalised(rows)),
    )
    return Report(verdict, tuple(rows))


async def made_up(store: Store, rows: list[Row], outcome: Outcome = Outcome.DIVERGED) -> str:
    incident = await opened(store)
    run = await claim(store, (await asked(store, incident)).id)
    await finish(store, run, report(rows, outcome))
    return f"/incidents/{incident.id}/runs/1"


def long(count: int, different: set[int]) -> list[Row]:
    changed = (FieldPair("args.amount", "4900", "49", FieldState.CHANGED),)
    return [
        Row(n, RowState.CHANGED, compare.TRACE, event(n), event(n), changed)
        if n in different
        else Row(n, RowState.EQUAL, compare.TRACE, event(n), event(n))
        for n in range(count)
    ]


async def test_an_empty_console_says_what_to_do(person: Browser) -> None:
    empty = await page(person, "/")
    assert "No incident yet" in empty.text
    assert "/import" in empty.links
    assert "hindcast replay --snapshot" in empty.text


async def test_the_list_shows_incidents_with_their_latest_run(person: Browser, store: Store) -> None:
    incident = await opened(store, title="Hold before notify")
    await work(store, (await asked(store, incident)).id)
    await opened(store, "b07_other_key_event")
    listed = await page(person, "/")
    assert "Hold before notify ≠ diverged" in listed.text
    assert "not replayed" in listed.text
    assert "the envelope is of key" in listed.text
    assert f"/incidents/{incident.id}/runs/1" in listed.links
    assert (await person.get("/incidents")).headers["location"] == "/"


async def test_an_incident_shows_its_key_clock_evidence_and_builds(person: Browser, store: Store) -> None:
    incident = await opened(store, level="full")
    shown = await page(person, f"/incidents/{incident.id}")
    for text in ("card-4242", b"card-4242".hex(), "2023-11-14 22:13:21.000Z", "completed", "start"):
        assert text in shown.text
    assert '<time datetime="2023-11-14T22:13:21.000Z">' in shown.html
    async with store.read() as session:
        evidence = await service.evidence_of(session, incident)
    for file in evidence:
        assert file.sha256[:12] in shown.text
        assert f'data-copy="{file.sha256}"' in shown.html
        assert f"/incidents/{incident.id}/evidence/{file.id}" in shown.links
    assert re.search(rf'name="build" value="{D01}" checked> <code>{D01}</code> <span class="dim">live at', shown.html)
    assert "Exact: the state that the attempt ran from is known." in shown.text
    assert "Not replayed yet" in shown.text


async def test_evidence_downloads_byte_for_byte(person: Browser, store: Store) -> None:
    incident = await opened(store)
    for file, sent in zip(await _evidence(store, incident), scenario(D01).bundle(), strict=True):
        answer = await person.get(f"/incidents/{incident.id}/evidence/{file.id}")
        assert answer.content == sent.data
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["content-type"] == "application/octet-stream"
    other = await opened(store)
    assert (await person.get(f"/incidents/{other.id}/evidence/{file.id}")).status_code == 404


async def _evidence(store: Store, incident: Incident) -> list[Any]:
    async with store.read() as session:
        return await service.evidence_of(session, incident)


async def test_the_button_queues_a_run_and_its_page_follows_it(person: Browser, store: Store) -> None:
    incident = await opened(store)
    answer = await person.post(f"/incidents/{incident.id}/replays", {"build": D01})
    assert answer.status_code == 303
    path = answer.headers["location"]
    waiting = await page(person, path)
    assert "queued" in waiting.text
    assert 'sse-connect="/incidents/' in waiting.html
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in waiting.html
    assert "every 5s" in waiting.html
    async with store.read() as session:
        (run,) = await service.runs_of(session, incident)
    await claim(store, run.id)
    assert "running" in (await page(person, path)).text
    assert 'sse-connect="' in (await person.get(f"/incidents/{incident.id}")).text
    unknown = await person.post(f"/incidents/{incident.id}/replays", {"build": "../../evil"})
    assert unknown.status_code == 422
    assert "No build is called" in Page(unknown).text


@contextmanager
def counted(store: Store) -> Iterator[list[str]]:
    """The statements that are sent in the block; not those of what goes on in the background all the time."""
    sent: list[str] = []
    background = asyncio.all_tasks() - {asyncio.current_task()}

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if asyncio.current_task() not in background:
            sent.append(statement)

    sqlalchemy.event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sqlalchemy.event.remove(store.engine.sync_engine, "before_cursor_execute", note)


async def test_what_a_run_asks_of_the_database_does_not_grow_with_the_runs_before_it(
    person: Browser, store: Store
) -> None:
    """Somebody waits for each statement: a run that reproduced needs its row, its events and its ledger."""
    incident = await opened(store, A01)
    asking, drawing = [], []
    for number in (1, 2, 3):
        with counted(store) as sent:
            await person.post(f"/incidents/{incident.id}/replays", {"build": A01})
        asking.append(len(sent))
        run = next(run for run in await _runs(store, incident) if run.number == number)
        await work(store, run.id)
        with counted(store) as sent:
            shown = await page(person, f"/incidents/{incident.id}/runs/{number}")
        assert "reproduced" in shown.text
        drawing.append(len(sent))
        assert not [statement for statement in sent if "verdict" in statement and "incidents" not in statement]
    assert asking == [7] * 3, "the incident; room, lock, run, job, audit entry; how it stands"
    assert drawing == [5] * 3, "the run; audit entry; events; ledger twice"


async def _runs(store: Store, incident: Incident) -> list[Run]:
    async with store.read() as session:
        return await service.runs_of(session, incident)


async def test_a_diverged_run_names_the_first_divergence_and_links_to_it(person: Browser, store: Store) -> None:
    path = await ran(store, U01, level="full")
    shown = await page(person, path)
    assert "≠ diverged" in shown.text
    first = "First divergence at event 4, INTENT_EMITTED TOOL hold_txn, args.amount: recorded 991, replayed 991000."
    assert first in shown.text
    assert f"{path}?at=4#e4" in shown.links
    assert "<del>991</del>" in shown.html
    assert "<ins>991000</ins>" in shown.html
    assert "7 events · 4 equal · 2 normalised · 1 changed" in shown.text
    assert "sse-connect" not in shown.html
    assert "hindcast replay" in shown.text
    assert f"--bundle hindcast-{path.split('/')[2]}.zip" in shown.text


# complaint 2
async def test_every_side_carries_its_word_and_recorded_is_left(person: Browser, store: Store) -> None:
    shown = await page(person, await ran(store, U01, level="full"))
    for line in re.findall(r'<tbody class="stop.*?</tbody>', shown.html, re.DOTALL):
        words = re.findall(r'<span class="sr">(recorded|replayed)[:,]', line)
        assert words[0] == "recorded"
        assert words.count("recorded") == words.count("replayed")
    assert shown.html.index("Recorded by the pipeline") < shown.html.index("Replayed now")


async def test_normalised_values_are_marked_with_both_sides(person: Browser, store: Store) -> None:
    shown = await page(person, await ran(store, D01))
    boxes = re.findall(
        r'class="norm" title="([^"]+): (\w+) value, normalised, expected to differ">\w+ (\w+)<', shown.html
    )
    assert ("beam_agents.cache_hit", "recorded", "false") in boxes
    assert ("beam_agents.cache_hit", "replayed", "true") in boxes
    assert "a closed list" in shown.text.lower()


async def test_a_cause_is_named_and_its_consequences_are_folded(person: Browser, store: Store) -> None:
    shown = await page(person, await ran(store, D01))
    assert "1 of them follows from this one" in shown.text
    assert "follows from event 4" in shown.text
    assert re.search(r"follows from <a[^>]*>event 4</a>: intent_id, step_index, span_id</div>", shown.html)


@pytest.mark.parametrize(
    ("name", "word", "sentence"),
    [
        ("a01_fraud_completed", "reproduced", "The same run again"),
        ("i09_model_changed", "irreproducible", "Something the run needs was not kept"),
    ],
)
async def test_verdicts_have_a_plain_sentence(
    person: Browser, store: Store, name: str, word: str, sentence: str
) -> None:
    shown = await page(person, await ran(store, name))
    assert word in shown.text
    assert sentence in shown.text
    assert word == "reproduced" or "What to do:" in shown.text
    assert word == "reproduced" or "No timeline" in shown.text


async def test_what_has_not_run_is_not_a_difference(person: Browser, store: Store) -> None:
    rows = [Row(0, RowState.REPLAYED_ONLY, compare.TRACE, None, event(0))]
    shown = await page(person, await made_up(store, rows, Outcome.WHAT_IF))
    assert "This has not happened yet" in shown.text
    assert 'class="uncompared"' in shown.html


async def test_ends_without_a_verdict_say_whose_fault_it_is(person: Browser, store: Store) -> None:
    incident = await opened(store)
    base = f"/incidents/{incident.id}/runs/1"
    run = await claim(store, (await asked(store, incident)).id)
    async with store.write() as session:
        await service.fail_run(session, run.id, run.attempt, "Traceback <b>\nKeyError: 'x'")
    failed = await page(person, base)
    assert "Our fault" in failed.text
    assert "KeyError: 'x'" in failed.text
    assert "<b>\n" not in failed.html
    assert (await person.post(f"{base}/retry")).headers["location"] == base
    assert "queued" in (await page(person, base)).text
    assert (await person.post(f"{base}/cancel")).status_code == 303
    assert "Somebody ended it" in (await page(person, base)).text
    again = await person.post(f"{base}/cancel")
    assert again.status_code == 409
    assert "cancelled" in Page(again).text


async def test_a_lost_run_can_be_started_again(person: Browser, store: Store) -> None:
    incident = await opened(store)
    run = await asked(store, incident)
    async with store.write() as session:
        await service.claim_run(session, run.id, worker="gone:1", lease_s=-1)
        assert await service.sweep_lost(session) == [run.id]
    shown = await page(person, f"/incidents/{incident.id}/runs/1")
    assert "Its worker died" in shown.text
    assert "Run again" in shown.text
    assert "lost" in (await page(person, f"/incidents/{incident.id}")).text


# complaints 34, 37, 38: bounded pages, whatever the run holds
async def test_ten_thousand_events_are_read_in_windows(person: Browser, store: Store) -> None:
    path = await made_up(store, long(10_000, {4213, 4300, 9000}))
    first = await page(person, path)
    assert "10 000 events" in first.text
    assert "200 equal events (TOOL_CALL ×200)" in first.text
    assert "rows 0–199 of 10 000" in first.text
    assert len(first.html) < 60_000
    around = await page(person, f"{path}?at=4213")
    assert {"e4213"} <= set(around.ids)
    assert f'data-next-difference="{path}?at=9000#e9000"' in around.html
    assert 'data-previous-difference=""' in around.html
    assert f"{path}?start=" in " ".join(around.links)
    some = await page(person, f"{path}?show=differences")
    assert [ident for ident in some.ids if re.fullmatch(r"e\d+", ident)] == ["e4213", "e4300", "e9000"]
    beyond = await page(person, f"{path}?at=999999")
    assert beyond.status == 200


def lines(shown: Page) -> list[int]:
    return [int(ident[1:]) for ident in shown.ids if re.fullmatch(r"e\d+", ident)]


def hostile(count: int) -> list[Row]:
    """Rows of which every one differs in forty fields, each in a hundred places."""
    pieces = [str(n) for n in range(100)]
    one, other = " a ".join(pieces), " b ".join(pieces)
    fields = tuple(FieldPair(f"args.f{n}", one, other, FieldState.CHANGED) for n in range(40))
    return [Row(n, RowState.CHANGED, compare.TRACE, event(n), event(n), fields) for n in range(count)]


# complaint 46: no piece is large, whatever it holds
@pytest.mark.parametrize("query", ["folds=open", "folds=open&view=unified", "at=500&folds=open", "end=900&folds=open"])
@pytest.mark.parametrize("kind", ["equal", "some", "hostile"])
async def test_a_page_has_fifteen_hundred_elements_at_most(
    person: Browser, store: Store, kind: str, query: str
) -> None:
    rows = hostile(1_000) if kind == "hostile" else long(1_000, set(range(0, 1_000, 3)) if kind == "some" else set())
    path = await made_up(store, rows)
    shown = await page(person, f"{path}?{query}")
    assert shown.elements <= 1_500
    assert len(lines(shown)) >= (1 if kind == "hostile" else 20)
    assert ("at" not in query) or 500 in lines(shown)
    assert ("end" not in query) or lines(shown)[-1] == 899


async def test_windows_lead_through_a_timeline_without_gap_or_overlap(person: Browser, store: Store) -> None:
    path = await made_up(store, long(260, set(range(0, 260, 3))))
    seen: list[int] = []
    here = f"{path}?folds=open"
    while True:
        shown = await page(person, here)
        seen += lines(shown)
        later = re.search(r'<a href="([^"]+)" rel="next">later</a>', shown.html)
        if later is None:
            break
        here = later[1].replace("&amp;", "&")
    assert seen == list(range(260))
    back: list[int] = []
    while True:
        shown = await page(person, here)
        back = lines(shown) + back
        earlier = re.search(r'<a href="([^"]+)" rel="prev">earlier</a>', shown.html)
        if earlier is None:
            break
        here = earlier[1].replace("&amp;", "&")
    assert back == list(range(260))


async def test_filters_stand_in_the_address_and_every_link_keeps_them(person: Browser, store: Store) -> None:
    path = await made_up(store, [*long(300, {7}), *_others(300)])
    shown = await page(person, f"{path}?type=LLM_CALL&q=needle&view=unified")
    assert lines(shown) == [303]
    assert "1 of 310 events match" in shown.text
    assert "<option selected>LLM_CALL</option>" in shown.html
    assert 'name="q" value="needle"' in shown.html
    for link in shown.links:
        if link.startswith(f"{path}?") and "at=" in link and "#e303" in link:
            assert "type=LLM_CALL" in link
            assert "view=unified" in link
    nothing = await page(person, f"{path}?surface=memory+after")
    assert "No event is like that" in nothing.text
    assert "0 of 310 events match" in nothing.text
    both = await page(person, f"{path}?type=LLM_CALL&type=TOOL_CALL&show=differences")
    assert lines(both) == [7]


def _others(start: int) -> list[Row]:
    made = []
    for n in range(start, start + 10):
        one = Event("LLM_CALL", "m", "", n, attributes={"x.said": "needle" if n == 303 else "hay"})
        made.append(Row(n, RowState.EQUAL, compare.TRACE, one, one))
    return made


async def test_a_fold_opens_by_its_link(person: Browser, store: Store) -> None:
    path = await made_up(store, long(12, {6}))
    folded = await page(person, path)
    assert "6 equal events (TOOL_CALL ×6)" in folded.text
    assert "5 equal events" in folded.text
    inside = await page(person, f"{path}?unfold=9")  # a link from another window may name any event of the fold
    assert {"e7", "e11", "f0"} <= set(inside.ids)
    opened_fold = await page(person, f"{path}?unfold=7")
    assert "6 equal events" in opened_fold.text
    assert {"e7", "e11", "f0"} <= set(opened_fold.ids)


async def test_a_huge_value_is_a_head_and_a_download(person: Browser, store: Store) -> None:
    huge = "x" * 20_000_000
    fields = (FieldPair("output", huge, huge + "y", FieldState.CHANGED),)
    row = Row(0, RowState.CHANGED, compare.TRACE, event(0), event(0), fields)
    path = await made_up(store, [row])
    for where in (path, f"{path}/events/0"):
        shown = await page(person, where)
        assert len(shown.html) < 300_000
        assert "20 000 000 characters" in shown.text
    link = f"{path}/value?ordinal=0&side=replayed&field=output"
    assert link in shown.links
    whole = await person.get(link)
    assert whole.text == huge + "y"
    assert whole.headers["content-disposition"].startswith("attachment")
    assert (await person.get(f"{path}/value?ordinal=0&side=other&field=output")).status_code == 404


async def test_an_event_has_a_page_with_every_field(person: Browser, store: Store) -> None:
    path = await ran(store, U01, level="full")
    shown = await page(person, f"{path}/events/4")
    for name in ("args.amount", "args_json", "intent_id", "trace_id", "start_ms"):
        assert name in shown.text
    assert 'title="attributes.beam_agents.intent_id">intent_id<' in shown.html
    assert "fields" in shown.ids
    assert f"{path}?at=4#e4" in shown.links
    assert (await person.get(f"{path}/events/99")).status_code == 404
    assert (await person.get(f"{path}/events/-1")).status_code == 422


async def test_nothing_of_a_record_becomes_markup(person: Browser, store: Store) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\0\ud800"
    hostile = Event(evil, evil, evil, 0, evil, 0, {evil: evil}, {evil: evil}, {evil: evil})
    changed = Event(evil, evil, evil, 0, evil, 0, {evil: evil}, {evil: evil}, {evil: "x"})
    fields = (FieldPair(evil, evil, evil + "x", FieldState.CHANGED),)
    row = Row(0, RowState.CHANGED, evil, hostile, changed, fields)
    verdict = replace(
        report([row]).verdict,
        headline=evil,
        notes=(evil,),
        served={evil: evil, "list": [{evil: evil}]},
        plan={evil: {evil: evil}},
    )
    async with store.write() as session:
        files = [EvidenceFile(file.role, f"{evil}/x", file.data) for file in scenario(D01).bundle()]
        incident = await service.import_evidence(session, files, who=evil, title=evil)
    run = await claim(store, (await asked(store, incident)).id)
    await finish(store, run, Report(verdict, (row,)))
    base = f"/incidents/{incident.id}"
    for path in ("/", base, f"{base}/runs/1", f"{base}/runs/1/events/0"):
        shown = await page(person, path)
        assert "<script>alert" not in shown.html
        assert "<img" not in shown.html
        assert "alert(1)" in shown.text
    file = (await _evidence(store, incident))[0]
    assert (await person.get(f"{base}/evidence/{file.id}")).status_code == 200


async def test_missing_things_are_404_with_a_way_back(person: Browser, store: Store) -> None:
    incident = await opened(store)
    for path in (
        "/nothing",
        "/incidents/inc_x",
        f"/incidents/{incident.id}/runs/1",
        f"/incidents/{incident.id}/runs/0",
    ):
        shown = await page(person, path, 404)
        assert "404" in shown.text
        assert "/" in shown.links
    assert (await person.get(f"/incidents/{incident.id}/runs/x")).status_code == 422


async def test_builds_are_listed_with_what_they_import(person: Browser) -> None:
    shown = await page(person, "/builds")
    for text in (D01, "agent:AGENT", "agent:TOOLS", "2023-01-01 00:00:00.000Z", "not pinned"):
        assert text in shown.text


async def test_the_patterns_page_tells_why(person: Browser) -> None:
    shown = await page(person, "/patterns")
    for text in ("model saw", "nearest recorded", "would make it exact", "not in run 2", "Line 2 is no JSON", "minus"):
        assert text in shown.text


async def test_the_patterns_page_holds_every_status(person: Browser) -> None:
    shown = await page(person, "/patterns")
    for word in (
        "reproduced",
        "diverged",
        "unusable",
        "irreproducible",
        "what-if",
        "queued",
        "running",
        "failed",
        "lost",
    ):
        assert word in shown.text


async def test_the_patterns_page_holds_a_recorded_run(person: Browser) -> None:
    shown = await page(person, "/patterns")
    ends = ("success", "reused", "unfinished", "answered", "failed", "not recorded")
    marks = ("≈ concluded", "conflicting", "logged again", "with new lineage", "cut short")
    for text in (*ends, *marks, "tool_call_failed", "not written at VERBOSE level", "What caused what"):
        assert text in shown.text, text


# complaint 44
async def test_a_page_is_whole_whoever_asks_for_it(person: Browser, store: Store) -> None:
    """There are no bare parts at a page's address, so no history, cache or typed address can show one."""
    run = await ran(store, D01)
    for path in ("/", run.partition("/runs")[0], run, f"{run}?folds=open", f"{run}?show=differences&q=intent"):
        whole = await page(person, path)
        assert whole.text.strip()
        for asks in ({"HX-Request": "true"}, {"HX-Request": "true", "HX-History-Restore-Request": "true"}):
            answer = await person.http.get(path, headers=asks)
            assert answer.status_code == 200
            assert answer.text.lstrip().lower().startswith("<!doctype html>")
            assert Page(answer).text == whole.text
    shown = await person.get(run)
    pushed = re.findall(r'hx-get="([^"]+)"[^>]*hx-push-url="true"', shown.text)
    assert pushed
    for path in pushed:
        await page(person, path.replace("&amp;", "&"))


# complaint 45
async def test_pages_ask_browsers_to_keep_nothing(person: Browser, store: Store) -> None:
    answer = await person.get(await ran(store, D01))
    assert answer.headers["cache-control"] == "no-store"
    assert 'hx-history="false"' in answer.text
    told = re.search(r"name=\"htmx-config\" content='([^']+)'", answer.text)
    assert told
    wanted = {"historyCacheSize": 0, "allowEval": False, "selfRequestsOnly": True}
    assert wanted.items() <= json.loads(told[1]).items()


async def test_static_files_are_ours_alone(person: Browser) -> None:
    css = await person.get("/static/hindcast.css?v=1")
    assert css.headers["content-type"].startswith("text/css")
    assert "immutable" in css.headers["cache-control"]
    for path in (
        "/static/../pyproject.toml",
        "/static/%2e%2e/pyproject.toml",
        "/static/vendor",
        "/static/vendor/VERSIONS.txt",
    ):
        assert (await person.get(path)).status_code == 404


async def test_a_chosen_theme_is_there_from_the_first_byte(person: Browser) -> None:
    for chosen, found in (("dark", ' data-theme="dark"'), ("light", ' data-theme="light"'), ('x"y', "")):
        shown = await person.http.get("/builds", headers={"Cookie": f"hindcast_theme={chosen}; {_cookies(person)}"})
        assert f'<html lang="en"{found}>' in shown.text


def _cookies(person: Browser) -> str:
    return "; ".join(f"{name}={value}" for name, value in person.http.cookies.items())


def test_roles_of_the_form_are_the_roles_of_evidence() -> None:
    from app.web.views_import import role_rows

    assert {row.name for row in role_rows([], [])} == {str(role) for role in Role} | {"bundle"}
