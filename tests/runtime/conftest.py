"""Agent files of the recordings import `beam_agents`; in these tests that name is the runtime under test."""

import sys
from collections.abc import Iterator

import pytest

from app.runtime import standin
from app.wire import migration


@pytest.fixture(scope="session")
def beam_agents() -> Iterator[None]:
    """Install the stand-in, and leave no trace of it for other tests of this process."""
    standin.install()
    yield
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, standin._Finder)]
    for name in [name for name in sys.modules if name.split(".")[0] in (standin.ROOT, "agent")]:
        del sys.modules[name]


@pytest.fixture
def schema_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the schema version back after a test whose agent patches it."""
    monkeypatch.setattr(migration, "CURRENT_STATE_SCHEMA_VERSION", migration.CURRENT_STATE_SCHEMA_VERSION)
