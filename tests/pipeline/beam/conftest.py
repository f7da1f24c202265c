"""Beam is no part of the set-up: without it these tests are skipped, and say so."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip aloud where apache_beam is not importable."""
    if importlib.util.find_spec("apache_beam") is not None:
        return
    for item in items:
        if HERE in item.path.parents:
            reason = "no Apache Beam; to run them: pip install 'hindcast-console[beam]'"
            item.add_marker(pytest.mark.skip(reason=reason))
