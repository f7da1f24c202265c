"""From something odd on customer-42 to two verdicts, in the demo's world and a real browser, and no file is touched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import accessible, press_replay

ROOT = Path(__file__).parents[2]


@dataclass
class Demo:
    """A running `hindcast demo` and the address that opens it."""

    entrance: str
    process: subprocess.Popen[str]

    @property
    def base(self) -> str:
        return self.entrance.partition("/enter")[0]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    home = Path(tempfile.mkdtemp(prefix="hindcast-live-"))
    home.chmod(0o711)
    command = [sys.executable, "-m", "app.cli", "demo", "--no-browser", "--port", "0"]
    environment = {**os.environ, "HINDCAST_HOME": str(home)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C stops everything" in line:
                break
        found = re.search(r"console +(http://\S+)", "".join(lines))
        assert found is not None, "".join(lines)
        yield Demo(found[1], process)
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def desk(page: Page, demo: Demo) -> Iterator[Page]:
    """A browser that has entered the demo; any error that a page meets fails the test."""
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(demo.entrance)
    page.set_viewport_size({"width": 1440, "height": 900})
    yield page
    assert troubles == []


def in_both_themes(page: Page) -> None:
    """Let axe look at the page, light and dark."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        accessible(page)
    page.emulate_media(color_scheme="light")


def replay(page: Page, build: str, outcome: str) -> None:
    press_replay(page, build)
    expect(page.locator("header .badge")).to_contain_text(outcome)


def test_from_a_row_to_two_verdicts(desk: Page, demo: Demo) -> None:
    expect(desk.locator(".story")).to_contain_text("what to click")
    in_both_themes(desk)
    desk.get_by_role("link", name="Activations", exact=True).click()
    for words in ("suspended", "failed", "issue_refund"):
        expect(desk.locator("tbody")).to_contain_text(words)
    in_both_themes(desk)
    desk.get_by_label("key", exact=True).fill("customer-42")
    desk.get_by_role("button", name="Find").click()
    expect(desk.locator("tbody tr")).to_have_count(1)
    desk.get_by_role("button", name="Open an incident on customer-42, seq 0").click()

    expect(desk).to_have_url(re.compile(r"/incidents/inc_"))
    incident = desk.url
    steps = desk.locator("#steps")
    # Without a reload: the evidence arrives on the page.
    expect(steps.locator(".s-done", has_text="Triggering envelope")).to_be_visible()
    expect(steps.locator(".s-done", has_text="Traces")).to_be_visible()
    expect(desk.get_by_text("Export soon.")).to_be_visible()
    expect(desk.locator("dl.missing")).to_contain_text("snapshot")
    in_both_themes(desk)

    desk.locator("header").get_by_role("link", name="Export key…").click()
    expect(desk.locator("main")).to_contain_text("refunds.events")
    expect(desk.locator("main")).to_contain_text("customer-42")
    expect(desk.locator("main")).to_contain_text("its memory")
    in_both_themes(desk)
    desk.get_by_label("Reason").fill("refund of 4800.00 EUR")
    desk.get_by_role("button", name="Export key").click()
    expect(desk).to_have_url(incident)
    expect(steps.locator(".s-done", has_text="Snapshot")).to_be_visible()
    expect(steps).to_contain_text('reason "refund of 4800.00 EUR"')
    expect(steps).to_contain_text(re.compile(r"refunds\.events\[\d\]@\d+"))
    expect(desk.get_by_text("Export soon.")).to_have_count(0)
    in_both_themes(desk)

    replay(desk, "refunds-v1", "reproduced")
    desk.goto(incident)
    replay(desk, "refunds-v2", "diverged")
    expect(desk.locator("#verdict")).to_contain_text("APPROVAL")
    desk.goto(incident)
    runs = desk.locator("#runs-list")
    expect(runs).to_contain_text("reproduced")
    expect(runs).to_contain_text("diverged")
    in_both_themes(desk)


def test_a_chosen_build_outlives_evidence_that_arrives(desk: Page, demo: Demo) -> None:
    desk.goto(f"{demo.base}/activations?key=customer-58")
    desk.get_by_role("button", name=re.compile("Open an incident")).first.click()
    expect(desk).to_have_url(re.compile(r"/incidents/inc_"))
    incident = desk.url
    desk.get_by_role("checkbox", name=re.compile("refunds-v2")).check()
    other = desk.context.new_page()
    other.goto(f"{incident}/export")
    other.get_by_label("Reason").fill("it waits")
    other.get_by_role("button", name="Export key").click()
    expect(desk.locator("#steps .s-done", has_text="Snapshot")).to_be_visible()
    expect(desk.get_by_role("checkbox", name=re.compile("refunds-v2"))).to_be_checked()


def test_links_of_alerts_lead_to_the_row(desk: Page, demo: Demo) -> None:
    desk.goto(f"{demo.base}/find?key=customer-63&seq=0")
    expect(desk.locator("tbody tr")).to_have_count(1)
    expect(desk.locator("tbody tr")).to_contain_text("JSONDecodeError")
    desk.goto(f"{demo.base}/activations?key=customer-42")
    intent = desk.locator("tbody code[title]").first.get_attribute("title")
    desk.goto(f"{demo.base}/find?intent={intent}")
    expect(desk.locator("tbody tr")).to_contain_text("customer-42")
    desk.goto(f"{demo.base}/activations?key=nobody")
    expect(desk.locator(".empty")).to_contain_text("Nothing fits")
    in_both_themes(desk)


def test_without_scripts_a_reload_shows_the_same(browser: object, demo: Demo) -> None:
    from playwright.sync_api import Browser

    assert isinstance(browser, Browser)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(demo.entrance)
    page.goto(f"{demo.base}/activations?key=customer-7")
    page.get_by_role("button", name=re.compile("Open an incident")).first.click()
    page.get_by_role("link", name="Export key…").first.click()
    page.get_by_label("Reason").fill("to see")
    page.get_by_role("button", name="Export key").click()
    # While something is under way, the page reloads itself.
    expect(page.locator("#steps .s-done", has_text="Snapshot")).to_be_visible()
    context.close()
