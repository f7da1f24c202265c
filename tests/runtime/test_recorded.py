"""The bare runtime gives, byte for byte, what the peer's runtime gave from the same blobs, clock and envelope."""

import pytest

from app.runtime.activation import ActivationSettings, activate
from app.runtime.probe import Probe
from app.wire.records import serialize
from tests.runtime.recorded import Recording, prepare, recordings, why_not

# What the peer's replay runs with: no compactor, no store, no timeout.
PEER_REPLAY = ActivationSettings(activation_timeout_s=None, compactor=None)

REASONS = {recording.name: why_not(recording) for recording in recordings()}
COMPARED = [recording for recording in recordings() if REASONS[recording.name] is None]


@pytest.mark.usefixtures("beam_agents")
@pytest.mark.parametrize("probe", [None, Probe()], ids=["bare", "probed"])
@pytest.mark.parametrize("recording", COMPARED, ids=lambda recording: recording.name)
async def test_same_bytes_as_the_peer(recording: Recording, probe: Probe | None) -> None:
    """Status, error type, events, intents, outputs and the memory image, and the input is left as it was."""
    expected = recording.replayed
    assert expected is not None
    inp, hooks = prepare(recording, PEER_REPLAY)
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


def test_what_is_not_compared_has_a_reason() -> None:
    """The rest of the recordings by reason, so that none is left out silently."""
    listed: dict[str, list[str]] = {}
    for name, reason in REASONS.items():
        if reason is not None:
            listed.setdefault(reason.partition(":")[0], []).append(name.partition("_")[0])
    assert {reason: " ".join(names) for reason, names in listed.items()} == {
        "the peer refused the input": "b01 b02 b03 b04 b05 b06 b07 b08 b09 b10 b11 b12 b13 b14 b15 b22",
        "no valid command line": "b16 b17 b18 b19 b20 b21",
        "the peer died on a traceback": "c01 c02 c04 c06 t04",
        "the peer found it irreproducible": "d30 i01 i02 i03 i04 i05 i06 i07 i08 i09 i10 i11 i12 i13 i14 i15 i16 i17"
        " i18 n10 s13 s16",
        "the peer ended without a verdict": "u06",
    }
    assert len(COMPARED) + sum(map(len, listed.values())) == len(recordings())
