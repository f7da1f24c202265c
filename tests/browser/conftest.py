"""How the browser is started: the system's Chromium, talking to nobody but the console under test."""

from typing import Any

import pytest

from tests.conftest import CHROMIUM


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """Use the installed Chromium; Playwright's own download is never needed."""
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    machine = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
    return {**browser_type_launch_args, "executable_path": CHROMIUM, "args": quiet + machine}
