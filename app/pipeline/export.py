"""An export request is answered with the key's state as it is, and leaves no other mark."""

from __future__ import annotations

from typing import Final

from app.pipeline.emission import Stream
from app.pipeline.turn import Turn
from app.wire.records import AgentEnvelope, StateSnapshot

SNAPSHOT_SCHEMA_VERSION: Final = 1


def answer(turn: Turn, envelope: AgentEnvelope) -> None:
    """Send exactly one snapshot: no activation, no write, no timer, no trace, the same request twice gives two.

    The blobs go out as they were written, whatever their schema version; events in the batch buffer do not.
    """
    state = turn.state
    snapshot = StateSnapshot(
        state_schema_version=SNAPSHOT_SCHEMA_VERSION,
        entity_key=turn.key,
        seq=state.seq,
        snapshot_at_ms=envelope.event_time_ms,
        request_id=envelope.export_request.request_id,
    )
    cells = (
        (snapshot.memory, state.memory),
        (snapshot.llm_cache, state.cache),
        (snapshot.continuation, state.continuation),
    )
    for field, cell in cells:
        if cell is not None:
            # An empty blob that was written is present all the same.
            field.SetInParent()
            field.MergeFromString(cell)
    for intent in state.pending:
        snapshot.pending.add().MergeFromString(intent)
    turn.records(Stream.SNAPSHOTS, (snapshot,))
