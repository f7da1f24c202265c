"""The four real event logs in a browser: imported from the page, found, read beside their causes, opened, shared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Console, accessible
from tests.fixtures.flink import LOG, first_run
from tests.incidents.flink import LOGS, NAMES

THEMES = ("light", "dark")


def in_both_themes(page: Page) -> None:
    """Let axe look at the page in both themes."""
    for theme in THEMES:
        page.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
        accessible(page)


@pytest.fixture
def logs(operator: Page) -> Page:
    """Import the four logs as a person does, once."""
    operator.goto("/flink")
    if operator.locator("#runs").is_visible():
        return operator
    operator.locator("#i-log").set_input_files([str(LOGS / name) for name in NAMES])
    operator.get_by_label("Where the key stands").fill("$.input.k")
    operator.get_by_role("button", name="Import").click()
    expect(operator.locator(".banner")).to_have_count(4)
    return operator


def test_the_four_logs_are_imported_and_found(logs: Page) -> None:
    expect(logs.locator("#runs")).to_have_text("15 runs")
    in_both_themes(logs)
    logs.goto("/flink")
    logs.get_by_label("problem").select_option("tool_call_failed")
    logs.get_by_role("button", name="Find").click()
    expect(logs.locator("#runs")).to_have_text("1 run")
    row = logs.locator("tbody tr").first
    expect(row).to_contain_text("issue_refund")
    row.get_by_role("link").first.click()
    expect(logs).to_have_url(re.compile(r"/flink/runs/\d+$"))


@pytest.mark.parametrize(
    ("query", "reads", "notices"),
    [
        ("category=tool_call_failed", ["INPUT", "AGENT_RUN_BEGIN", "CHAT_REQUEST llm", "TOOL_REQUEST issue_refund",
         "EXECUTION_FAILED tool issue_refund · failed tool_call_failed", "OUTPUT"], []),
        ("status=unfinished&key=c1", ["INPUT", "CHAT_REQUEST llm", "TOOL_REQUEST issue_refund"],
         ["not written at VERBOSE level", "2 events were placed by conclusion", "2 executions never ended"]),
    ],
)  # fmt: skip
def test_a_run_reads_in_order_beside_its_causes(logs: Page, query: str, reads: list[str], notices: list[str]) -> None:
    logs.goto(f"/flink?{query}")
    logs.locator("tbody tr").first.get_by_role("link").first.click()
    expect(logs).to_have_url(re.compile(r"/flink/runs/\d+$"))
    logs.wait_for_load_state()
    events = [" ".join(text.split()) for text in logs.locator("table.timeline tbody").all_inner_texts()]
    places = [next(n for n, text in enumerate(events) if wanted in text) for wanted in reads]
    assert places == sorted(places)
    expect(logs.locator("main .banner")).to_have_count(len(notices))
    for notice in notices:
        expect(logs.locator("main")).to_contain_text(notice)
    in_both_themes(logs)


def test_the_tree_and_the_list_lead_to_each_other(logs: Page) -> None:
    logs.goto("/flink?category=tool_call_failed")
    logs.locator("tbody tr").first.get_by_role("link").first.click()
    failed = logs.locator(".causes li", has_text="payment gateway said no").last
    expect(failed).to_contain_text("tool_call_failed")
    failed.get_by_role("link", name="issue_refund").click()
    expect(logs).to_have_url(re.compile(r"\?at=\d+#e\d+$"))
    line = logs.locator(f"#{logs.url.rpartition('#')[2]}")
    expect(logs.locator("tbody:target")).to_contain_text("EXECUTION_STARTED tool issue_refund")
    line.get_by_role("link", name="in the tree").click()
    expect(logs.locator(".causes li:target")).to_contain_text("payment gateway said no")
    line.get_by_role("link", name="Open event").click()
    expect(logs.get_by_role("heading", level=1)).to_contain_text("EXECUTION_STARTED")
    expect(logs.locator("#fields")).to_contain_text("entityMetadata.toolType")
    in_both_themes(logs)


def test_an_incident_opens_on_a_run_and_a_link_hides_what_it_says(logs: Page, console: Console) -> None:
    logs.goto("/flink?category=tool_call_failed")
    logs.get_by_role("button", name=re.compile("Open an incident on c1")).click()
    expect(logs).to_have_url(re.compile(r"/incidents/inc_"))
    expect(logs.locator("#plan")).to_contain_text("tool_call_failed")
    in_both_themes(logs)
    home = logs.url
    logs.get_by_role("link", name=re.compile("26 events")).click()
    expect(logs.locator("main")).to_contain_text("payment gateway said no")
    in_both_themes(logs)
    made = console.api.post(f"/api/v1{home.removeprefix(console.base)}/shares", json={"expires_in_s": 3600})
    assert made.status_code == 201, made.text
    logs.goto(made.json()["url"])
    logs.get_by_role("link", name="The recorded run").click()
    expect(logs.locator("main")).to_contain_text("TOOL_REQUEST")
    expect(logs.locator("main")).not_to_contain_text("payment gateway said no")
    in_both_themes(logs)


def test_a_what_if_is_run_from_the_incident_of_a_recorded_run(
    flink_python: Path, operator: Page, console: Console
) -> None:
    """What it may do for real is read before, it is said to be a what-if, and is called one wherever it stands."""
    files = [("event-log", (LOG.stem, first_run()))]
    imported = console.api.post("/api/v1/incidents/import", files=files, data={"title": "A refund, generously"})
    assert imported.status_code == 201, imported.text
    home = f"/incidents/{imported.json()['id']}"
    operator.goto(home)
    form = operator.locator("#what-if")
    expect(form.locator(".card")).to_have_count(3)
    build = form.locator(".card", has=operator.get_by_role("radio", name="desk-v3"))
    expect(build.get_by_role("radio")).to_be_checked()
    expect(build.get_by_text("runs for real")).to_be_visible()
    expect(build).to_contain_text("model connection desk_service: asked where the record has no answer")
    expect(build).to_contain_text("only recorded")
    expect(form).to_contain_text("Workers have no network")
    in_both_themes(operator)
    form.get_by_role("button", name="Run what-if").click()
    expect(operator.locator("#refused")).to_contain_text("Nobody said that it is a what-if")
    expect(operator.locator("#what-if").get_by_role("checkbox")).to_have_attribute("aria-invalid", "true")
    in_both_themes(operator)
    operator.get_by_label("This is a what-if").check()
    operator.get_by_role("button", name="Run what-if").click()
    expect(operator).to_have_url(re.compile(r"/runs/1$"))
    expect(operator.locator(".title .badge")).to_contain_text("what-if")
    expect(operator.locator("#verdict")).to_contain_text("2 model requests were asked anew")
    expect(operator.locator(".would")).to_contain_text("Nothing was sent but what the build allows: model desk_service")
    expect(operator.locator("div.facts")).to_contain_text("models are asked anew")
    in_both_themes(operator)
    operator.goto(home)
    expect(operator.locator("#runs-list tbody tr")).to_have_count(1)
    expect(operator.locator("#runs-list tbody")).to_contain_text("run 1 what-if")
    told = console.api.get(f"/api/v1{home}").json()["replays"]
    assert [(run["kind"], run["outcome"], run["exit_code"]) for run in told] == [("what-if", "what-if", 4)]


def test_a_page_reads_without_javascript(logs: Page, console: Console) -> None:
    logs.goto("/flink?category=tool_call_failed")
    address = logs.locator("tbody tr").first.get_by_role("link").first.get_attribute("href")
    context = logs.context.browser.new_context(java_script_enabled=False)  # type: ignore[union-attr]
    try:
        plain = context.new_page()
        plain.goto(console.entrance)
        plain.goto(f"{console.base}{address}?type=OUTPUT")
        expect(plain.locator("table.timeline tbody")).to_have_count(1)
        expect(plain.locator(".causes li").first).to_be_visible()
    finally:
        context.close()
