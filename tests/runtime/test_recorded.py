"""The bare runtime gives, byte for byte, what the peer's runtime gave from the same blobs, clock and envelope."""

import pytest

from app.runtime.activation import ActivationSettings, activate
from app.runtime.probe import Probe
from app.wire.records import serialize
from tests.runtime.recorded import BadCommand, Recording, prepare, recordings

# What the peer's replay runs with: no compactor, no store, no timeout.
PEER_REPLAY = ActivationSettings(activation_timeout_s=None, compactor=None)

REPLAYED = [recording for recording in recordings() if recording.replayed is not None]
NOT_REPLAYED = [recording for recording in recordings() if recording.replayed is None]


@pytest.mark.usefixtures("beam_agents")
@pytest.mark.parametrize("probe", [None, Probe()], ids=["bare", "probed"])
@pytest.mark.parametrize("recording", REPLAYED, ids=lambda recording: recording.name)
async def test_same_bytes_as_the_peer(recording: Recording, probe: Probe | None) -> None:
    """Status, error type, events, intents, outputs and the memory image, and the input is left as it was."""
    expected = recording.replayed
    assert expected is not None
    try:
        inp, hooks = prepare(recording, PEER_REPLAY)
    except BadCommand as problem:
        pytest.skip(f"no valid command line: {problem}")
    before = [serialize(blob) for blob in (inp.memory, inp.cache, inp.continuation) if blob is not None]
    assert (0 if inp.continuation is None else inp.continuation.step_index) == expected["step_index"]

    result = await activate(inp, hooks, probe)

    assert result.status == expected["status"]
    assert ("" if result.error is None else type(result.error).__name__) == expected["error_type"]
    assert [serialize(event).hex() for event in result.events] == expected["replayed_traces_hex"]
    assert [serialize(intent).hex() for intent in result.intents] == expected["replayed_intents_hex"]
    assert ([] if result.output is None else [result.output.hex()]) == expected["outputs_hex"]
    committed = result.status in ("completed", "suspended")
    assert (serialize(result.memory).hex() if committed else "") == expected["memory_blob_hex"]
    assert [serialize(blob) for blob in (inp.memory, inp.cache, inp.continuation) if blob is not None] == before


@pytest.mark.parametrize("recording", NOT_REPLAYED, ids=lambda recording: recording.name)
def test_has_no_rerun_to_compare_with(recording: Recording) -> None:
    """The peer made nothing of these: it refused the input or the miss, or died on a traceback or an exit."""
    assert recording.replayed is None
