"""Every page that links lead to, each kind of page once: axe in both themes, narrow, bounded, and nothing kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Page, expect

from app.incidents.audit_trail import PAGE
from tests.browser.conftest import Console, accessible

D01, U01, I09 = "d01_intent_order", "u01_changed_tool_args", "i09_model_changed"
NODES = 1500
MOST = 45


@pytest.fixture(scope="module")
def filled(console: Console) -> str:
    """An incident with runs, notes, a link to another one of its key, and a share; returns its address."""
    incident = console.imported(U01, level="full", title="Everything")
    other = console.imported(U01, title="The same key")
    for build in (U01, D01):
        console.replayed(incident, build)
    base = f"/api/v1/incidents/{incident}"
    # The trail fills a page, and more.
    for revision in range(1, PAGE + 2):
        said = console.api.patch(base, json={"revision": revision, "tags": [f"t{revision}"]})
        assert said.status_code == 200, said.text
    changed = {"status": "contained", "severity": "critical", "owner": "ada", "tags": ["money"]}
    assert console.api.patch(base, json={"revision": PAGE + 2, **changed}).status_code == 200
    for text in (
        "# Why\n\nIt said **48,00**.\n\n- one\n- two\n\n```\ncode\n```\n\n> quoted\n\n|a|b|\n|-|-|\n|1|2|",
        "two",
    ):
        assert console.api.post(f"{base}/notes", json={"text": text}).status_code == 201
    assert console.api.patch(f"{base}/notes/2", json={"version": 1, "text": "three"}).status_code == 200
    assert console.api.put(f"{base}/links/{other}", json={"kind": "duplicate"}).status_code == 204
    assert console.api.post(f"{base}/shares", json={}).status_code == 201
    return f"/incidents/{incident}"


def kind(address: str) -> str:
    """What kind of page an address leads to: its path without ids and numbers, and which members its query has."""
    parts = urlsplit(address)
    path = re.sub(r"/(inc|run|shr|exp|gat|tok)_[\w-]+", "/ID", parts.path)
    path = re.sub(r"/[0-9a-f]{64}", "/DIGEST", re.sub(r"/\d+", "/N", path))
    # Windows, filters and orders of a page are the same kind of page.
    looks = {f"{name}={value}" for name, value in parse_qsl(parts.query) if name in ("view", "show")}
    looks |= {name for name, _ in parse_qsl(parts.query) if name == "frame"}
    return f"{path}?{','.join(sorted(looks))}"


def pages(page: Page, base: str, start: list[str]) -> Iterator[str]:
    """Visit one page of each kind, as links lead to them; files are not pages."""
    todo, seen = list(start), set()
    while todo and len(seen) < MOST:
        address = todo.pop(0)
        if kind(address) in seen:
            continue
        seen.add(kind(address))
        answer = page.goto(address)
        assert answer is not None
        assert answer.status < 400, address
        yield address
        if kind(address) == "/patterns?":
            continue
        links = page.eval_on_selector_all("a[href]:not([download])", "found => found.map(one => one.href)")
        here = (urlsplit(link) for link in links if link.startswith(f"{base}/") and "/leave" not in link)
        todo += [link.path + (f"?{link.query}" if link.query else "") for link in here if "/api/" not in link.path]


# rows 34, 45 and 46: bounded pages, nothing kept; and no page without what assistive technology needs
@pytest.mark.timeout(600)
def test_every_kind_of_page_passes(operator: Page, console: Console, filled: str) -> None:
    visited, troubles = [], []
    for address in pages(operator, console.base, ["/", filled, "/patterns"]):
        visited.append(kind(address))
        for scheme in ("light", "dark"):
            operator.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            try:
                accessible(operator)
            except AssertionError as error:
                troubles.append(f"{address}, {scheme}: {error}")
        if kind(address) != "/patterns?":
            nodes = operator.evaluate("document.querySelectorAll('*').length")
            assert nodes <= NODES, (address, nodes)
            operator.set_viewport_size({"width": 360, "height": 800})
            assert operator.evaluate("document.documentElement.scrollWidth") <= 360, address
            operator.set_viewport_size({"width": 1280, "height": 800})
    assert troubles == [], "\n".join(troubles)
    assert operator.evaluate("localStorage.length") == 0
    for wanted in (
        "/?", "/incidents/ID?", "/incidents/ID/runs/N?", "/incidents/ID/post-mortem?", "/incidents/ID/notes/N?",
        "/incidents/ID/evidence/N/inside?", "/incidents/ID/evidence/N/inside?view=hex",
        "/incidents/ID/runs/N/events/N?", "/incidents/ID/runs/N/ledger?", "/incidents/ID/shares/new?", "/shares?",
        "/import?", "/builds?", "/workers?", "/tokens?", "/audit?", "/activations?",
    ):  # fmt: skip
        assert wanted in visited, (wanted, visited)


def test_a_case_is_changed_and_a_note_edited_by_keyboard(operator: Page, filled: str) -> None:
    operator.goto(filled)
    summary = operator.locator(".case summary")
    summary.focus()
    operator.keyboard.press("Enter")
    operator.get_by_label("Owner").fill("bob")
    operator.keyboard.press("Enter")
    expect(operator.locator(".case .pairs")).to_contain_text("bob")
    operator.get_by_label("Add a note").fill("by *keyboard*")
    operator.keyboard.press("Tab")
    operator.keyboard.press("Enter")
    expect(operator.locator(".note em")).to_have_text("keyboard")


def test_of_two_windows_the_slower_one_loses_nothing(operator: Page, filled: str) -> None:
    operator.goto(filled)
    other = operator.context.new_page()
    other.goto(filled)
    for page, title in ((other, "Faster"), (operator, "Slower")):
        page.locator(".case summary").click()
        page.get_by_label("Title").fill(title)
        page.get_by_role("button", name="Save the case").click()
    expect(operator.get_by_role("alert")).to_contain_text("set title to Faster. Nothing of yours was saved")
    expect(operator.get_by_label("Title")).to_have_value("Slower")
    operator.get_by_role("button", name="Save the case").click()
    expect(operator.get_by_role("heading", level=1)).to_have_text("Slower")
    other.close()


def test_the_post_mortem_reads_on_paper_and_in_grey(operator: Page, filled: str) -> None:
    operator.goto(f"{filled}/post-mortem")
    operator.emulate_media(media="print")
    for gone in ("nav", ".copy >> nth=0", ".actions >> nth=0", "footer"):
        expect(operator.locator(gone)).to_be_hidden()
    for place, words in (
        (".two-sides dt >> nth=0", "recorded"), (".two-sides dt >> nth=1", "replayed"),
        (".verdict .badge >> nth=0", "≠diverged"), ("tr.differs b >> nth=0", "≠ differs in the replay"),
    ):  # fmt: skip
        expect(operator.locator(place)).to_be_visible()
        expect(operator.locator(place)).to_have_text(words)
    assert operator.evaluate("document.documentElement.scrollWidth <= innerWidth")
