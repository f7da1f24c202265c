"""Frames come from files and brokers, so nothing about them is taken on trust."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wire.framing import FramingError, TornFrame, read_frames, read_varint, varint, write_frames

payloads = st.lists(st.binary(max_size=300), max_size=20)


@given(payloads)
def test_what_is_written_is_read(frames: list[bytes]) -> None:
    found = read_frames(write_frames(frames))
    assert found.payloads == frames
    assert found.torn is None


@given(payloads.filter(any), st.data())
def test_a_cut_stream_keeps_every_whole_frame_and_tells_where_it_ends(frames: list[bytes], data: st.DataObject) -> None:
    stream = write_frames(frames)
    cut = data.draw(st.integers(1, len(stream) - 1))
    found = read_frames(stream[:cut])
    assert frames[: len(found.payloads)] == found.payloads
    whole = len(write_frames(found.payloads))
    assert (found.torn is None) == (whole == cut)
    if found.torn is not None:
        assert found.torn.offset == whole


@given(st.binary(max_size=2000))
def test_any_bytes_are_frames_or_a_framing_error(data: bytes) -> None:
    with suppress(FramingError):
        assert all(len(payload) <= 1000 for payload in read_frames(data, cap=1000).payloads)


@given(st.integers(0, 2**64 - 1))
def test_varints_round_trip(value: int) -> None:
    encoded = varint(value)
    assert len(encoded) <= 10
    assert read_varint(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"\x80" * 11, "longer than 10 bytes"),
        (b"\xff" * 9 + b"\x7f", "does not fit in 64 bits"),
        (varint(65 * 1024 * 1024), "above the limit of 67108864 bytes"),
    ],
)
def test_a_length_is_refused_before_anything_is_allocated(stream: bytes, message: str) -> None:
    with pytest.raises(FramingError, match=message):
        read_frames(stream)


def test_a_torn_frame_says_what_it_announced() -> None:
    found = read_frames(write_frames([b"whole"]) + varint(300) + b"part")
    assert found.payloads == [b"whole"]
    assert found.torn == TornFrame(offset=6, expected=300, found=4)
    assert "announces 300 bytes and holds 4" in str(found.torn)
    assert "inside a frame length" in str(read_frames(b"\x80").torn)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_only_what_fits_is_encoded(value: int) -> None:
    with pytest.raises(ValueError, match="a varint holds"):
        varint(value)
