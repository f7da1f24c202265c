"""What every test shares: how Hypothesis behaves, and which tests this machine cannot run."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# CI looks at the same examples every time, so a red run is red again on the developer's machine.
settings.register_profile(
    "ci", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# A database, a broker, a running world of both, runs of another framework, a provider to log in at.
pytest_plugins = [
    "tests.fixtures.postgres", "tests.fixtures.kafka", "tests.fixtures.live", "tests.fixtures.flink",
    "tests.fixtures.provider",
]  # fmt: skip

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder, and skip aloud what needs a program that is not here."""
    for item in items:
        folders = item.path.relative_to(Path(__file__).parent).parts
        if folders[0] == "browser":
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="no Chromium; run: sudo apt-get install chromium"))
        if folders[0] == "faults":
            item.add_marker(pytest.mark.faults)
        if item.get_closest_marker("bubblewrap") and shutil.which("bwrap") is None:
            item.add_marker(pytest.mark.skip(reason="no bubblewrap; run: sudo apt-get install bubblewrap"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Everything asynchronous here runs on asyncio alone."""
    return "asyncio"
