"""Every recording of a real pipeline comes out of the bare processor byte for byte, stream by stream.

Three of the four that are marked exempt keep real time here, so they are held to the same. The fourth, s13, puts
the wall clock into a prompt: of it the cache keys in the snapshot are left out, and nothing else.
"""

import pytest

from tests.pipeline import driver
from tests.pipeline.comparing import check
from tests.pipeline.recorded import PipelineRecording, names


@pytest.mark.usefixtures("beam_agents")
@pytest.mark.parametrize("name", names())
def test_recording(name: str) -> None:
    recording = PipelineRecording(name)
    check(recording, driver.run(recording))


def test_every_recording_is_here() -> None:
    """203 with digests of what was sent, 11 more with the files alone, and the exempt ones by name."""
    recordings = [PipelineRecording(name) for name in names()]
    assert len(recordings) == 214
    assert sum("upstream_emits" in recording.said for recording in recordings) == 203
    assert [one.name.partition("_")[0] for one in recordings if one.exempt] == ["d21", "i17", "s10", "s13"]
    assert [one.name.partition("_")[0] for one in recordings if one.reads_wall_clock] == ["s13"]
