"""What every test shares: how Hypothesis behaves, and which tests this machine cannot run."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples every time and everywhere: a red run is red again, and a change is not red for what it did not do.
# HINDCAST_TEST_SEARCH=1 looks for new ones. How long an example takes says nothing but what else the machine does.
_ANY_PACE = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **_ANY_PACE)
settings.register_profile("search", **_ANY_PACE)
settings.load_profile("search" if os.environ.get("HINDCAST_TEST_SEARCH") else "same")

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
