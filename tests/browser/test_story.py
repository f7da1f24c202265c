"""The operator's way in a real browser: import, replay, and read where the re-run and the record part."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Console, accessible, files_of, press_replay
from tests.golden import corpus
from tests.golden.scenarios import scenario

D01, U01 = "d01_intent_order", "u01_changed_tool_args"


def fill(page: Page, name: str, **instead: str) -> None:
    """Choose the files of a scenario, some replaced."""
    for role, path in (files_of(name) | instead).items():
        page.set_input_files(f"#file-{role}", path)


def press_import(page: Page) -> None:
    page.get_by_role("button", name="Import", exact=True).click()


def test_import_replay_and_read_the_first_divergence(operator: Page) -> None:
    operator.goto("/import")
    fill(operator, D01)
    operator.get_by_label("Title").fill("The desk was told first")
    press_import(operator)
    expect(operator.get_by_role("heading", level=1)).to_have_text("The desk was told first")
    press_replay(operator, D01)
    badge = operator.locator("header .badge")
    expect(badge).to_contain_text("diverged")  # without a reload: the page follows by itself
    banner = operator.locator("#verdict")
    expect(banner).to_contain_text("First divergence at event 4")
    expect(banner).to_contain_text("hold_txn")
    boxes = operator.locator(".timeline .norm")
    expect(boxes.first).to_be_visible()
    for told in ("false", "true"):
        expect(boxes.filter(has_text=re.compile(rf"cache_hit\s*{told}")).first).to_be_visible()
    expect(operator.locator("aside")).to_contain_text("normalised: expected to differ")
    banner.get_by_role("link", name="Jump to it").click()
    expect(operator.locator("tbody.first.current#e4")).to_be_in_viewport()
    expect(operator.locator("[sse-connect]")).to_have_count(0)
    accessible(operator)
    operator.emulate_media(color_scheme="dark")
    accessible(operator)


def test_problems_stand_in_place_and_only_the_bad_file_is_chosen_again(operator: Page) -> None:
    operator.goto("/import")
    garbage = str(corpus() / "corpus" / "b04_garbage_snapshot" / "snapshot.pb")
    fill(operator, D01, snapshot=garbage, event=files_of(D01)["traces"])
    press_import(operator)
    expect(operator.locator("#summary")).to_contain_text("2 files cannot be used")
    expect(operator.locator("#summary")).to_be_focused()
    expect(operator.locator("[data-role=snapshot] .trouble").first).to_contain_text("snapshot.pb")
    expect(operator.locator("[data-role=event] .trouble").first).to_contain_text(
        "Expected one serialized AgentEnvelope"
    )
    expect(operator.locator("[data-role=traces] .held")).to_contain_text("traces.pb")
    accessible(operator)
    operator.set_input_files("#file-snapshot", files_of(D01)["snapshot"])
    operator.set_input_files("#file-event", files_of(D01)["event"])
    press_import(operator)
    expect(operator).to_have_url(re.compile(r"/incidents/inc_"))
    expect(operator.locator("#evidence + .scroll tbody tr")).to_have_count(3)


@pytest.mark.parametrize(
    ("name", "role", "words"),
    [
        ("b02_truncated_varint", "traces", ""),
        ("b05_empty_snapshot", "snapshot", "empty"),
        ("b06_garbage_event", "event", "AgentEnvelope"),
        ("b12_newer_snapshot", "snapshot", "version"),
        ("b22_empty_traces", "traces", "empty"),
    ],
)
def test_damaged_recordings_are_told_by_file(operator: Page, name: str, role: str, words: str) -> None:
    operator.goto("/import")
    fill(operator, name)
    press_import(operator)
    trouble, warned = operator.locator(f"[data-role={role}] .trouble p"), operator.locator("ul.warnings")
    expect(trouble.or_(warned).first).to_be_visible()
    operator.wait_for_load_state()
    if trouble.count():
        expect(operator.locator(f"[data-role={role}] .trouble").first).to_contain_text(words)
        expect(operator.locator(f"#file-{role}")).to_have_attribute("aria-invalid", "true")
    else:  # a torn stream is evidence all the same; the warning stays with it
        expect(operator.locator("ul.warnings").first).to_be_visible()


def test_files_can_be_dropped(operator: Page) -> None:
    operator.goto("/import")
    chosen = {path: list(Path(path).read_bytes()) for path in files_of(D01).values()}
    operator.evaluate(
        """files => {
            const transfer = new DataTransfer();
            for (const [path, bytes] of Object.entries(files))
                transfer.items.add(new File([new Uint8Array(bytes)], path.split("/").at(-1)));
            const drop = new DragEvent("drop", {dataTransfer: transfer, bubbles: true});
            document.querySelector("main").dispatchEvent(drop);
        }""",
        chosen,
    )
    found = operator.evaluate(
        "Object.fromEntries([...document.querySelectorAll('input[type=file]')].map(i => [i.name, i.files.length]))"
    )
    assert {role for role, count in found.items() if count} == {"snapshot", "traces", "event"}
    press_import(operator)
    expect(operator).to_have_url(re.compile(r"/incidents/inc_"))


def test_a_file_too_large_is_told_before_it_is_sent(operator: Page, tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    operator.goto("/import")
    fill(operator, D01, traces=str(large))
    expect(operator.locator("[data-role=traces] [data-too-large]")).to_contain_text("large.bin is 200.0 MiB")
    press_import(operator)
    expect(operator.locator("[data-role=traces] .trouble").first).to_contain_text("the file is too large (200 MiB)")
    expect(operator.locator("[data-role=event] .held")).to_contain_text("event.pb")


def test_reloading_while_a_run_waits_is_harmless(operator: Page, console: Console) -> None:
    incident = console.imported(D01)
    console.pause()
    try:
        operator.goto(f"/incidents/{incident}")
        press_replay(operator, D01)
        expect(operator.locator("header .badge")).to_contain_text("queued")
        accessible(operator)
        operator.reload()
        operator.reload()
        expect(operator.locator("header .badge")).to_contain_text("queued")
    finally:
        console.go_on()
    expect(operator.locator("header .badge")).to_contain_text("diverged")
    assert len(console.api.get(f"/api/v1/incidents/{incident}").json()["replays"]) == 1


def test_the_page_follows_even_where_streams_are_cut(operator: Page, console: Console) -> None:
    incident = console.imported(D01)
    operator.route("**/changes?*", lambda route: route.abort())
    console.pause()
    try:
        operator.goto(f"/incidents/{incident}")
        press_replay(operator, D01)
        expect(operator.locator("header .badge")).to_contain_text("queued")
    finally:
        console.go_on()
    expect(operator.locator("header .badge")).to_contain_text("diverged")


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (502, "text/html", "<html><body><h1>Bad Gateway</h1></body></html>"),
        (503, "application/json", '{"detail": "busy"}'),
        (200, "text/html", "<html><body>Log in at the proxy</body></html>"),
    ],
)
def test_what_is_no_page_of_ours_takes_the_place_of_none(
    operator: Page, console: Console, status: int, kind: str, body: str
) -> None:
    home = f"/incidents/{console.imported(D01)}"
    operator.goto(home)
    operator.route("**/replays", lambda route: route.fulfill(status=status, content_type=kind, body=body))
    press_replay(operator, D01)
    expect(operator.locator("#toast")).to_have_text(f"The console answered {status}")
    expect(operator).to_have_url(f"{console.base}{home}")
    operator.unroute("**/replays")
    press_replay(operator, D01)
    expect(operator.locator("header .badge")).to_contain_text("diverged")


def test_the_incident_page_follows_its_runs(operator: Page, console: Console) -> None:
    incident = console.imported(D01)
    console.pause()
    try:
        console.api.post(f"/api/v1/incidents/{incident}/replays", json={"build": D01})
        operator.goto(f"/incidents/{incident}")
        expect(operator.locator("#runs-list .badge")).to_contain_text("queued")
    finally:
        console.go_on()
    expect(operator.locator("#runs-list .badge")).to_contain_text("diverged")


def test_a_replay_is_answered_within_the_page_and_has_an_address_of_its_own(operator: Page, console: Console) -> None:
    incident = console.imported(D01)
    operator.goto(f"/incidents/{incident}")
    operator.evaluate("window.loadedOnce = true")
    operator.get_by_text("Supply recorded answers").click()
    operator.get_by_label("Tool answers").fill('{"tool": "nobody", "arguments": {}, "value": 1}')
    operator.get_by_label("Tool answers").press("Tab")
    press_replay(operator, D01)
    badge = operator.locator("header .badge")
    expect(badge).to_contain_text("diverged")
    expect(operator).to_have_url(re.compile(rf"/incidents/{incident}/runs/1$"))
    expect(operator).to_have_title(re.compile("^Run 1 diverged"))
    expect(operator.locator("#main")).to_be_focused()
    expect(operator.locator("main")).to_contain_text("nobody")
    expect(operator.locator("[sse-connect]")).to_have_count(0)
    assert operator.evaluate("window.loadedOnce && scrollY === 0")
    accessible(operator)
    operator.get_by_role("link", name="unfold all").click()
    expect(operator).to_have_url(re.compile("folds=open"))
    expect(operator.locator("#main")).to_be_visible()
    operator.go_back()
    expect(operator).to_have_url(re.compile(r"/runs/1$"))
    operator.go_back()
    expect(operator).to_have_url(re.compile(rf"/incidents/{incident}$"))
    expect(operator.get_by_role("button", name="Replay", exact=True)).to_be_visible()
    expect(operator.locator("#runs-list .badge")).to_contain_text("diverged")
    operator.go_forward()
    expect(badge).to_contain_text("diverged")
    operator.reload()
    expect(badge).to_contain_text("diverged")
    assert len(console.api.get(f"/api/v1/incidents/{incident}").json()["replays"]) == 1


def test_a_replay_that_is_refused_says_why_where_it_was_asked_for(operator: Page, console: Console) -> None:
    incident = console.imported(D01)
    here = re.compile(rf"/incidents/{incident}$")
    operator.goto(f"/incidents/{incident}")
    operator.get_by_text("Supply recorded answers").click()
    operator.get_by_label("Tool answers").fill("{")
    press_replay(operator, D01)
    expect(operator.locator("#refused")).to_be_visible()
    expect(operator.get_by_label("Tool answers")).to_have_value("{")
    expect(operator).to_have_url(here)
    operator.get_by_label("Tool answers").fill("")
    press_replay(operator)
    expect(operator.locator("#refused")).to_contain_text("No build is chosen")
    expect(operator).to_have_url(here)
    press_replay(operator, D01)
    expect(operator.locator("header .badge")).to_contain_text("diverged")
    expect(operator).to_have_url(re.compile(r"/runs/1$"))


# complaint 17
def test_a_downloaded_bundle_comes_to_the_same_verdict_here_and_in_a_terminal(
    operator: Page, console: Console, tmp_path: Path
) -> None:
    incident = console.imported(U01, level="full")
    first = console.replayed(incident, U01)["verdict"]
    operator.goto(f"/incidents/{incident}")
    with operator.expect_download() as download:
        operator.get_by_role("link", name="Download bundle").click()
    bundle = tmp_path / download.value.suggested_filename
    download.value.save_as(bundle)
    operator.goto("/import")
    operator.set_input_files("#file-bundle", str(bundle))
    press_import(operator)
    expect(operator.locator("header")).to_contain_text("imported from a bundle")
    press_replay(operator, U01)
    expect(operator.locator("header .badge")).to_contain_text("diverged")
    found = console.api.get(operator.get_by_role("link", name="JSON").get_attribute("href") or "").json()["verdict"]
    for verdict in (found, first):  # a bundle has an order of its own
        verdict["digests"]["files"].sort(key=lambda file: (file["role"], file["name"]))
    assert found == first
    told = operator.locator("section .command pre").inner_text()
    here = re.search(r"/incidents/(inc_[\w-]+)", operator.url)
    assert here is not None
    assert f"--bundle hindcast-{here[1]}.zip" in told
    argv = ["replay", "--bundle", str(bundle), "--agent", "agent:AGENT", "--registry", "agent:TOOLS"]
    argv += ["--decode", "agent:decode", "--agent-path", str(scenario(U01).folder), "--format", "json"]
    done = subprocess.run([sys.executable, "-m", "app.cli", *argv], capture_output=True, text=True, check=False)
    terminal = json.loads(done.stdout)
    terminal["digests"]["files"].sort(key=lambda file: (file["role"], file["name"]))
    assert done.returncode == 1
    for part in ("verdict", "exit_code", "differences", "normalised", "surfaces", "attempt", "counts", "digests"):
        assert terminal[part] == first[part], part


def test_everything_reads_without_javascript(browser: Browser, console: Console) -> None:
    incident = console.imported(U01, level="full")
    console.replayed(incident, U01)
    context = browser.new_context(java_script_enabled=False, base_url=console.base)
    page = context.new_page()
    page.goto(console.entrance)
    page.goto(f"/incidents/{incident}/runs/1")
    expect(page.locator("#verdict")).to_contain_text("recorded 991, replayed 991000")
    expect(page.locator(".copy").first).to_be_hidden()
    page.get_by_role("link", name="Open event 4").click()
    expect(page.locator("#fields")).to_contain_text("intent_id")
    page.go_back()
    page.get_by_role("link", name="differences only").click()
    expect(page.locator("tbody.stop")).to_have_count(1)
    page.goto("/import")
    fill(page, D01)
    press_import(page)
    press_replay(page, D01)
    expect(page.locator("header .badge")).to_contain_text("diverged")  # by reloading itself
    context.close()
