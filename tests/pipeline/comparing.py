"""What a host sent against what was recorded: bytes and order, stream by stream."""

import hashlib

from app.pipeline.keyed import Stream
from app.wire.framing import read_frames, write_frames
from app.wire.records import StateSnapshot, parse, serialize
from tests.pipeline.recorded import PipelineRecording


def check(recording: PipelineRecording, sent: dict[Stream, list[bytes]]) -> None:
    """Compare every stream; an edited file is compared as far as its edit allows, by digest where one is known."""
    edits = recording.said["raw_differs"] or {}
    for stream in Stream:
        values = sent.get(stream, [])
        file = recording.folder / "raw" / f"{stream}.bin"
        digest = recording.digest(stream)
        assert file.exists() or digest is not None
        if file.exists():
            frames = read_frames(file.read_bytes()).payloads
            _compare(stream, values, frames, edits.get(stream, ""), wall_clock=recording.reads_wall_clock)
        if digest is not None:
            assert hashlib.sha256(write_frames(values)).hexdigest() == digest, stream


def _compare(stream: Stream, sent: list[bytes], recorded: list[bytes], edit: str, *, wall_clock: bool) -> None:
    if wall_clock and stream is Stream.SNAPSHOTS:
        sent, recorded = [[_without_cache_keys(value) for value in values] for values in (sent, recorded)]
    if edit.startswith("deliberate edit of one frame"):
        assert len(sent) == len(recorded)
        assert sum(ours != theirs for ours, theirs in zip(sent, recorded, strict=True)) == 1
    elif ": dupshuffle" in edit:
        assert set(sent) == set(recorded)
    elif ": shuffle" in edit:
        assert sorted(sent) == sorted(recorded)
    else:
        assert not edit
        assert [value.hex() for value in sent] == [value.hex() for value in recorded], stream


def _without_cache_keys(value: bytes) -> bytes:
    snapshot = parse(StateSnapshot, value)
    for entry in snapshot.llm_cache.entries:
        assert len(entry.cache_key) == 64
        entry.cache_key = ""
    return serialize(snapshot)
