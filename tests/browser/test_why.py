"""Why it happened, in a real browser with a real worker: plan, story, what is missing, answers, decisions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from app.demo import story
from tests.browser.conftest import NETWORKED, Console, accessible, press_replay
from tests.golden.scenarios import scenario

A01, U01, I14, D28, M01, M09 = (
    "a01_fraud_completed",
    "u01_changed_tool_args",
    "i14_tool_answer_in_prompt",
    "d28_pending_resume_what_if",
    "m01_drift_pre_post",
    "m09_union_of_two_caches",
)
SENTENCE = "You charged me twice for the grinder!! I want my 48,00 back, today."


def in_both_themes(page: Page) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        accessible(page)
    page.emulate_media(color_scheme="light")


def badge(page: Page) -> Any:
    return page.locator("header .badge")


def refund(console: Console) -> str:
    files = [(str(file.role), (file.name, file.data)) for file in story.evidence()]
    answer = console.api.post("/api/v1/incidents/import", files=files, data={"title": story.TITLE})
    return str(answer.json()["id"])


def single(name: str) -> list[Path]:
    """Every snapshot of a scenario, each in a file of its own."""
    folder = scenario(name).folder
    return [folder / "snapshot.pb", *sorted((folder / "snapshots").glob("*.pb"))]


@pytest.mark.parametrize("name", [M01, M09])
def test_what_no_single_snapshot_reproduces_all_of_them_do(operator: Page, console: Console, name: str) -> None:
    """Imported in the browser: first with each snapshot alone, then with all."""
    one = scenario(name)
    options = one.options()

    def fill(snapshots: list[Path]) -> None:
        operator.goto("/import")
        operator.set_input_files("#file-snapshot", [str(path) for path in snapshots])
        operator.set_input_files("#file-traces", str(one.folder / options["--traces"]))
        operator.set_input_files("#file-event", str(one.folder / options["--event"]))
        operator.get_by_role("button", name="Import", exact=True).click()
        expect(operator).to_have_url(re.compile(r"/incidents/inc_"))

    for snapshot in single(name):
        fill([snapshot])
        expect(operator.locator("#plan")).to_be_visible()
        press_replay(operator, name)
        expect(badge(operator)).to_contain_text("irreproducible")
    fill(single(name))
    expect(operator.locator("#plan")).to_contain_text("Exact: the state that the attempt ran from is known.")
    expect(operator.locator("#plan")).to_contain_text("obtained" if name == M01 else "all 64 that the attempt obtained")
    in_both_themes(operator)
    press_replay(operator, name)
    expect(badge(operator)).to_contain_text("reproduced")


def test_the_ledger_shows_the_sentence_that_made_the_agent_refund_too_much(operator: Page, console: Console) -> None:
    operator.goto(f"/incidents/{refund(console)}")
    press_replay(operator, "refunds-v1", "refunds-v2")
    expect(operator).to_have_url(re.compile(r"/compare\?runs=1,2$"))
    table = operator.locator("table.compare")
    expect(table).to_contain_text("reproduced")
    expect(table).to_contain_text("diverged")  # by itself, when both have ended
    expect(operator.locator("#live")).to_have_count(0)
    expect(table.locator("tr", has_text="intent 1")).to_contain_text("= as recorded")
    expect(table.locator("tr", has_text="intent 1").locator("ins").first).to_be_visible()
    expect(operator.locator("#step-counts")).to_contain_text("differ")
    in_both_themes(operator)

    operator.locator("table.compare").get_by_role("link", name="event 3").click()
    expect(badge(operator)).to_contain_text("diverged")
    expect(operator.locator("#verdict")).to_contain_text("recorded INTENT_EMITTED TOOL issue_refund")
    call = operator.locator("tbody", has_text="model saw")  # without a click
    expect(call).to_contain_text(SENTENCE)
    expect(call.locator(".ledger dt", has_text="it said")).to_be_visible()
    expect(call.locator("mark", has_text="480000")).to_be_visible()
    in_both_themes(operator)
    call.get_by_role("link", name="as captured").click()
    expect(operator.locator("main")).to_contain_text("✓ verified")
    in_both_themes(operator)
    operator.go_back()

    operator.get_by_role("link", name="Open event 1", exact=True).click()
    opened = operator.locator("#e1 .opened")
    expect(opened).to_contain_text("ran again, for real, inside the sandbox")
    expect(opened).to_contain_text("espresso grinder, used")
    operator.locator("#e2").get_by_role("link", name=re.compile("more step")).click()
    expect(operator.locator("#e2 .opened")).to_contain_text("reads memory refunds")
    in_both_themes(operator)

    operator.get_by_role("link", name="Ledger", exact=True).click()
    expect(operator.locator("#s0")).to_contain_text("tool order_lookup")
    expect(operator.locator("main")).to_contain_text(SENTENCE)
    in_both_themes(operator)


def test_filters_views_and_folds_are_addresses_and_back_undoes_them(operator: Page, console: Console) -> None:
    incident = console.imported("a30_exactly_64_calls")
    console.replayed(incident, "a30_exactly_64_calls")
    path = f"/incidents/{incident}/runs/1"
    operator.goto(path)
    operator.get_by_label("says").fill("call 63")
    operator.get_by_label("says").press("Enter")
    expect(operator).to_have_url(re.compile(r"\?q=call(%20|\+)63$"))
    expect(operator.locator("tbody.stop")).to_have_count(1)
    expect(operator.locator("tbody.stop")).to_contain_text("call 63")
    in_both_themes(operator)
    operator.go_back()
    expect(operator).to_have_url(re.compile(r"/runs/1$"))
    expect(operator.locator("tbody.stop").first).to_contain_text("ACTIVATION_START")
    operator.get_by_label("type", exact=True).select_option("ACTIVATION_END")
    expect(operator.locator("tbody.stop")).to_have_count(1)
    operator.get_by_role("link", name="unified").click()
    expect(operator).to_have_url(re.compile(r"type=ACTIVATION_END&view=unified$"))
    expect(operator.locator("table.one tbody.stop")).to_have_count(1)
    in_both_themes(operator)
    operator.get_by_role("link", name="clear").click()
    expect(operator).to_have_url(re.compile(r"/runs/1\?view=unified$"))
    for query in ("folds=open", "folds=open&view=unified", "at=40&folds=open"):
        operator.goto(f"{path}?{query}")
        assert operator.evaluate("document.querySelectorAll('*').length") <= 1_500
    expect(operator.locator("#e40")).to_have_count(1)


def test_a_missed_request_is_readable_and_leads_to_the_nearest_evidence(operator: Page, console: Console) -> None:
    incident = console.imported("i09_model_changed")
    console.replayed(incident, "i09_model_changed")
    operator.goto(f"/incidents/{incident}/runs/1")
    told = operator.locator(".miss")
    expect(told).to_contain_text("explain t-1 é")
    expect(told.locator("del")).to_have_text("2")
    expect(told.locator("ins")).to_have_text("3")
    in_both_themes(operator)
    told.get_by_role("link", name=re.compile("the response captured")).click()
    expect(operator.get_by_role("heading", level=1)).to_have_text("Captured response")
    expect(operator.locator("main")).to_contain_text("snapshot.pb · counter 1")


def test_a_tool_that_may_not_reach_its_server_is_answered_by_the_operator(operator: Page, console: Console) -> None:
    incident = console.imported(A01)
    operator.goto(f"/incidents/{incident}")
    press_replay(operator, NETWORKED)
    expect(badge(operator)).to_contain_text("irreproducible")
    expect(operator.locator("#verdict")).to_contain_text("could not run confined")
    field = operator.get_by_label("Supply what risk_lookup answered")
    template = json.loads(field.input_value())
    assert template == {"tool": "risk_lookup", "arguments": {"card": "4242"}, "value": None}
    in_both_themes(operator)
    field.fill("{")
    operator.get_by_role("button", name="Replay with these answers").click()
    expect(operator.get_by_role("alert")).to_contain_text("line 1 is not JSON")
    expect(field).to_have_value("{")
    in_both_themes(operator)
    field.fill(json.dumps({**template, "value": "hist(4242,5)"}))
    operator.get_by_role("button", name="Replay with these answers").click()
    expect(badge(operator)).to_contain_text("reproduced")
    supplied = operator.locator("section", has=operator.get_by_role("heading", name="Supplied tool answers"))
    expect(supplied).to_contain_text("✓ proven")
    expect(operator.locator("section .command")).to_contain_text("--tool-answers tool-answers.jsonl")
    in_both_themes(operator)


def test_answers_are_supplied_with_the_form_as_well_and_the_terminal_says_the_same(
    operator: Page, console: Console, tmp_path: Path
) -> None:
    incident = console.imported(I14)
    operator.goto(f"/incidents/{incident}")
    operator.get_by_text("Supply recorded answers of read-only tools").click()
    name = scenario(I14).bundle()[2].data.decode("latin-1").partition("tool-prompt ")[2]
    operator.get_by_label("Tool answers").fill(
        json.dumps([{"tool": "lookup", "arguments": {"name": name}, "value": name.upper()}])
    )
    press_replay(operator, I14)
    expect(badge(operator)).to_contain_text("reproduced")
    for what in ("bundle", "tool answers"):
        with operator.expect_download() as download:
            operator.locator("section", has=operator.locator("#terminal")).get_by_role(
                "link", name=what, exact=True
            ).click()
        download.value.save_as(tmp_path / download.value.suggested_filename)
    told = operator.locator("section .command pre").inner_text().replace("\\\n", " ").split()
    assert told[:2] == ["hindcast", "replay"]
    done = subprocess.run([sys.executable, "-m", "app.cli", *told[1:]], cwd=tmp_path, env=_environment(), check=False)
    assert done.returncode == 0


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def test_a_decision_is_tried_and_nothing_is_sent(operator: Page, console: Console) -> None:
    incident = console.imported(D28)
    operator.goto(f"/incidents/{incident}")
    expect(operator.locator("#what-if")).to_contain_text("nothing is sent anywhere")
    in_both_themes(operator)
    approval = operator.get_by_role("form", name="Answer to approval desk-2")
    approval.get_by_label("Build").select_option(D28)
    approval.get_by_role("button", name="What if approved").click()
    expect(badge(operator)).to_contain_text("what-if")
    would = operator.locator("section.would")
    expect(would).to_contain_text("Nothing was sent.")
    expect(would).to_contain_text("intent pay")
    expect(would).to_contain_text("output")
    expect(operator.locator("section .command")).to_contain_text("--approve ")
    in_both_themes(operator)
    found = console.api.get(operator.get_by_role("link", name="JSON").get_attribute("href") or "").json()
    assert (found["kind"], found["exit_code"]) == ("what-if", 4)
    operator.goto(f"/incidents/{incident}")
    result = operator.get_by_role("form", name="Answer to tool pay")
    result.get_by_label("Build").select_option(D28)
    result.get_by_label("Result").select_option("ERROR")
    result.get_by_label("Payload, or what went wrong").fill("no such account")
    result.get_by_role("button", name="What if this came back").click()
    expect(badge(operator)).to_contain_text("what-if")
    expect(operator.locator("main")).to_contain_text("no such account")
    operator.goto(f"/incidents/{incident}")
    operator.get_by_role("button", name="Compare the ticked runs").click()
    expect(operator.locator("#step-counts")).to_be_visible()
    in_both_themes(operator)


def test_what_is_typed_outlives_a_page_that_follows_its_runs(operator: Page, console: Console) -> None:
    incident = console.imported(D28)
    console.pause()
    try:
        console.api.post(f"/api/v1/incidents/{incident}/replays", json={"build": D28})
        operator.goto(f"/incidents/{incident}")
        operator.get_by_label("Payload, or what went wrong").fill("half a sen")
        operator.get_by_role("checkbox", name=re.compile(U01)).check()
    finally:
        console.go_on()
    expect(operator.locator("#runs-list .badge")).to_contain_text("what-if")
    expect(operator.get_by_label("Payload, or what went wrong")).to_have_value("half a sen")
    expect(operator.get_by_role("checkbox", name=re.compile(U01))).to_be_checked()


@pytest.mark.parametrize("width", [360, 768])
def test_nothing_runs_off_a_narrow_screen(operator: Page, console: Console, width: int) -> None:
    operator.set_viewport_size({"width": width, "height": 800})
    incident = refund(console)
    for build in ("refunds-v1", "refunds-v2"):
        console.replayed(incident, build)
    base = f"/incidents/{incident}"
    for path in (
        base,
        f"{base}/runs/2",
        f"{base}/runs/2?view=unified",
        f"{base}/runs/2/ledger",
        f"{base}/runs/2/events/2",
    ):
        operator.goto(path)
        assert operator.evaluate("document.documentElement.scrollWidth") <= width, path
    operator.goto(f"{base}/compare?runs=1,2")
    assert operator.evaluate("document.documentElement.scrollWidth") <= width


def test_everything_here_reads_without_javascript(browser: Browser, console: Console) -> None:
    context = browser.new_context(java_script_enabled=False, base_url=console.base)
    page = context.new_page()
    page.goto(console.entrance)
    page.goto(f"/incidents/{refund(console)}")
    press_replay(page, "refunds-v1", "refunds-v2")
    expect(page.locator("table.compare")).to_contain_text("diverged")  # by reloading itself
    page.locator("table.compare").get_by_role("link", name="run 2").click()
    expect(page.locator("main")).to_contain_text(SENTENCE)
    page.get_by_label("type", exact=True).select_option("LLM_CALL")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody.stop")).to_have_count(2)
    context.close()
