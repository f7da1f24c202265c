"""Agent files of the recordings import `beam_agents`; in these tests that name is the runtime under test."""

import sys
from collections.abc import Iterator

import pytest

from app.pipeline.loop import TurnLoop
from app.runtime import standin


def _installed() -> bool:
    return any(isinstance(finder, standin._Finder) for finder in sys.meta_path)


@pytest.fixture(scope="module")
def beam_agents() -> Iterator[None]:
    """Install the stand-in, and leave no trace of it for other tests of this process."""
    before = _installed()
    standin.install()
    yield
    if not before:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, standin._Finder)]
        for name in [name for name in sys.modules if name.split(".")[0] in (standin.ROOT, "agent")]:
            del sys.modules[name]


@pytest.fixture
def loop() -> Iterator[TurnLoop]:
    """Where turns run."""
    made = TurnLoop()
    yield made
    made.close()
