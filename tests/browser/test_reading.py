"""Reading a run: keys, themes, narrow screens, paper, copy buttons; and axe over every page in both themes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import TOKEN, Console, accessible

D01, U01, I09, A01 = "d01_intent_order", "u01_changed_tool_args", "i09_model_changed", "a01_fraud_completed"


@pytest.fixture(scope="module")
def runs(console: Console) -> dict[str, str]:
    """The addresses of one run of each build."""
    found = {}
    for name in (D01, U01, I09, A01):
        incident = console.imported(name, level="full" if name == U01 else "bundle", title=f"Incident {name}")
        console.replayed(incident, name)
        found[name] = f"/incidents/{incident}/runs/1"
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(operator: Page, console: Console, runs: dict[str, str], scheme: Any) -> None:
    operator.emulate_media(color_scheme=scheme)
    # Every kind of page that links lead to is looked at in test_everything.py; here are kinds of runs, and of nothing.
    pages = ["/nothing", *runs.values(), f"{runs[U01]}/events/4", f"{runs[D01]}?show=differences"]
    for path in pages:
        operator.goto(path)
        accessible(operator)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_at_the_door(page: Page, console: Console, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto("/")
    expect(page.get_by_label("Token")).to_be_visible()
    accessible(page)
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Enter").click()
    expect(page.get_by_role("alert")).to_contain_text("The token is wrong")
    accessible(page)
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Enter").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Incidents")


def test_the_token_does_not_stay_in_the_address_bar(operator: Page, console: Console) -> None:
    assert TOKEN not in operator.url
    assert TOKEN not in operator.evaluate("document.cookie + document.referrer + location.href")
    operator.go_back()
    assert TOKEN not in operator.url


def test_keys_walk_the_timeline(operator: Page, runs: dict[str, str]) -> None:
    operator.goto(runs[D01])
    current = operator.locator("tbody.current")
    operator.keyboard.press("j")
    expect(current).to_have_id("e0")
    operator.keyboard.press("j")
    operator.keyboard.press("k")
    expect(current).to_have_id("e0")
    operator.keyboard.press("n")
    expect(current).to_have_id("e4")
    operator.keyboard.press("n")
    expect(current).to_have_id("e5")
    operator.keyboard.press("p")
    expect(current).to_have_id("e4")
    operator.keyboard.press("p")
    expect(operator.locator("#toast")).to_have_text("No earlier difference")
    operator.keyboard.press("g")
    expect(current).to_have_id("e4")
    expect(operator).to_have_url(re.compile("#e4$"))
    operator.keyboard.press("o")
    expect(operator.locator("#e4 .opened")).to_contain_text("intent_id")
    operator.keyboard.press("o")
    expect(operator.locator("#e4 .opened")).to_have_count(0)
    operator.keyboard.press("?")
    expect(operator.get_by_role("dialog")).to_be_visible()
    accessible(operator)
    operator.keyboard.press("Escape")
    expect(operator.get_by_role("dialog")).to_be_hidden()


def test_keys_are_off_while_typing(operator: Page) -> None:
    operator.goto("/import")
    operator.get_by_label("Title").focus()
    operator.keyboard.type("jump? no [go]")
    expect(operator.get_by_label("Title")).to_have_value("jump? no [go]")
    expect(operator.get_by_role("dialog")).to_be_hidden()


def test_everything_is_copied_by_a_button(browser: Browser, console: Console, runs: dict[str, str]) -> None:
    context = browser.new_context(base_url=console.base, permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(console.entrance)
    page.goto(runs[U01])
    for name, wanted in (
        ("Copy key as text", "card-4242"),
        ("Copy key as hex", b"card-4242".hex()),
        ("Copy the command that reproduces this run", "hindcast replay"),
    ):
        page.get_by_role("button", name=name).first.click()
        expect(page.locator("#toast")).to_have_text(name.replace("Copy", "Copied"))
        assert wanted in page.evaluate("navigator.clipboard.readText()")
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.get_by_role("button", name="Copy span_id, recorded").click()
    expect(page.locator("#toast")).to_have_text("Copied span_id, recorded")
    assert len(page.evaluate("navigator.clipboard.readText()")) == 16
    page.keyboard.press("c")
    expect(page.locator("#toast")).to_have_text("Copied the link to event 4")
    assert page.evaluate("navigator.clipboard.readText()") == f"{console.base}{runs[U01]}?at=4#e4"
    context.close()


def test_a_link_to_an_event_lands_on_it(operator: Page, runs: dict[str, str]) -> None:
    operator.goto(f"{runs[U01]}?at=4#e4")
    expect(operator.locator("tbody.current")).to_have_id("e4")
    expect(operator.locator("#e4")).to_be_in_viewport()


# complaint 44
def test_folds_and_filters_are_addresses_and_back_undoes_them(operator: Page, runs: dict[str, str]) -> None:
    operator.goto(runs[D01])
    operator.get_by_role("link", name="differences only").click()
    expect(operator.locator("tbody.stop")).to_have_count(3)
    expect(operator).to_have_url(re.compile(r"\?show=differences$"))
    operator.go_back()
    expect(operator.locator("tbody.stop")).to_have_count(8)
    operator.keyboard.press("]")
    expect(operator).to_have_url(re.compile(r"\?folds=open$"))
    operator.keyboard.press("[")
    expect(operator).to_have_url(re.compile(r"/runs/1$"))
    expect(operator.get_by_role("heading", level=1)).to_be_visible()


# complaint 45
def test_the_browser_keeps_nothing(operator: Page, runs: dict[str, str]) -> None:
    for path in ("/", runs[D01], runs[D01].partition("/runs")[0], "/import"):
        operator.goto(path)
    operator.goto(runs[D01])
    operator.keyboard.press("g")
    operator.keyboard.press("o")
    expect(operator.locator(".opened")).to_be_visible()
    assert operator.evaluate("localStorage.length") == 0
    assert operator.evaluate("JSON.stringify(sessionStorage)") in ("{}", _path_only(operator))
    assert operator.evaluate("indexedDB.databases().then(found => found.length)") == 0


def _path_only(page: Page) -> str:
    return page.evaluate("JSON.stringify({'htmx-current-path-for-history': location.pathname + location.search})")


def test_the_theme_follows_the_system_until_it_is_chosen(operator: Page, runs: dict[str, str]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    operator.goto(runs[D01])
    operator.emulate_media(color_scheme="light")
    light = operator.evaluate(ground)
    operator.emulate_media(color_scheme="dark")
    dark = operator.evaluate(ground)
    assert light != dark
    switch = operator.get_by_role("button", name="theme")
    switch.click()
    switch.click()
    expect(operator.locator("#toast")).to_have_text("Theme: light")
    assert operator.evaluate(ground) == light
    # Known before there is anything to paint.
    operator.add_init_script(
        """new MutationObserver((_, watch) => {
            if (!document.body) return;
            window.themeOfBody = document.documentElement.dataset.theme;
            watch.disconnect();
        }).observe(document, {childList: true, subtree: true})"""
    )
    operator.reload()
    assert operator.evaluate("window.themeOfBody") == "light"
    switch.click()
    operator.reload()
    assert operator.evaluate(ground) == dark


@pytest.mark.parametrize("width", [360, 768])
def test_nothing_runs_off_a_narrow_screen(operator: Page, runs: dict[str, str], width: int) -> None:
    operator.set_viewport_size({"width": width, "height": 800})
    for path in ("/", "/import", "/builds", *runs.values(), runs[D01].partition("/runs")[0]):
        operator.goto(path)
        assert operator.evaluate("document.documentElement.scrollWidth") <= width, path


def test_on_paper_the_run_reads_without_controls(operator: Page, runs: dict[str, str]) -> None:
    operator.goto(runs[U01])
    operator.emulate_media(media="print")
    for gone in ("nav", ".copy >> nth=0", ".open >> nth=0", ".actions >> nth=0"):
        expect(operator.locator(gone)).to_be_hidden()
    expect(operator.locator("#verdict")).to_be_visible()
    expect(operator.locator("#e4 del").first).to_be_visible()
    expect(operator.get_by_role("columnheader", name="Recorded by the pipeline")).to_be_visible()


def test_times_tell_local_time_in_their_title(operator: Page, runs: dict[str, str]) -> None:
    operator.goto(runs[U01])
    clock = operator.locator("header time")
    expect(clock).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z$"))
    expect(clock).to_have_attribute("title", re.compile("local time"))
