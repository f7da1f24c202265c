"""Takes the pictures of docs/: starts a demo of its own, does there what a person would do, and looks at every page.

Run it with `make screenshots`. The browser itself writes the pictures, as WebP.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, expect, sync_playwright

FOLDER: Final = Path(__file__).parents[1] / "docs" / "screenshots"
# Real logs, which the tests read as well.
LOGS: Final = Path(__file__).parents[1] / "tests" / "flink" / "data"
_WIDTH, _HEIGHT = 1280, 860
_TALLEST = 1500
_QUIET: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--hide-scrollbars",
)  # fmt: skip

NOTES: Final = (
    "The ticket says **48,00**, and the agent refunded `4800.0`.\n\n- its comma is a decimal mark\n- no prompt says so",
    "Refunds of this desk are paused until the mended build is out.",
)


@dataclass
class Camera:
    """Takes pictures into the folder; `only` restricts to names that contain it."""

    page: Page
    folder: Path
    only: str = ""

    def shoot(self, name: str, path: str | None = None, *, scheme: str = "light", media: str = "screen") -> None:
        """Look at `path` (None: where the page is) and keep what is seen, whole but for very long pages."""
        self.page.emulate_media(color_scheme=scheme, media=media)  # type: ignore[arg-type]
        if path is not None:
            self.page.goto(path)
        if self.only not in name:
            return
        height = self.page.evaluate("document.documentElement.scrollHeight")
        self.page.set_viewport_size({"width": _WIDTH, "height": max(_HEIGHT, min(height, _TALLEST))})
        self._write(self.folder / f"{name}.webp")
        self.page.set_viewport_size({"width": _WIDTH, "height": _HEIGHT})
        print(name, flush=True)

    def _write(self, file: Path) -> None:
        session = self.page.context.new_cdp_session(self.page)
        taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": 60})
        session.detach()
        file.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def demo() -> Iterator[str]:
    """Run a demo of its own from nothing; yields the address that opens it."""
    with tempfile.TemporaryDirectory(prefix="hindcast-screenshots-") as home:
        Path(home).chmod(0o711)
        argv = [sys.executable, "-m", "app.cli", "demo", "--port", "0", "--no-browser"]
        environment = os.environ | {"HINDCAST_HOME": home}
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            yield _address(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://\S+/enter\?token=\S+", line):
            return found[0]
    raise SystemExit("the demo did not start")


def take(camera: Camera) -> None:
    """Walk through the console as an operator would."""
    page = camera.page
    camera.shoot("incidents-empty-filter", "/?status=closed")
    page.goto("/")
    page.get_by_role("row").nth(1).get_by_role("link").first.click()
    home = page.url
    _live_through(page, home)
    camera.shoot("incident", home)
    camera.shoot("incident-dark", home, scheme="dark")
    camera.shoot("incidents", "/")
    camera.shoot("incidents-dark", "/", scheme="dark")
    run = page.evaluate("[...document.querySelectorAll('a[href*=\"/runs/\"]')][0].getAttribute('href')")
    page.goto(home)
    diverged = page.locator("tr", has_text="diverged").locator("a", has_text="run").first.get_attribute("href") or run
    pages = {
        "run": diverged,
        "run-unified": f"{diverged}?view=unified&show=differences",
        "event": f"{diverged}/events/0",
        "ledger": f"{diverged}/ledger",
        "compare": f"{home}/compare?runs=1,2",
        "post-mortem": f"{home}/post-mortem",
        "note": f"{home}/notes/1",
        "activations": "/activations",
        "import": "/import",
        "builds": "/builds",
        "workers": "/workers",
        "tokens": "/tokens",
        "audit": "/audit",
        "share-new": f"{home}/shares/new",
    }
    for name, path in pages.items():
        camera.shoot(name, path)
    camera.shoot("run-dark", diverged, scheme="dark")
    _shared(camera, home)
    _live(camera)
    _event_logs(camera)
    for name, role in (("evidence-stream", "traces"), ("evidence-message", "snapshot")):
        page.emulate_media(media="screen")
        page.goto(home)
        row = page.locator("table[aria-labelledby=evidence] tr", has_text=role).first
        link = row.get_by_role("link", name="Look inside")
        if link.count():
            camera.shoot(name, link.first.get_attribute("href"))
    camera.shoot("post-mortem-paper", f"{home}/post-mortem", media="print")


def _shared(camera: Camera, home: str) -> None:
    """What a link shows, before it is made; and the list of links."""
    page = camera.page
    page.goto(f"{home}/shares/new")
    page.get_by_role("button", name="Preview").click()
    camera.shoot("share-preview")
    page.get_by_role("button", name="Create").click()
    camera.shoot("shares", "/shares")


def _live(camera: Camera) -> None:
    """An incident on the pipeline that is at work: its evidence as it arrives, and the question before an export."""
    page = camera.page
    page.goto("/activations?key=customer-42&form=text")
    page.get_by_role("button", name="Open an incident on customer-42").first.click()
    home = page.url
    expect(page.get_by_role("heading", name="Evidence", exact=True)).to_be_visible()
    camera.shoot("export", f"{home}/export")
    page.get_by_label("Reason").fill("refund of 4800 to customer-42")
    page.get_by_role("button", name="Export key").click()
    expect(page.get_by_text("snapshot", exact=False).first).to_be_visible()
    page.wait_for_timeout(4000)
    camera.shoot("incident-live", home)


def _event_logs(camera: Camera) -> None:
    """The event logs of another framework: what was found in them, one run beside its causes, an incident on it."""
    page = camera.page
    page.emulate_media(media="screen")
    page.goto("/flink")
    page.locator("#i-log").set_input_files(sorted(LOGS.glob("eventlog-*.jsonl")))
    page.get_by_label("Where the key stands").fill("$.input.k")
    page.get_by_role("button", name="Import").click()
    expect(page.locator("#runs")).to_be_visible()
    camera.shoot("flink", "/flink")
    page.goto("/flink?category=tool_call_failed")
    page.locator("tbody tr").first.get_by_role("link").first.click()
    expect(page.locator("table.timeline tbody").first).to_be_visible()
    camera.shoot("flink-run")
    page.goto("/flink?category=tool_call_failed")
    page.get_by_role("button", name=re.compile("Open an incident")).first.click()
    expect(page).to_have_url(re.compile(r"/incidents/inc_"))
    camera.shoot("flink-incident")


def _live_through(page: Page, home: str) -> None:
    """Do what a night of work leaves behind: a case with an owner, notes, and one that was edited."""
    page.get_by_text("Change", exact=True).click()
    page.get_by_label("Status").select_option("explained")
    page.get_by_label("Severity").select_option("high")
    page.get_by_label("Owner").fill("payments on-call")
    page.get_by_label("Tags").fill("refunds money night")
    page.get_by_label("Pinned").check()
    page.get_by_role("button", name="Save the case").click()
    expect(page.get_by_text("payments on-call").first).to_be_visible()
    for text in NOTES:
        page.get_by_label("Add a note").fill(text)
        page.get_by_role("button", name="Add note").click()
    page.locator("#note-1 summary").click()
    box = page.locator("#note-1 textarea")
    box.fill(box.input_value() + "\n\nThe mended build reads it right: see run 2.")
    page.get_by_role("button", name="Save note 1").click()
    page.goto(home)


def main() -> None:
    """Take all pictures, or those whose names contain a word."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="pictures whose names contain it")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--address", help="the opening address of a console that runs already, instead of a new demo")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright, _console(args.address) as address:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_QUIET))
        base = address.partition("/enter")[0]
        size = {"width": _WIDTH, "height": _HEIGHT}
        page = browser.new_context(base_url=base, viewport=size, reduced_motion="reduce").new_page()  # type: ignore[arg-type]
        page.set_default_timeout(60_000)
        camera = Camera(page, args.folder, args.only)
        camera.shoot("enter", f"{base}/")
        page.goto(address)
        take(camera)
        browser.close()


@contextmanager
def _console(address: str | None) -> Iterator[str]:
    if address is not None:
        yield address
        return
    with demo() as made:
        yield made


if __name__ == "__main__":
    main()
