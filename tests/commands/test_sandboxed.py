"""The same verdicts when the agent's code runs confined, all from one pre-loaded process."""

from collections.abc import Iterator

import pytest

from app.replay.engine import Options, replay
from app.sandbox.runner import Sandbox
from tests.golden.scenarios import has_valid_command, names, scenario


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", [name for name in names("corpus") if has_valid_command(scenario(name))])
def test_verdict(name: str, sandbox: Sandbox) -> None:
    one = scenario(name)
    report = replay(one.bundle(), sandbox, one.code(), seq=one.seq, options=Options(ledger_bytes=1 << 20))
    assert report.verdict.exit_code in one.right("bundle"), report.verdict.headline
    if report.verdict.served:
        assert report.verdict.confinement["tier"] in ("namespaces", "baseline")
        assert not [note for note in report.verdict.notes if "sandbox refused" in note]
