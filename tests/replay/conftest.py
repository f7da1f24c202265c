"""A runner without a sandbox: the verdict is what is tested here, not the confinement."""

from collections.abc import Iterator

import pytest

from app.replay.inprocess import InProcessRunner


@pytest.fixture
def runner() -> Iterator[InProcessRunner]:
    runner = InProcessRunner()
    yield runner
    runner.close()
