"""Recordings through Beam itself: RunAgent on the direct runner, driven by a TestStream."""

import pytest

from tests.pipeline.comparing import check
from tests.pipeline.recorded import PipelineRecording, telling


@pytest.mark.usefixtures("beam_agents")
@pytest.mark.parametrize("name", telling())
def test_recording(name: str) -> None:
    from tests.pipeline.beam.running import run

    recording = PipelineRecording(name)
    module = recording.load_agent()
    check(recording, run(recording.agent(module), recording.config(module), recording.steps()))
