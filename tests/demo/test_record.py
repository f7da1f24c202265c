"""The example's evidence is what our runtime records, and its two builds tell the two ends of the story."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.demo.desk import example
from app.demo.story import evidence
from app.jobs.replayer import Case, SandboxedReplayer
from app.settings import load

RECORD = """
import sys
from pathlib import Path
from app.demo import record
for name, data in record.record(Path(sys.argv[1])).items():
    Path(sys.argv[2], name).write_bytes(data)
"""


def test_recording_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """In a process of its own: it runs agent code, and lends its name to the runtime."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", RECORD, example() / "v1", tmp_path], check=True, cwd=root)
    kept = {file.name: file.read_bytes() for file in (example() / "evidence").iterdir()}
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == kept
    assert {file.name: file.data for file in evidence()} == kept


@pytest.mark.parametrize(("build", "outcome"), [("refunds-v1", "reproduced"), ("refunds-v2", "diverged")])
def test_the_builds_tell_the_story(build: str, outcome: str) -> None:
    settings = load(example() / "hindcast.toml", {})
    replayer = SandboxedReplayer(settings.builds)
    try:
        report = replayer.replay(build, Case(evidence()), threading.Event())
    finally:
        replayer.close()
    assert report.verdict.outcome == outcome
    if outcome == "diverged":
        first = report.rows[report.verdict.first_divergence or 0]
        assert first.recorded is not None
        assert first.replayed is not None
        assert (first.event.type, first.recorded.label, first.replayed.label) == ("INTENT_EMITTED", "TOOL", "APPROVAL")
        values = {field.name: (field.recorded, field.replayed) for field in first.fields}
        assert values["args.amount_cents"] == ("480000", None)
        assert values["args.asked_cents"] == (None, "480000")
    else:
        # The stream holds the outputs of both activations, and an output names none.
        assert [surface.name for surface in report.verdict.surfaces if not surface.compared] == ["outputs"]
